-- reclaim_dead: take the leases of a worker away at once, without waiting for their expiry: whoever
-- calls this has seen its process die. All of them, or only those of these jobs; at most 1,000 a
-- call: call again while it answers with so many.
--
-- Ensures  what end_lost does, for each; nobody else's lease is touched. Should the worker be alive
--          after all, it meets a burnt token. (I3, I5, I6, I7)
-- Locks    the leases with SKIP LOCKED: one that an open transaction of the dead holds is left, and
--          expires by itself.
-- Raises   LF003 without a name, LF005 not READ COMMITTED.
create or replace function {schema}.reclaim_dead(worker text, job_ids uuid[] default null)
returns setof {schema}.reclaimed
language plpgsql
{pinned}
as $$
#variable_conflict use_column
declare
    v_lost lease[];
begin
    perform insist_on_read_committed('reclaim_dead');
    perform check_worker(reclaim_dead.worker);
    with lost as (
        delete from lease l where l.job_id = any (array(
            select d.job_id from lease d
             where d.worker = reclaim_dead.worker
               and (reclaim_dead.job_ids is null or d.job_id = any (reclaim_dead.job_ids))
             order by d.job_id limit 1000 for update skip locked))
        returning l)
    select coalesce(array_agg(l), '{}') into v_lost from lost;
    return query select * from end_lost(v_lost, clock_timestamp());
end $$;
