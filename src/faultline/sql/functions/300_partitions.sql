-- Partitions of job and attempt: one a month, by the time in the id. There is no DEFAULT partition:
-- it would make the next CREATE fail and forbid DETACH CONCURRENTLY.

-- create_partitions: from yesterday's month to so many months ahead. Run by migrate and by
-- reconcilers; safe to run many at once. Answers with how many were made.
--
-- Locks    SHARE UPDATE EXCLUSIVE on job and attempt (made apart, then attached), which neither
--          readers nor writers feel, only another that makes partitions; it waits 5 s.
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
            execute format('create table {schema}.%I (like {schema}.%I including all)',
                           v_name, v_parent);
            execute format('alter table {schema}.%I attach partition {schema}.%I '
                           'for values from (%L) to (%L)', v_parent, v_name,
                           id_at(v_month at time zone 'UTC'),
                           id_at((v_month + interval '1 month') at time zone 'UTC'));
            v_made := v_made + 1;
        end loop;
    end loop;
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

-- drop_partitions: forget jobs older than this, month by month. A month into which a pointer still
-- leads keeps just the jobs it leads to. Refusals and silent workers of that age go too. Answers
-- with the months dropped or thinned out. (I7)
--
-- Locks    ACCESS EXCLUSIVE on job and attempt (DETACH needs it) and on one month's partitions,
--          parents first as everybody does, then looks for pointers: whoever would give an old job
--          a new pointer has to read its row and so waits, or is waited for. Gives up after 100 ms
--          (55P03) rather than make the queue wait: run it again later.
create or replace function {schema}.drop_partitions(older_than interval)
returns setof text
language plpgsql
{definer}
set lock_timeout = '100ms'
as $$
declare
    v_horizon timestamptz := clock_timestamp() - drop_partitions.older_than;
    v_month record;
    v_kept uuid[];
begin
    perform insist_on_read_committed('drop_partitions');
    if older_than < interval '2 days' then
        perform invalid('older_than must be at least 2 days: younger ids are still handed out');
    end if;
    delete from refusal where at < v_horizon;
    delete from worker where seen_at < v_horizon;
    delete from sleeper where until < v_horizon;
    delete from cancel_request c
     where at < v_horizon and not exists (select from lease l where l.job_id = c.job_id);
    for v_month in
        select * from partition_months() where beyond <= id_at(v_horizon)
    loop
        execute format('lock table only {schema}.job, only {schema}.attempt, {schema}.job_%1$s, '
                       '{schema}.attempt_%1$s in access exclusive mode', v_month.suffix);
        v_kept := array(
            select job_id from ready
             where job_id >= v_month.lowest and job_id < v_month.beyond
            union all
            select job_id from scheduled
             where job_id >= v_month.lowest and job_id < v_month.beyond
            union all
            select job_id from lease
             where job_id >= v_month.lowest and job_id < v_month.beyond
            union all
            select job_id from quarantine
             where job_id >= v_month.lowest and job_id < v_month.beyond);
        delete from idempotency
         where job_id >= v_month.lowest and job_id < v_month.beyond and job_id <> all (v_kept);
        delete from step
         where job_id >= v_month.lowest and job_id < v_month.beyond and job_id <> all (v_kept);
        if v_kept = '{}' then
            execute format('alter table {schema}.job detach partition {schema}.job_%s',
                           v_month.suffix);
            execute format('alter table {schema}.attempt detach partition {schema}.attempt_%s',
                           v_month.suffix);
            execute format('drop table {schema}.job_%1$s, {schema}.attempt_%1$s', v_month.suffix);
        else
            perform thin_out('job_' || v_month.suffix, 'id', v_kept);
            perform thin_out('attempt_' || v_month.suffix, 'job_id', v_kept);
        end if;
        return next v_month.suffix;
    end loop;
end $$;

-- thin_out: keep only the rows of these jobs. The table is locked by the caller.
create or replace function {schema}.thin_out(partition text, id_column text, kept uuid[])
returns void
language plpgsql
as $$
begin
    execute format('create table {schema}.kept (like {schema}.%I)', partition);
    execute format('insert into {schema}.kept select * from {schema}.%I where %I = any ($1)',
                   partition, id_column) using kept;
    execute format('truncate {schema}.%I', partition);
    execute format('insert into {schema}.%I select * from {schema}.kept', partition);
    drop table kept;
end $$;
