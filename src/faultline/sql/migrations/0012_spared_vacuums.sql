-- From here on workers decide how often autovacuum comes to these (see spare_vacuum). From 18 on
-- the server has a limit for it, which must not cut that short.
alter table {schema}.ready set (autovacuum_vacuum_threshold = 20000);
alter table {schema}.lease set (autovacuum_vacuum_threshold = 20000);
alter table {schema}.scheduled set (autovacuum_vacuum_threshold = 20000);
do $$
begin
    if current_setting('server_version_num')::integer >= 180000 then
        alter table {schema}.ready set (autovacuum_vacuum_max_threshold = -1);
        alter table {schema}.lease set (autovacuum_vacuum_max_threshold = -1);
        alter table {schema}.scheduled set (autovacuum_vacuum_max_threshold = -1);
    end if;
end $$;
