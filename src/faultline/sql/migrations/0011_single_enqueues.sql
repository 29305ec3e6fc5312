-- A single enqueue lets a payload of up to 2 kB through without a look at the limit, which costs it
-- a fortieth of its time: so that is the least that the limit can be.
update {schema}.setting set payload_limit_bytes = 2048 where payload_limit_bytes < 2048;
alter table {schema}.setting
    drop constraint if exists a_payload_limit_is_positive,
    drop constraint if exists a_payload_limit_is_at_least_2048_bytes,
    add constraint a_payload_limit_is_at_least_2048_bytes check (payload_limit_bytes >= 2048);
