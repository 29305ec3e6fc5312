-- The explorer's own schema: the user's tables, a fresh start for each schedule, and its verdict.
-- Nothing here is part of Faultline; it uses the verbs and the views.
create schema explore;
grant usage on schema explore to public;
create table explore.effect (job_id uuid not null, token bigint not null, kind text not null);
create table explore.guarded (like explore.effect);
do $$ begin
    if not exists (select from pg_roles where rolname = 'explorer') then
        create role explorer superuser login;
    end if;
exception when unique_violation or duplicate_object then  -- another arena was faster
    null;
end $$;
select faultline.guard('explore.guarded', array['explorer']);  -- who clears the table runs no jobs

-- Here time passes only by moving rows. So nobody is cut off or gives up because a schedule takes
-- long: a session that stalls holds what it holds, which is the worse case. Who would have had its
-- hold bounded says so.
create or replace function faultline.bound_hold(until timestamptz) returns void
language plpgsql as $$ begin raise notice 'explore: bounded'; end $$;
do $$
declare
    v_patient record;
begin
    for v_patient in select oid::regprocedure as name from pg_proc
                      where pronamespace = 'faultline'::regnamespace
                        and array_to_string(proconfig, ' ') like '%lock_timeout=%' loop
        execute format('alter function %s set lock_timeout = 0', v_patient.name);
    end loop;
end $$;

-- stop: a place between two statements of a function that was split. It says that it is here, and
-- goes on when the explorer gives way: of two locks the explorer always holds one, and the one that
-- it holds is the one to wait for.
create function explore.stop() returns boolean language plpgsql security definer as $$
declare
    v_pid integer := pg_backend_pid();
    v_gate integer := 0;
begin
    if current_setting('explore.stops', true) is distinct from 'on' then
        return true;
    end if;
    if pg_try_advisory_lock(v_pid, 0) then
        perform pg_advisory_unlock(v_pid, 0);
        v_gate := 1;
    end if;
    raise notice 'explore: stopped';
    perform pg_advisory_lock(v_pid, v_gate);
    perform pg_advisory_unlock(v_pid, v_gate);
    return true;
end $$;

-- clear: nothing is left of the last schedule.
create function explore.clear() returns void language plpgsql as $$
begin
    delete from explore.effect;
    delete from explore.guarded;
    delete from faultline.ready;
    delete from faultline.scheduled;
    delete from faultline.lease;
    delete from faultline.quarantine;
    delete from faultline.attempt;
    delete from faultline.refusal;
    delete from faultline.cancel_request;
    delete from faultline.step;
    delete from faultline.progress;
    delete from faultline.idempotency;
    delete from faultline.job;
    update faultline.epoch set epoch = 0 where epoch > 0;
end $$;

-- fresh: a clean table, and so many jobs in this place; those that were claimed were A's. Beside
-- the tables' names: `dead` has failed for good, `fragile` may not crash, `unstarted` neither, but
-- it has not begun, `parked` has crashed and is in quarantine, `asked` was asked to stop, `declined`
-- awaits its task, `lost` is leased to A and nobody knows.
create function explore.fresh(jobs integer, place text) returns uuid[] language plpgsql as $$
declare
    v_lanes integer[] := array(select lane from faultline.lane);
    v_jobs uuid[] := array(select faultline.new_id() from generate_series(1, jobs) order by 1);
    v_tokens bigint[] := array_fill(1::bigint, array[jobs]);
begin
    perform explore.clear();
    perform faultline.enqueue('work', '{}', 'explore', id => j, max_attempts => 9,
                              max_crashes => case when place in ('fragile', 'unstarted', 'parked')
                                             then 1 else 9 end,
                              delay_seconds => case place when 'scheduled' then 60 else 0 end)
       from unnest(v_jobs) j;
    if place = 'scheduled' then
        update faultline.scheduled set run_at = clock_timestamp() - interval '1 second';
    elsif place <> 'ready' then
        perform faultline.claim('A', v_lanes, jobs, started => place <> 'unstarted');
    end if;
    if place = 'dead' then
        perform faultline.fail(v_jobs, v_tokens, null, null, array_fill(true, array[jobs]));
    elsif place = 'parked' then
        perform faultline.reclaim_dead('A');
    elsif place = 'declined' then
        perform faultline.decline(v_jobs, v_tokens);
    elsif place = 'asked' then
        perform faultline.cancel(v_jobs);
    elsif place = 'lost' then
        delete from faultline.lease;
    end if;
    return v_jobs;
end $$;

-- expire_and_reclaim: the leases that nobody holds just now run out and are reclaimed at once.
create function explore.expire_and_reclaim() returns table (job_id uuid, fencing_token bigint)
language plpgsql as $$
begin
    update faultline.lease l set expires_at = clock_timestamp()
     where l.job_id in (select f.job_id from faultline.lease f for update skip locked);
    return query select r.job_id, r.fencing_token from faultline.reclaim() r;
end $$;

-- progress: report, and answer with the attempts whose report was not kept.
create function explore.progress(job_ids uuid[], tokens bigint[])
returns table (job_id uuid, fencing_token bigint) language plpgsql as $$
declare
    v_report jsonb := to_jsonb(gen_random_uuid());
begin
    perform faultline.progress(job_ids, tokens,
                               (select jsonb_agg(v_report) from unnest(job_ids)));
    return query
    select u.job_id, u.token from unnest(job_ids, tokens) u(job_id, token)
     where not exists (select from faultline.progress p
                        where p.job_id = u.job_id and p.report = v_report);
end $$;

-- verdict: what the schedule has broken: Faultline's invariants, and the user's. A row that
-- commits with the success of its job is there once, one that commits with a step too. Who was
-- refused, and did not roll that back, is on record; who ended by itself is not.
create function explore.verdict(refused uuid[], refused_tokens bigint[])
returns text[] language plpgsql
set plan_cache_mode = force_generic_plan set jit = off as $$
begin
    return array(
        select invariant || ': ' || detail from faultline.violations
        union all
        select format('an effect that commits with the success is there %s times', count(*))
          from explore.effect where kind = 'once' group by job_id having count(*) > 1
        union all
        select format('an effect that commits with a step is there %s times', count(*))
          from explore.effect where kind = 'step' group by job_id having count(*) > 1
        union all
        select format('token %s was refused, and that is not on record', u.token)
          from unnest(verdict.refused, verdict.refused_tokens) u(job_id, token)
         where not exists (select from faultline.refusal r
                            where r.job_id = u.job_id and r.stale_token = u.token)
           and not exists (select from faultline.attempt a
                            where a.job_id = u.job_id and a.fencing_token = u.token
                              and a.outcome <> 'expired')
        union all
        select format('token %s has ended by itself, and was recorded as refused', r.stale_token)
          from faultline.refusal r
          join faultline.attempt a on a.job_id = r.job_id and a.fencing_token = r.stale_token
         where a.outcome <> 'expired' and a.at < r.at
        union all
        select 'a job that has crashed as often as it may runs on, or one that has not is out'
          from faultline.job j
         where exists (select from faultline.quarantine q where q.job_id = j.id)
               <> ((select count(*) from faultline.attempt a
                     where a.job_id = j.id and a.outcome = 'expired' and a.started
                       and not exists (select from faultline.attempt r
                                        where r.job_id = j.id and r.outcome = 'requeued'
                                          and r.fencing_token > a.fencing_token))
                   >= j.max_crashes
                   and not exists (select from faultline.attempt a
                                    where a.job_id = j.id and a.final))
        union all
        select format('an effect of token %s, yet the success is of token %s', e.token,
                      a.fencing_token)
          from explore.effect e join faultline.attempt a on a.job_id = e.job_id
         where e.kind = 'once' and a.outcome = 'succeeded' and a.fencing_token <> e.token
        union all
        select format('%s jobs under the idempotency key %s', count(*), payload) from faultline.job
         where jsonb_typeof(payload) = 'string' group by payload having count(*) > 1);
end $$;
