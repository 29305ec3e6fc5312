-- promote: move up to max_jobs jobs that have become due from scheduled to the ends of their lanes,
-- and park what has run out of tokens. Answers with how many were moved.
--
-- Locks    scheduled rows with SKIP LOCKED; safe to run many at once. Held for 5 s at most. (I7)
-- Raises   LF003 max_jobs negative.
create or replace function {schema}.promote(max_jobs integer default 1000) returns integer
language plpgsql
{pinned}
as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    v_due uuid[];
    v_taken scheduled[];
    v_moved integer := 0;
begin
    perform check_max_jobs(promote.max_jobs);
    perform park_exhausted();
    v_due := array(select s.job_id from scheduled s where s.run_at <= v_now
                    order by s.run_at limit promote.max_jobs
                      for update skip locked);
    if v_due <> '{}' then
        -- They are ours, so nothing but the key is asked: with run_at, PostgreSQL 15 may walk over
        -- all that is due and search the array for each (770 ms instead of 9, with 200,000 due).
        with taken as (delete from scheduled where job_id = any (v_due) returning *)
        select array_agg(taken::scheduled order by run_at) into v_taken from taken;
        v_moved := cardinality(queue_up(v_taken, v_now));
    end if;
    perform bound_brief_hold();
    return v_moved;
end $$;

-- queue_up: these pointers, just deleted from scheduled, go to the ends of their lanes, in this
-- order, with their own counts and tokens. Answers with the jobs queued; one that is queued already
-- (by force, or by a bug) is quarantined, so that it does not stop its neighbours. (I7)
create or replace function {schema}.queue_up(taken {schema}.scheduled[], moment timestamptz)
returns uuid[]
language plpgsql
as $$
#variable_conflict use_column
declare
    v_moved uuid[];
begin
    with moved as (
        insert into ready (lane, job_id, fencing_token, attempts, crashes, snoozes, lease_seconds)
        select s.lane, s.job_id, s.fencing_token, s.attempts, s.crashes, s.snoozes, s.lease_seconds
          from unnest(queue_up.taken) s
            on conflict do nothing
        returning job_id)
    select coalesce(array_agg(job_id), '{}') into v_moved from moved;
    if cardinality(v_moved) is distinct from cardinality(queue_up.taken) then
        perform put_in_quarantine(
            array(select to_jsonb(s) from unnest(queue_up.taken) s
                   where s.job_id <> all (v_moved)),
            'already_queued', queue_up.moment);
    end if;
    perform wake(array(select distinct s.lane from unnest(queue_up.taken) s));
    return v_moved;
end $$;
