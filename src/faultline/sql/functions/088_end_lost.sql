-- What becomes of leases that end without their attempt's having said anything.

-- end_lost: these leases were just taken away (deleted), because their owners are dead or late.
--
-- Ensures  for each: the old token is burnt (an attempt row `expired`), and the job is back in its
--          own place in ready, or in quarantine when it crashed as often as it may. A lease lost
--          before the job was started is no crash. (I3, I6, I7)
create or replace function {schema}.end_lost(lost {schema}.lease[], moment timestamptz)
returns setof {schema}.reclaimed
language plpgsql
as $$
declare
    v_lost lease[] := array(  -- with the crash
        select row(l.job_id, l.fencing_token, l.seq, l.expires_at, l.claimed_at, l.lane, l.attempts,
                   l.crashes + l.started::integer, l.snoozes, l.lease_seconds, l.started,
                   l.worker, l.renewals)::lease
          from unnest(end_lost.lost) l);
    v_ended uuid[];
    v_poison uuid[];
begin
    perform bound_open_hold(end_lost.moment + interval '5 s');
    v_ended := record_endings(v_lost, 'expired', end_lost.moment);
    v_poison := array(select l.job_id from unnest(v_lost) l
                      cross join lateral (select j.max_crashes from job j
                                           where j.id = l.job_id limit 1) j
                      where l.crashes >= j.max_crashes and l.job_id = any (v_ended));
    perform put_in_quarantine(
        array(select to_jsonb(l) from unnest(v_lost) l where l.job_id <> all (v_ended)),
        'attempt_already_ended', end_lost.moment);
    perform put_in_quarantine(
        array(select to_jsonb(l) from unnest(v_lost) l where l.job_id = any (v_poison)),
        'crashed_too_often', end_lost.moment);
    perform put_back(
        array(select l from unnest(v_lost) l
               where l.job_id = any (v_ended) and l.job_id <> all (v_poison)), end_lost.moment);
    -- LIMIT: looked up by key. EXISTS was planned to read all of ready, for five leases too.
    return query
    select l.job_id, l.fencing_token, l.worker,
           case when (select true from quarantine q where q.job_id = l.job_id limit 1)
                then 'quarantined'
                when (select true from ready r where r.job_id = l.job_id limit 1) then 'queued'
                else 'cancelled' end,
           l.crashes
      from unnest(v_lost) l;
end $$;

-- end_released: these leases, just deleted, are handed back: `released`, no crash, each to its own
-- place in its lane. Answers with the jobs whose ending was recorded. (I3, I6, I7)
create or replace function {schema}.end_released(freed {schema}.lease[], moment timestamptz)
returns uuid[]
language plpgsql
as $$
declare
    v_ended uuid[] := record_endings(end_released.freed, 'released', end_released.moment);
begin
    perform put_back(array(select l from unnest(end_released.freed) l
                            where l.job_id = any (v_ended)), end_released.moment);
    return v_ended;
end $$;
