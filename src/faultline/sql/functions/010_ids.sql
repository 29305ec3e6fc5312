-- Ids are UUIDv7: sortable and partitionable by the time in their first 48 bits. Clients make their
-- own, so that a retried enqueue is harmless; new_id is for those that have none.

-- id_at: the lowest id of this millisecond; before 1970, when ids begin, the lowest of all.
create or replace function {schema}.id_at(moment timestamptz) returns uuid
language sql immutable parallel safe strict
return encode(substring(int8send(greatest(0, floor(extract(epoch from moment) * 1000))::bigint)
                        from 3) || '\x00000000000000000000'::bytea, 'hex')::uuid;

-- id_time: the millisecond in which the id was made, by its maker's clock.
create or replace function {schema}.id_time(id uuid) returns timestamptz
language sql immutable parallel safe strict
return to_timestamp(('x0000' || substring(replace(id::text, '-', '') for 12))::bit(64)::bigint
                    / 1000.0);

-- new_id: an id of now. PostgreSQL has uuidv7() only from 18 on. Version 4's bits 0100 become 7's
-- 0111.
create or replace function {schema}.new_id() returns uuid
language sql volatile parallel safe
return encode(set_bit(set_bit(overlay(
           uuid_send(gen_random_uuid())
           placing substring(int8send(floor(extract(epoch from clock_timestamp()) * 1000)::bigint)
                             from 3)
           from 1 for 6), 52, 1), 53, 1), 'hex')::uuid;
