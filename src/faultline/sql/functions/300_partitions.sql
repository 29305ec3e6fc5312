-- Partitions of job and attempt: one a month, by the time in the id. There is no DEFAULT partition:
-- it would make the next CREATE fail and forbid DETACH CONCURRENTLY.

-- create_partitions: from yesterday's month to so many months ahead. Run by migrate and by
-- reconcilers; safe to run many at once. Answers with how many were made.
--
-- Their rows never change, so the first vacuum freezes them. That costs no more (it writes 33 MB of
-- WAL for 300,000 jobs either way, mostly images of pages), and freezing later writes as much
-- again. Every 500,000 rows, while they are in memory: by default it is each fifth of a month.
--
-- Locks    SHARE UPDATE EXCLUSIVE on job and attempt (made apart, then attached), which neither
--          readers nor writers feel, only another that makes partitions; it waits 5 s. Held for
--          5 s at most after its end.
-- Raises   LF003 unless it is 1 to 60 months: a worker may call this, and plans lock every month.
create or replace function {schema}.create_partitions(months_ahead integer default 3)
returns integer
language plpgsql
{definer}
set lock_timeout = '5s'
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_month timestamp;
    v_parent text;
    v_name text;
    v_made integer := 0;
begin
    if months_ahead is null or months_ahead not between 1 and 60 then
        perform invalid(format('months_ahead is %s, it must be from 1 to 60', months_ahead));
    end if;
    if to_regclass('{schema}.attempt_' || to_char(
           (v_now at time zone 'UTC') + make_interval(months => months_ahead), 'YYYY_MM'))
       is not null then
        return 0;  -- the last one is made last
    end if;
    lock table only job in share update exclusive mode;
    for v_month in
        select generate_series(date_trunc('month', (v_now - interval '1 day') at time zone 'UTC'),
                               (v_now at time zone 'UTC') + make_interval(months => months_ahead),
                               interval '1 month')
    loop
        foreach v_parent in array array['job', 'attempt'] loop
            v_name := format('%s_%s', v_parent, to_char(v_month, 'YYYY_MM'));
            continue when to_regclass('{schema}.' || v_name) is not null;
            execute format('create table {schema}.%I (like {schema}.%I including all) with ('
                           'autovacuum_freeze_min_age = 0, '
                           'autovacuum_vacuum_insert_scale_factor = 0, '
                           'autovacuum_vacuum_insert_threshold = 500000)', v_name, v_parent);
            execute format('alter table {schema}.%I attach partition {schema}.%I '
                           'for values from (%L) to (%L)', v_parent, v_name,
                           id_at(v_month at time zone 'UTC'),
                           id_at((v_month + interval '1 month') at time zone 'UTC'));
            v_made := v_made + 1;
        end loop;
    end loop;
    perform bound_brief_hold();
    return v_made;
end $$;

-- partition_months: the months that have partitions, and the ids they hold.
create or replace function {schema}.partition_months()
returns table (suffix text, lowest uuid, beyond uuid)
language sql stable
begin atomic
    select to_char(m, 'YYYY_MM'), {schema}.id_at(m at time zone 'UTC'),
           {schema}.id_at((m + interval '1 month') at time zone 'UTC')
      from pg_inherits i
      join pg_class c on c.oid = i.inhrelid
     cross join lateral (select to_date(right(c.relname, 7), 'YYYY_MM')::timestamp as m) m
     where i.inhparent = '{schema}.job'::regclass
     order by 1;
end;
