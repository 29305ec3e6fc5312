-- beat: the worker is alive; who it is, what it serves, and what its clock says. The clock is only
-- reported: it decides nothing.
--
-- Locks    the worker's row, for 5 s at most.
-- Raises   LF003 without a name.
create or replace function {schema}.beat(
    worker text, queues text[], details jsonb default '{}', clock timestamptz default null
) returns void
language plpgsql
{definer}
as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
begin
    perform check_worker(beat.worker);
    insert into worker (worker, queues, details, started_at, seen_at, clock_difference_seconds)
    values (beat.worker, beat.queues, beat.details, v_now, v_now,
            extract(epoch from beat.clock - v_now))
        on conflict (worker) do update
       set queues = excluded.queues, details = excluded.details, seen_at = excluded.seen_at,
           clock_difference_seconds = excluded.clock_difference_seconds;
    perform bound_brief_hold();
    if not exists (select from server_life) then
        insert into server_life default values on conflict do nothing;
    end if;
end $$;

-- leave: the worker has ended; it is forgotten. Its leases, if any, expire by themselves.
create or replace function {schema}.leave(worker text) returns void
language plpgsql
{definer}
as $$
begin
    delete from sleeper s where s.worker = leave.worker;
    delete from worker w where w.worker = leave.worker;
end $$;

-- sleeping: the workers that wait for work, for the view workers. A function, since a view that
-- named an UNLOGGED table could not be planned on a standby; this is planned when it is called.
create or replace function {schema}.sleeping() returns setof text
language plpgsql stable
{definer}
as $$
begin
    return query select s.worker from sleeper s where s.until > clock_timestamp();
end $$;
