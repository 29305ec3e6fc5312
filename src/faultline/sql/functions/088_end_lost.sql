-- What becomes of leases that end without their attempt's having said anything.

-- end_lost: these leases were just taken away (deleted), because their owners are dead or late.
--
-- Ensures  for each: the old token is burnt (an attempt row `expired`), and the job is back in its
--          own place in ready; or in scheduled, when it has crashed before, for crash_pause; or in
--          quarantine, when it crashed as often as it may. A lease lost before the job was started
--          is no crash. (I3, I6, I7)
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
    v_ended_before lease[];
    v_poison lease[];
    v_pausing lease[];
    v_back lease[];
begin
    perform bound_open_hold(end_lost.moment + interval '5 s');
    v_ended_before := without(v_lost, record_endings(v_lost, 'expired', end_lost.moment));
    if v_ended_before <> '{}' then
        perform put_in_quarantine(array(select to_jsonb(l) from unnest(v_ended_before) l),
                                  'attempt_already_ended', end_lost.moment);
        v_lost := without(v_lost, array(select l.job_id from unnest(v_ended_before) l));
    end if;
    select coalesce(array_agg(l) filter (where fate = 'poison'), '{}'),
           coalesce(array_agg(l) filter (where fate = 'pausing'), '{}'),
           coalesce(array_agg(l) filter (where fate = 'back'), '{}')
      into v_poison, v_pausing, v_back
      from (select l, case when l.crashes >= least(j.max_crashes, 100) then 'poison'
                           when l.started and crash_pause(l.crashes) > 0 then 'pausing'
                           else 'back' end as fate
              from unnest(v_lost) l
              -- LIMIT: looked up by key, whatever the plan was made for.
              left join lateral (select j.max_crashes from job j
                                  where j.id = l.job_id limit 1) j on true) judged;
    perform put_in_quarantine(array(select to_jsonb(l) from unnest(v_poison) l),
                              'crashed_too_often', end_lost.moment);
    perform put_off(  -- not all at one moment: jobs that crash together delay their neighbours
        v_pausing, array(select least(300, crash_pause(l.crashes) * (1 + random() / 4))
                           from unnest(v_pausing) l), 0, 0, end_lost.moment);
    perform put_back(v_back, end_lost.moment);
    -- LIMIT: looked up by key. EXISTS was planned to read all of ready, for five leases too.
    return query
    select l.job_id, l.fencing_token, l.worker,
           case when (select true from quarantine q where q.job_id = l.job_id limit 1)
                then 'quarantined'
                when (select true from ready r where r.job_id = l.job_id limit 1) then 'queued'
                when (select true from scheduled s where s.job_id = l.job_id limit 1)
                then 'scheduled'
                else 'cancelled' end,
           l.crashes
      from unnest(v_ended_before || v_lost) l;
end $$;

-- crash_pause: seconds before a job that has crashed so often is due again, at least: none after
-- its first crash, which may be its worker's fault, then 1, 2, 4 … up to 5 minutes. So a job that
-- kills its workers, or outlives every lease, does not keep them from its neighbours.
create or replace function {schema}.crash_pause(crashes integer) returns double precision
language sql immutable
return case when crashes > 1 then least(300, 2.0 ^ least(crashes - 2, 30)) else 0 end;

-- end_released: these leases, just deleted, are handed back: `released`, no crash, each to its own
-- place in its lane. Answers with the jobs whose ending was recorded. (I3, I6, I7)
create or replace function {schema}.end_released(freed {schema}.lease[], moment timestamptz)
returns uuid[]
language plpgsql
as $$
declare
    v_ended uuid[] := record_endings(end_released.freed, 'released', end_released.moment);
    v_ended_before lease[] := without(end_released.freed, v_ended);
begin
    perform put_back(case when v_ended_before = '{}' then end_released.freed
                     else without(end_released.freed,
                                  array(select l.job_id from unnest(v_ended_before) l)) end,
                     end_released.moment);
    return v_ended;
end $$;
