-- schema_version: what is installed, and the oldest client that still works with it. Read by every
-- client before its first call.
create or replace function {schema}.schema_version(out version integer, out oldest_client integer)
language sql stable
return row({schema_version}, {oldest_client})::record;
