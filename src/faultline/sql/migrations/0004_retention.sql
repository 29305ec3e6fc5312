-- What the installation does by itself to stay small and fast.

-- For how many days what has ended is kept; NULL: for ever. An installation that has jobs already
-- keeps them until somebody says otherwise.
alter table {schema}.setting
    add column retention_days integer default 30,
    add constraint what_has_ended_is_kept_for_at_least_two_days check (retention_days >= 2);
update {schema}.setting set retention_days = null
 where exists (select from pg_inherits where inhparent = '{schema}.job'::regclass);

-- The months that are there get what create_partitions gives to new ones.
do $do$
declare
    v_partition regclass;
begin
    for v_partition in
        select inhrelid from pg_inherits
         where inhparent in ('{schema}.job'::regclass, '{schema}.attempt'::regclass)
    loop
        execute format('alter table %s set (autovacuum_freeze_min_age = 0, '
                       'autovacuum_vacuum_insert_scale_factor = 0, '
                       'autovacuum_vacuum_insert_threshold = 500000)', v_partition);
    end loop;
end $do$;
