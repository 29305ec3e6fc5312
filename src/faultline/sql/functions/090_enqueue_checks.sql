-- What enqueue and enqueue_many insist on before they write anything.

-- is_recent: whether the time in an id is near this moment: at most a day behind, an hour ahead.
-- Beyond that it could fall outside the partitions.
--
-- An expression that the planner puts in place of the call. In an id 48 bits of milliseconds come
-- first: so the bounds are milliseconds << 16, and their bytes can be compared. Each operator is a
-- third of a microsecond of a single enqueue, and text to be parsed is several.
create or replace function {schema}.is_recent(id uuid, moment timestamptz) returns boolean
language sql stable
return uuid_send(id) > int8send((date_part('epoch', moment) * 65536000)::bigint - 5662310400000)
   and uuid_send(id) < int8send((date_part('epoch', moment) * 65536000)::bigint + 235929600000);

-- accepted_id: the client's id, unless its clock is so far off that it is not recent, or there is
-- none: then a new one.
create or replace function {schema}.accepted_id(id uuid, moment timestamptz) returns uuid
language sql volatile
return case when {schema}.is_recent(id, moment) then id else {schema}.new_id() end;

-- due_at: when the job may run: so many seconds after run_at, or from now if that is not given.
--
-- Raises   LF003 when that is no moment which every client can read.
create or replace function {schema}.due_at(
    delay_seconds double precision, run_at timestamptz, moment timestamptz
) returns timestamptz
language plpgsql
as $$
begin
    if due_at.run_at > '9000-01-01' or due_at.run_at < '0001-01-01' then
        perform invalid(format('run_at is %s, it must be in the years 1 to 8999', due_at.run_at));
    end if;
    if due_at.delay_seconds is null or due_at.delay_seconds < 0
       or due_at.delay_seconds = 'NaN' or due_at.delay_seconds > 1e10 then
        perform invalid(format('delay_seconds is %s, it must be seconds from 0 to 1e10',
                               due_at.delay_seconds));
    end if;
    return coalesce(due_at.run_at, due_at.moment) + make_interval(secs => due_at.delay_seconds);
end $$;

-- with_due: the headers of a job; one that has to wait carries the moment until when, in seconds
-- since 1970: whoever claims it can tell how late that is, and nothing else has to keep it. That
-- name is ours: what a producer says under it is dropped. Headers that are no object (possible from
-- SQL) are left as they are.
create or replace function {schema}.with_due(
    headers jsonb, run_at timestamptz, moment timestamptz
) returns jsonb
language sql immutable
return case
    when run_at > moment and coalesce(jsonb_typeof(headers), 'null') in ('object', 'null')
    then coalesce(nullif(headers, 'null'), '{}')
         || jsonb_build_object('faultline-due', extract(epoch from run_at))
    when headers ? 'faultline-due' and jsonb_typeof(headers) = 'object'
    then headers - 'faultline-due'
    else headers
end;

-- options_fit: what check_options insists on, as one expression that the planner puts in place
-- of the call: only where something is wrong is it looked into what.
create or replace function {schema}.options_fit(
    task text, priority integer, max_attempts integer, max_crashes integer,
    lease_seconds double precision, backoff_seconds double precision,
    backoff_cap_seconds double precision
) returns boolean
language sql immutable
return (length(task) between 1 and 255 and priority is not null
        and lease_seconds between 0.001 and 1e6 and max_attempts >= 1 and max_crashes >= 1
        and backoff_seconds between 0 and 1e9 and backoff_cap_seconds between 0 and 1e9) is true;

-- check_options: what a job may be told about its attempts.
--
-- Raises   LF003.
create or replace function {schema}.check_options(
    task text, priority integer, max_attempts integer, max_crashes integer,
    lease_seconds double precision, backoff_seconds double precision,
    backoff_cap_seconds double precision
) returns void
language plpgsql
as $$
begin
    if coalesce(length(task), 0) not between 1 and 255 then
        perform invalid(format('task name %L must have 1 to 255 characters', task));
    end if;
    if priority is null then
        perform invalid('priority is NULL, it must be a whole number; higher runs first');
    end if;
    if lease_seconds is null or not lease_seconds between 0.001 and 1e6 then
        perform invalid(format('lease_seconds is %s, it must be at least 0.001 and at most 1e6',
                               lease_seconds));
    end if;
    if max_attempts is null or max_attempts < 1 then
        perform invalid(format('max_attempts is %s, it must be at least 1', max_attempts));
    end if;
    if max_crashes is null or max_crashes < 1 then
        perform invalid(format('max_crashes is %s, it must be at least 1', max_crashes));
    end if;
    if backoff_seconds is null or not backoff_seconds between 0 and 1e9
       or backoff_cap_seconds is null or not backoff_cap_seconds between 0 and 1e9 then
        perform invalid(format('backoff_seconds is %s and backoff_cap_seconds %s, both must '
                               'be from 0 to 1e9', backoff_seconds, backoff_cap_seconds));
    end if;
end $$;

-- check_payload: measured as stored (jsonb), which is within a few per cent of the text.
--
-- Ensures  it is true: an enqueue of the release before, while a migrate is under way, reads it.
-- Raises   LF003, LF004.
create or replace function {schema}.check_payload(payload jsonb, headers jsonb) returns boolean
language plpgsql
as $$
declare
    limit_bytes integer := (select payload_limit_bytes from setting where one);
begin
    if payload is null then
        perform invalid('payload is NULL, it must be a JSON value; for "nothing" send {}');
    end if;
    if pg_column_size(payload) + coalesce(pg_column_size(headers), 0) > limit_bytes then
        raise exception using
            errcode = 'LF004',
            message = format('payload has %s bytes as stored, headers included, the limit is %s: '
                             'store it elsewhere and enqueue a reference, or raise '
                             'setting.payload_limit_bytes',
                             pg_column_size(payload) + coalesce(pg_column_size(headers), 0),
                             limit_bytes);
    end if;
    return true;
end $$;

-- is_known: whether there is such a job.
create or replace function {schema}.is_known(id uuid) returns boolean
language sql stable
set enable_seqscan = off
return exists (select from {schema}.job where job.id = is_known.id);

-- holder_of: the key, with the job that it names.
create or replace function {schema}.holder_of(task text, key text) returns {schema}.idempotency
language plpgsql
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    v_held idempotency;
begin
    select * into strict v_held from idempotency
     where task = holder_of.task and key = holder_of.key;
    return v_held;
end $$;

-- hold_key: make the key name this job, or say which job it names already.
--
-- Locks    the key: a second enqueuer waits for the first one's transaction, but only 5 s.
-- Raises   LF002 when the key names a job with another payload, 55P03 when the wait is over.
create or replace function {schema}.hold_key(
    task text, key text, id uuid, payload jsonb, moment timestamptz
) returns uuid
language plpgsql
set lock_timeout = '5s'
as $$
#variable_conflict use_column
declare
    v_digest bytea := sha256(convert_to(hold_key.payload::text, 'UTF8'));
    v_held idempotency;
begin
    if length(hold_key.key) not between 1 and 255 then
        perform invalid('an idempotency key must have 1 to 255 characters');
    end if;
    insert into idempotency (task, key, job_id, payload_digest, created_at)
    values (hold_key.task, hold_key.key, hold_key.id, v_digest, hold_key.moment)
        on conflict (task, key) do nothing;
    if found then
        return hold_key.id;
    end if;
    v_held := holder_of(hold_key.task, hold_key.key);
    if v_held.payload_digest <> v_digest then
        raise exception using
            errcode = 'LF002',
            message = format('idempotency key %L belongs to job %s, which has another payload; '
                             'nothing was enqueued', hold_key.key, v_held.job_id),
            detail = json_build_object('key', hold_key.key, 'job_id', v_held.job_id);
    end if;
    return v_held.job_id;
end $$;

-- hold_keys: as hold_key for a batch, in key order so that two batches cannot deadlock. A null is
-- an item without a key.
create or replace function {schema}.hold_keys(
    task text, keys text[], ids uuid[], payloads jsonb, moment timestamptz
) returns uuid[]
language plpgsql
as $$
declare
    v_ids uuid[] := hold_keys.ids;
    v_item record;
begin
    if cardinality(hold_keys.keys) is distinct from cardinality(v_ids) then
        perform invalid('idempotency_keys must have as many elements as ids');
    end if;
    for v_item in
        select k, n from unnest(hold_keys.keys) with ordinality u(k, n)
         where k is not null order by k, n
    loop
        v_ids[v_item.n] := hold_key(hold_keys.task, v_item.k, v_ids[v_item.n],
                                    hold_keys.payloads -> (v_item.n::integer - 1),
                                    hold_keys.moment);
    end loop;
    return v_ids;
end $$;
