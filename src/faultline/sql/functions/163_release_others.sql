-- release_others: hand back what this worker was leased but never learnt of, because the answer to
-- its claim was lost: every lease of the worker but those of the attempts given, which it knows.
-- At most 1,000 a call: call again while it answers with so many. Call it while no claim of the
-- worker is under way. Answers with the jobs handed back.
--
-- Ensures  for each: an attempt row `released`, and the pointer back in its own place in ready. No
--          crash is counted, and an expired lease is handed back too: nobody ever ran the job.
--          (I3, I5, I6, I7)
-- Locks    the leases with SKIP LOCKED: what is locked is being settled, or taken away, just now.
-- Raises   LF003 bad argument, LF005 not READ COMMITTED.
create or replace function {schema}.release_others(worker text, job_ids uuid[], tokens bigint[])
returns setof uuid
language plpgsql
{pinned}
as $$
#variable_conflict use_column
declare
    v_now timestamptz;
    v_taken lease[];
    v_ended uuid[];
begin
    perform insist_on_read_committed('release_others');
    perform check_worker(release_others.worker);
    perform check_attempts(coalesce(release_others.job_ids, '{null}'), release_others.tokens);
    with taken as (
        delete from lease l where l.job_id = any (array(
            select o.job_id from lease o
             where o.worker = release_others.worker
               and (o.job_id, o.fencing_token) not in (
                   select * from unnest(release_others.job_ids, release_others.tokens))
             order by o.job_id limit 1000 for update skip locked))
        returning l)
    select coalesce(array_agg(l), '{}') into v_taken from taken;
    v_now := clock_timestamp();
    perform bound_open_hold(v_now + interval '5 s');
    v_ended := end_released(v_taken, v_now);
    perform finish(array(select l.job_id from unnest(v_taken) l),
                   array(select l.fencing_token from unnest(v_taken) l),
                   v_taken, v_ended, 'release', v_now);
    return query select * from unnest(v_ended);
end $$;
