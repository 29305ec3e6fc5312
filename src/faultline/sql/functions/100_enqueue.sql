-- enqueue: accept one job. Callable inside any transaction, from any driver or language.
--
-- Ensures  the job and its pointer exist together, once: a known id, or an idempotency key that was
--          used with the same payload, gives the first job back and writes nothing, whatever else
--          a call says that passes the checks. (I7)
--          A job that is not due yet has the header faultline-due; see with_due.
-- Locks    nothing that exists; a new lane, then a key, that another open transaction is using is
--          waited for, 5 s.
-- Raises   LF003 bad argument, or a lane too many, LF004 payload over the limit, LF002 key used
--          with another payload, 55P03 key in flight.
--
-- A transaction pays for each operator that it may use, whether it does or not: a third of a
-- microsecond. So the usual job is let through by one expression, its lane is looked up by the
-- statement that writes it, and everything else is asked only of the others. No limit is below
-- 2 kB, and what is above goes to the toaster, which costs more than all of this. It has no planner
-- settings either: of the tables that the usual job meets, lane and sleeper are small, and quicker
-- read from the front. What looks into a large one has settings of its own.
create or replace function {schema}.enqueue(
    task text,
    payload jsonb default '{}',
    queue text default 'default',
    priority integer default 0,
    delay_seconds double precision default 0,
    run_at timestamptz default null,
    idempotency_key text default null,
    id uuid default null,
    headers jsonb default null,
    max_attempts integer default 5,
    max_crashes integer default 3,
    lease_seconds double precision default 30,
    backoff_seconds double precision default 2,
    backoff_cap_seconds double precision default 300,
    notify boolean default true
) returns uuid
language plpgsql
{definer}
as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    v_bytes integer := case when pg_column_size(enqueue.payload) <= 2048
                             and pg_column_compression(enqueue.payload) is null
                            then octet_length(enqueue.payload::text) end;
    v_alone boolean := pg_current_xact_id_if_assigned() is null;  -- nothing else was written
    v_id uuid := enqueue.id;
    v_held uuid;
    v_run_at timestamptz;  -- NULL: at once
    v_headers jsonb;
    v_made boolean := false;  -- the lane, or it is one of many: make_lane has judged it
    v_lane integer;
    v_anybody boolean;  -- is asleep
begin
    if (is_recent(v_id, v_now) and v_bytes <= 2048
        and enqueue.run_at is null and enqueue.delay_seconds = 0
        and enqueue.headers is null and enqueue.idempotency_key is null
        and options_fit(enqueue.task, enqueue.priority, enqueue.max_attempts, enqueue.max_crashes,
                        enqueue.lease_seconds, enqueue.backoff_seconds,
                        enqueue.backoff_cap_seconds)) is not true then
        perform check_options(enqueue.task, enqueue.priority, enqueue.max_attempts,
                              enqueue.max_crashes, enqueue.lease_seconds, enqueue.backoff_seconds,
                              enqueue.backoff_cap_seconds);
        v_run_at := due_at(enqueue.delay_seconds, enqueue.run_at, v_now);
        v_headers := with_due(enqueue.headers, v_run_at, v_now);
        v_bytes := payload_bytes(enqueue.payload, enqueue.headers);
        v_id := accepted_id(enqueue.id, v_now);
        if enqueue.idempotency_key is not null then
            if not exists (select from lane l  -- first, as in enqueue_many
                            where l.queue = enqueue.queue and l.priority = enqueue.priority
                              and not l.counted) then
                perform make_lane(enqueue.queue, enqueue.priority);
                v_made := true;
                v_alone := false;
            end if;
            v_held := hold_key(enqueue.task, enqueue.idempotency_key, v_id, enqueue.payload, v_now);
            if v_held <> v_id then
                return v_held;
            end if;
        end if;
    end if;
    loop
        insert into job (id, created_at, lane, max_attempts, max_crashes, lease_seconds,
                         backoff_seconds, backoff_cap_seconds, task, producer, payload, headers,
                         payload_bytes)
        select v_id, v_now, l.lane, enqueue.max_attempts, enqueue.max_crashes,
               enqueue.lease_seconds, enqueue.backoff_seconds, enqueue.backoff_cap_seconds,
               enqueue.task, session_user, enqueue.payload, v_headers, v_bytes
          from lane l
         where l.queue = enqueue.queue and l.priority = enqueue.priority
           and (v_made or not l.counted)
            on conflict do nothing
        returning lane into v_lane;
        exit when v_lane is not null;
        if is_known(v_id) then
            return v_id;
        end if;
        if v_made then
            raise exception using
                errcode = '40001',
                message = format('job %s was not written, and nobody knows why: try again', v_id);
        end if;
        perform make_lane(enqueue.queue, enqueue.priority);
        v_made := true;
        v_alone := false;
    end loop;
    if v_run_at > v_now then
        insert into scheduled (job_id, run_at, lane, lease_seconds)
        values (v_id, v_run_at, v_lane, enqueue.lease_seconds);
        return v_id;
    end if;
    insert into ready (lane, job_id, lease_seconds) values (v_lane, v_id, enqueue.lease_seconds)
    returning exists (select from sleeper s where s.queue = enqueue.queue and s.until > v_now)
         into v_anybody;
    if v_anybody and enqueue.notify then
        if (v_alone and is_quiet(enqueue.queue)) is not true then
            if v_made then
                perform wake(array[v_lane]);  -- all: no worker has read of this lane
            else
                v_anybody := announce(enqueue.queue, v_alone);  -- cheaper than PERFORM
            end if;
        end if;
    end if;
    return v_id;
end $$;
