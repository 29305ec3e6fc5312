-- enqueue: accept one job. Callable inside any transaction, from any driver or language.
--
-- Ensures  the job and its pointer exist together, once: a known id, or an idempotency key that was
--          used with the same payload, gives the first job back and writes nothing. (I7)
--          A job that is not due yet has the header faultline-due; see with_due.
-- Locks    nothing that exists; a key that another open transaction is using is waited for, 5 s.
-- Raises   LF003 bad argument, LF004 payload over the limit, LF002 key used with another payload,
--          55P03 key in flight.
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
{enqueueing}
as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    v_alone boolean := pg_current_xact_id_if_assigned() is null;  -- nothing was written before
    v_id uuid := accepted_id(enqueue.id, v_now);
    v_run_at timestamptz := v_now;
    v_headers jsonb := enqueue.headers;
    v_limit integer;
    v_lane integer;
    v_anybody boolean;  -- is asleep
    v_held uuid;
begin
    if enqueue.run_at is not null or enqueue.delay_seconds is distinct from 0 then
        v_run_at := due_at(enqueue.delay_seconds, enqueue.run_at, v_now);
    end if;
    if v_headers is not null or v_run_at > v_now then
        v_headers := with_due(v_headers, v_run_at, v_now);
    end if;
    if not options_fit(enqueue.task, enqueue.priority, enqueue.max_attempts, enqueue.max_crashes,
                       enqueue.lease_seconds, enqueue.backoff_seconds,
                       enqueue.backoff_cap_seconds) then
        perform check_options(enqueue.task, enqueue.priority, enqueue.max_attempts,
                              enqueue.max_crashes, enqueue.lease_seconds, enqueue.backoff_seconds,
                              enqueue.backoff_cap_seconds);
    end if;
    select s.payload_limit_bytes, l.lane into v_limit, v_lane
      from setting s
      left join lane l on l.queue = enqueue.queue and l.priority = enqueue.priority
     where s.one;
    if (pg_column_size(enqueue.payload) + coalesce(pg_column_size(enqueue.headers), 0)
        <= v_limit) is not true then
        perform check_payload(enqueue.payload, enqueue.headers, v_limit);
    end if;
    if v_lane is null then
        v_lane := make_lane(enqueue.queue, enqueue.priority);
    end if;
    if enqueue.idempotency_key is not null then
        v_held := hold_key(enqueue.task, enqueue.idempotency_key, v_id, enqueue.payload, v_now);
        if v_held <> v_id then
            return v_held;
        end if;
    end if;
    insert into job (id, created_at, lane, max_attempts, max_crashes, lease_seconds,
                     backoff_seconds, backoff_cap_seconds, task, producer, payload, headers)
    values (v_id, v_now, v_lane, enqueue.max_attempts, enqueue.max_crashes, enqueue.lease_seconds,
            enqueue.backoff_seconds, enqueue.backoff_cap_seconds, enqueue.task, session_user,
            enqueue.payload, v_headers)
        on conflict do nothing;
    if not found then
        return v_id;
    end if;
    if v_run_at > v_now then
        insert into scheduled (job_id, run_at, lane, lease_seconds)
        values (v_id, v_run_at, v_lane, enqueue.lease_seconds);
        return v_id;
    end if;
    insert into ready (lane, job_id, lease_seconds) values (v_lane, v_id, enqueue.lease_seconds)
    returning exists (select from sleeper) into v_anybody;
    if enqueue.notify and v_anybody then
        perform announce(enqueue.queue, v_alone);
    end if;
    return v_id;
end $$;
