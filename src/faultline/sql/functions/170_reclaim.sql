-- reclaim: take up to max_jobs (and 1000) expired leases away from their owners. Any worker's claim
-- loop does it, as well as a reconciler; there is no leader, so that a frozen process cannot stop
-- recovery.
--
-- Ensures  what end_lost does, for each; a live lease is never touched. (I3, I5, I6, I7)
-- Locks    expired lease rows with SKIP LOCKED: one open transaction must not stop the rescue of
--          the others. Only what the DELETE returned is trusted.
-- Raises   LF003 max_jobs negative, LF005 not READ COMMITTED.
create or replace function {schema}.reclaim(max_jobs integer default 100)
returns table (job_id uuid, fencing_token bigint, worker text, state text, crashes integer)
language plpgsql
{pinned}
as $$
#variable_conflict use_column
declare
    v_now timestamptz;
    v_dead uuid[];
    v_lost lease[];
begin
    perform insist_on_read_committed('reclaim');
    perform check_max_jobs(reclaim.max_jobs);
    perform token_floor();  -- after a failover the leases start anew first
    v_now := clock_timestamp();
    v_dead := array(select l.job_id from lease l where l.expires_at <= v_now
                     order by l.job_id limit least(reclaim.max_jobs, 1000)
                       for update skip locked);
    if v_dead = '{}' then
        perform bound_brief_hold();
        return;
    end if;
    with lost as (
        delete from lease l where l.job_id = any (v_dead) and l.expires_at <= v_now
        returning l)
    select array_agg(l) into v_lost from lost;
    return query select * from end_lost(v_lost, v_now);
end $$;
