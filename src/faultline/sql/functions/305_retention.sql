-- Retention: what has ended long ago is forgotten, month by month of its enqueue. A job is kept
-- while a pointer leads to it, however old it is, and for as long again after its last attempt.

-- drop_partitions: forget jobs older than this, whatever the setting says. Refusals, silent workers
-- and idempotency keys of that age go too. Answers with the months dropped or thinned out. (I7)
--
-- Locks    see drop_months. Gives up after 100 ms (55P03) rather than make the queue wait: run it
--          again later. Held for 5 s at most after its end: call it in a transaction of its own.
-- Raises   LF003 unless it is 2 days to 1000 years, LF005 not READ COMMITTED.
create or replace function {schema}.drop_partitions(older_than interval)
returns setof text
language plpgsql
{definer}
set lock_timeout = '100ms'
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_horizon timestamptz;
begin
    perform insist_on_read_committed('drop_partitions');
    -- Each part by itself, so that the subtraction cannot overflow. An infinite interval has
    -- infinite years.
    if (abs(extract(year from older_than)) <= 1000 and abs(extract(day from older_than)) <= 400000
        and abs(extract(hour from older_than)) <= 9000000) is not true then
        perform invalid(format('older_than is %s: it must be an interval from 2 days to 1000 years',
                               coalesce(quote_literal(older_than), 'NULL')));
    end if;
    -- As moments: to compare intervals counts each month as 30 days.
    v_horizon := v_now - older_than;
    if v_horizon > v_now - interval '2 days' then
        perform invalid('older_than must be at least 2 days: younger ids are still handed out');
    end if;
    while forget_before(v_horizon, 10000) loop
    end loop;
    return query select * from drop_months(v_horizon, 1000);
    while forget_before(v_horizon, 10000) loop
    end loop;
    perform bound_brief_hold();
end $$;

-- apply_retention: a step of what the setting retention_days asks for: some of the rows that go one
-- by one, or else one month. Reconcilers run it every hour, and again while it answers that there
-- is more. NULL keeps everything.
--
-- Locks    as drop_partitions.
create or replace function {schema}.apply_retention(out months text[], out more boolean)
language plpgsql
{definer}
set lock_timeout = '100ms'
as $$
declare
    v_days integer := (select retention_days from setting);
    v_horizon timestamptz := clock_timestamp() - make_interval(days => v_days);
begin
    perform insist_on_read_committed('apply_retention');
    months := '{}';
    more := v_days is not null and forget_before(v_horizon, 10000);
    if v_days is not null and not more then
        months := array(select drop_months(v_horizon, 1));
        more := months <> '{}';
    end if;
    perform bound_brief_hold();
end $$;

-- set_retention: for how many days what has ended is kept; NULL: for ever.
--
-- Raises   LF003 unless it is 2 to 36,500 days: younger ids are still handed out.
create or replace function {schema}.set_retention(days integer) returns void
language plpgsql
{definer}
as $$
begin
    if days not between 2 and 36500 then
        perform invalid(format('days is %s, it must be from 2 to 36500, or null for ever', days));
    end if;
    update setting set retention_days = set_retention.days;
end $$;

-- is_kept: whether a pointer leads to the job, or an attempt of it ended after the horizon: what
-- failed yesterday can be requeued, however long ago it was enqueued. (I7)
create or replace function {schema}.is_kept(job uuid, horizon timestamptz) returns boolean
language plpgsql stable
as $$
begin
    return exists (select from attempt a where a.job_id = is_kept.job and a.at >= is_kept.horizon)
        or exists (select from ready r where r.job_id = is_kept.job)
        or exists (select from scheduled s where s.job_id = is_kept.job)
        or exists (select from lease l where l.job_id = is_kept.job)
        or exists (select from quarantine q where q.job_id = is_kept.job);
end $$;

-- forget_before: what goes row by row, up to so many of each; answers whether there may be more.
-- Keys go before their jobs, which else would stand in the way of an enqueue without being there;
-- steps go after them, since a requeued job must find its own.
--
-- Locks    keys with SKIP LOCKED; nothing that anybody waits for.
create or replace function {schema}.forget_before(horizon timestamptz, max_rows integer)
returns boolean
language plpgsql
as $$
#variable_conflict use_column
declare
    v_month timestamp := date_trunc('month', forget_before.horizon at time zone 'UTC');
    v_beyond uuid := id_at(v_month at time zone 'UTC');
    v_keys bigint;
    v_steps bigint;
    v_refusals bigint;
begin
    delete from idempotency where ctid = any (array(
        select i.ctid from idempotency i
         where i.job_id < v_beyond and not is_kept(i.job_id, forget_before.horizon)
         order by i.job_id limit forget_before.max_rows
           for update skip locked));
    get diagnostics v_keys = row_count;
    delete from step where ctid = any (array(
        select s.ctid from step s
         where s.job_id < v_beyond and not exists (select from job j where j.id = s.job_id)
         order by s.job_id limit forget_before.max_rows));
    get diagnostics v_steps = row_count;
    delete from refusal where id = any (array(
        select r.id from refusal r where r.at < forget_before.horizon
         order by r.id limit forget_before.max_rows));
    get diagnostics v_refusals = row_count;
    delete from worker where seen_at < forget_before.horizon;
    delete from sleeper where until < forget_before.horizon;
    delete from cancel_request c
     where at < forget_before.horizon
       and not exists (select from lease l where l.job_id = c.job_id);
    return greatest(v_keys, v_steps, v_refusals) >= forget_before.max_rows;
end $$;

-- drop_months: drop up to so many months that ended before the horizon. One with jobs that are kept
-- is thinned out to them, if they are at most 10,000: they are copied with everybody waiting.
-- Answers with the months dropped or thinned out.
--
-- Locks    first SHARE ROW EXCLUSIVE on the months' partitions: from then on no job of them can end
--          or be requeued, and who ended lately is looked up, which reads the whole month (seconds,
--          for many millions of rows) while everybody else goes on. Then ACCESS EXCLUSIVE on job
--          and attempt (DETACH needs it) and on one month's partitions, parents first as everybody
--          does, then looks for pointers: whoever would give an old job a new pointer has to read
--          its row and so waits, or is waited for.
create or replace function {schema}.drop_months(horizon timestamptz, max_months integer)
returns setof text
language plpgsql
as $$
declare
    v_month record;
    v_months text[] := '{}';
    v_lately uuid[] := '{}';
    v_kept uuid[];
begin
    for v_month in select * from partition_months() where beyond <= id_at(drop_months.horizon) loop
        exit when cardinality(v_months) >= drop_months.max_months;
        continue when not has_something_to_drop(v_month.lowest, v_month.beyond,
                                                drop_months.horizon);
        execute format('lock table {schema}.job_%1$s, {schema}.attempt_%1$s '
                       'in share row exclusive mode', v_month.suffix);
        v_kept := array(select distinct a.job_id from attempt a
                         where a.job_id >= v_month.lowest and a.job_id < v_month.beyond
                           and a.at >= drop_months.horizon);
        continue when cardinality(v_kept) + cardinality(
            pointers_between(v_month.lowest, v_month.beyond, 10001)) > 10000;
        v_lately := v_lately || v_kept;
        v_months := v_months || v_month.suffix;
    end loop;
    for v_month in select * from partition_months() where suffix = any (v_months) loop
        execute format('lock table only {schema}.job, only {schema}.attempt, {schema}.job_%1$s, '
                       '{schema}.attempt_%1$s in access exclusive mode', v_month.suffix);
        v_kept := pointers_between(v_month.lowest, v_month.beyond, null)
               || array(select j from unnest(v_lately) j
                         where j >= v_month.lowest and j < v_month.beyond);
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

-- has_something_to_drop: whether not all jobs of the month are kept; a month without any has itself
-- to go. Stops at the first that is not.
create or replace function {schema}.has_something_to_drop(
    lowest uuid, beyond uuid, horizon timestamptz
) returns boolean
language plpgsql stable
as $$
#variable_conflict use_variable
begin
    return exists (select from job j where j.id >= lowest and j.id < beyond
                      and not is_kept(j.id, horizon))
        or not exists (select from job j where j.id >= lowest and j.id < beyond);
end $$;

-- pointers_between: the jobs with an id between these to which a pointer leads; up to so many.
create or replace function {schema}.pointers_between(lowest uuid, beyond uuid, max_jobs integer)
returns uuid[]
language plpgsql stable
as $$
#variable_conflict use_variable
begin
    return array(
        select r.job_id from ready r where r.job_id >= lowest and r.job_id < beyond
        union all
        select s.job_id from scheduled s where s.job_id >= lowest and s.job_id < beyond
        union all
        select l.job_id from lease l where l.job_id >= lowest and l.job_id < beyond
        union all
        select q.job_id from quarantine q where q.job_id >= lowest and q.job_id < beyond
        limit max_jobs);
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
