-- settings: what the installation was told.
create or replace view {schema}.settings as
select s.retention_days, s.payload_limit_bytes from {schema}.setting s;
