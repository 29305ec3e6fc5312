-- reclaim: take up to max_jobs (and 1000) expired leases away from their owners. Any worker's claim
-- loop does it, as well as a reconciler; there is no leader, so that a frozen process cannot stop
-- recovery.
--
-- Ensures  for each: the old token is burnt (an attempt row `expired`), and the job is back in its
--          own place in ready, or in quarantine when it crashed as often as it may. A lease lost
--          before the job was started is no crash. A live lease is never touched. (I3, I5, I6, I7)
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
    v_ended uuid[];
    v_poison uuid[];
begin
    perform insist_on_read_committed('reclaim');
    perform check_max_jobs(reclaim.max_jobs);
    perform token_floor();  -- after a failover the leases start anew first
    v_now := clock_timestamp();
    v_dead := array(select l.job_id from lease l where l.expires_at <= v_now
                     order by l.job_id limit least(reclaim.max_jobs, 1000)
                       for update skip locked);
    if v_dead = '{}' then
        return;
    end if;
    with lost as (
        delete from lease l where l.job_id = any (v_dead) and l.expires_at <= v_now
        returning l.job_id, l.fencing_token, l.seq, l.expires_at, l.claimed_at, l.lane, l.attempts,
                  l.crashes + l.started::integer, l.snoozes, l.lease_seconds, l.started, l.worker)
    select array_agg(lost::lease) into v_lost from lost;
    perform bound_open_hold(v_now + interval '5 s');
    v_ended := record_endings(v_lost, 'expired', v_now);
    v_poison := array(select l.job_id from unnest(v_lost) l
                      cross join lateral (select j.max_crashes from job j
                                           where j.id = l.job_id limit 1) j
                      where l.crashes >= j.max_crashes and l.job_id = any (v_ended));
    perform put_in_quarantine(
        array(select to_jsonb(l) from unnest(v_lost) l where l.job_id <> all (v_ended)),
        'attempt_already_ended', v_now);
    perform put_in_quarantine(
        array(select to_jsonb(l) from unnest(v_lost) l where l.job_id = any (v_poison)),
        'crashed_too_often', v_now);
    perform put_back(
        array(select l from unnest(v_lost) l
               where l.job_id = any (v_ended) and l.job_id <> all (v_poison)), v_now);
    return query
    select l.job_id, l.fencing_token, l.worker,
           case when exists (select from quarantine q where q.job_id = l.job_id)
                then 'quarantined'
                when exists (select from ready r where r.job_id = l.job_id) then 'queued'
                else 'cancelled' end,
           l.crashes
      from unnest(v_lost) l;
end $$;
