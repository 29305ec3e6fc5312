-- decline: the worker has no handler for these jobs' tasks: put them off until a worker comes that
-- has one (know_tasks), or for 1, 2, 4 … seconds: an hour at most, and a minute where a worker that
-- was seen lately has one, so that a deployment in steps delays no job for long. No attempt is used
-- up.
--
-- Ensures  for each (job, token) still leased: an attempt row `snoozed` with an error that says
--          why, the job scheduled and awaiting its task, one more snooze counted; the rest is
--          recorded and returned as stale. (I3, I6, I7)
-- Locks    lease rows in job_id order, token in the qual.
-- Raises   LF003 bad argument, 55P03 as complete; nothing for stale input.
create or replace function {schema}.decline(job_ids uuid[], tokens bigint[])
returns setof {schema}.stale
language plpgsql
{settling}
as $$
#variable_conflict use_column
declare
    v_taken lease[] := take(decline.job_ids, decline.tokens, clock_timestamp());
    v_now timestamptz := clock_timestamp();
    v_ended uuid[] := record_endings(v_taken, 'snoozed', v_now, jsonb_build_object(
        'type', 'UnknownTask',
        'message', format('worker %s has no handler for this task', v_taken[1].worker)));
    v_off lease[];
    v_known text[] := array(select distinct unnest(w.tasks) from worker w
                             where w.seen_at > v_now - interval '1 minute');
begin
    v_off := array(select l from unnest(v_taken) l where l.job_id = any (v_ended));
    perform put_off(
        v_off,
        array(select least(2.0 ^ least(l.snoozes, 12), case when j.task = any (v_known)
                                                       then 60 else 3600 end)
                from unnest(v_off) with ordinality
                     l(job_id, fencing_token, seq, expires_at, claimed_at, lane, attempts, crashes,
                       snoozes, lease_seconds, started, worker, renewals, n)
                left join lateral (select j.task from job j
                                    where j.id = l.job_id limit 1) j on true
               order by l.n),
        0, 1, v_now);
    update scheduled s set awaits = (select j.task from job j where j.id = s.job_id limit 1)
     where s.job_id = any (array(select l.job_id from unnest(v_off) l));
    return query
    select * from finish(decline.job_ids, decline.tokens, v_taken, v_ended, 'decline', v_now);
end $$;
