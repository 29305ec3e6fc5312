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
-- of the call. check_options is called only if it is false, and then says what is wrong. No floor
-- of a lease is above 1 s.
create or replace function {schema}.options_fit(
    task text, priority integer, max_attempts integer, max_crashes integer,
    lease_seconds double precision, backoff_seconds double precision,
    backoff_cap_seconds double precision
) returns boolean
language sql immutable
return (length(task) between 1 and 255 and priority is not null
        and lease_seconds between 1 and 1e6 and max_attempts between 1 and 1000
        and max_crashes between 1 and 100
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
    if lease_seconds is null
       or not lease_seconds between (select lease_seconds_floor from setting) and 1e6 then
        perform invalid(format('lease_seconds is %s, it must be at least %s and at most 1e6',
                               lease_seconds, (select lease_seconds_floor from setting)));
    end if;
    if max_attempts is null or max_attempts not between 1 and 1000 then
        perform invalid(format('max_attempts is %s, it must be from 1 to 1,000', max_attempts));
    end if;
    if max_crashes is null or max_crashes not between 1 and 100 then
        perform invalid(format('max_crashes is %s, it must be from 1 to 100', max_crashes));
    end if;
    if backoff_seconds is null or not backoff_seconds between 0 and 1e9
       or backoff_cap_seconds is null or not backoff_cap_seconds between 0 and 1e9 then
        perform invalid(format('backoff_seconds is %s and backoff_cap_seconds %s, both must '
                               'be from 0 to 1e9', backoff_seconds, backoff_cap_seconds));
    end if;
end $$;

-- payload_bytes: how many bytes the text of payload and headers has, which is what a claim answers
-- with and what setting.payload_limit_bytes bounds.
--
-- As stored, a number such as 1e131071 takes 16 bytes of the 131,072 that it prints. So large
-- values have their numbers looked at, one by one, before the whole is printed, and added up where
-- they could still print many megabytes. (As an array: as a set, 1.4 million numbers took 165 s.)
--
-- Raises   LF003 for a payload that is NULL, or a number of more than 4,300 digits, which Python
--          does not read; LF004 over the limit.
create or replace function {schema}.payload_bytes(payload jsonb, headers jsonb) returns integer
language plpgsql
as $$
declare
    v_limit integer := (select payload_limit_bytes from setting);
    v_stored bigint := stored_bytes(payload) + coalesce(stored_bytes(headers), 0);
    v_numbers jsonb;
    v_bytes bigint;
begin
    if payload is null then
        perform invalid('payload is NULL, it must be a JSON value; for "nothing" send {}');
    end if;
    if v_stored <= 2048 then  -- most of them: no limit is below that
        v_bytes := octet_length(payload::text) + coalesce(octet_length(headers::text), 0);
        if v_bytes <= 2048 then
            return v_bytes;
        end if;
    end if;
    if v_stored > 8::bigint * v_limit then  -- stored, JSON takes at most four times its text
        perform too_large('more than ' || v_stored / 8, v_limit);
    end if;
    v_numbers := numbers_of(payload) || numbers_of(headers);
    if exists (select from jsonb_array_elements(v_numbers) n
                where octet_length(n::text) > 4300
                  and octet_length(translate(n::text, '-.', '')) > 4300) then
        perform invalid('the payload has a number of more than 4,300 digits, which Python does not '
                        'read: send it as text');
    end if;
    if v_stored > 65536 then
        v_bytes := (select sum(octet_length(n::text)) from jsonb_array_elements(v_numbers) n);
        if v_bytes > v_limit then
            perform too_large('more than ' || v_bytes, v_limit);
        end if;
    end if;
    v_bytes := octet_length(payload::text) + coalesce(octet_length(headers::text), 0);
    if v_bytes > v_limit then
        perform too_large(v_bytes::text, v_limit);
    end if;
    return v_bytes;
end $$;

-- stored_bytes: how many bytes a JSON value takes, uncompressed; one that a caller has read from a
-- table may be compressed.
create or replace function {schema}.stored_bytes(value jsonb) returns bigint
language sql stable
return case when pg_column_compression(value) is null then pg_column_size(value)
            else pg_column_size(value || '[]') end;

-- numbers_of: the numbers in a JSON value, as an array.
create or replace function {schema}.numbers_of(value jsonb) returns jsonb
language sql immutable
return coalesce(jsonb_path_query_array(value, 'strict $.** ? (@.type() == "number")'), '[]');

-- too_large: what enqueue says of a payload over the limit.
create or replace function {schema}.too_large(bytes text, limit_bytes integer) returns void
language plpgsql
as $$
begin
    raise exception using
        errcode = 'LF004',
        message = format('the payload has %s bytes as text, headers included, the limit '
                         'is %s: store the data elsewhere and pass a reference, or raise '
                         'setting.payload_limit_bytes', bytes, limit_bytes);
end $$;

-- text_bytes: how many bytes the text of a stored payload and its headers has, for a job of the
-- release before, in which nothing bounded it. Where numbers alone have more than a claim may
-- answer with, only theirs: the whole may be more than the server can print.
create or replace function {schema}.text_bytes(payload jsonb, headers jsonb) returns bigint
language plpgsql
as $$
declare
    v_bytes bigint := (
        select sum(octet_length(n::text))
          from jsonb_array_elements(numbers_of(payload) || numbers_of(headers)) n);
begin
    if v_bytes > 67108864 then
        return v_bytes;
    end if;
    return octet_length(payload::text)::bigint + coalesce(octet_length(headers::text), 0);
end $$;

-- shown_bytes: as text_bytes, for the view jobs. Believes payload_bytes, unless the payload takes
-- more room than a text of so many bytes can: then somebody has changed it by hand.
create or replace function {schema}.shown_bytes(
    payload jsonb, headers jsonb, payload_bytes integer
) returns bigint
language plpgsql stable
{definer}
as $$
begin
    if stored_bytes(payload) <= 4::bigint * shown_bytes.payload_bytes + 64 then
        return shown_bytes.payload_bytes;
    end if;
    return text_bytes(payload, headers);
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
