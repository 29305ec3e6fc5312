-- reconcile: all that has to be done from time to time, in one call: reclaim, promote, and forget
-- what nobody will miss. Anybody may run it, any number at once; every worker does. Answers with
-- what was reclaimed (as arrays), how many were promoted, and in how many seconds there is
-- something to do again: at the next expiry of a lease or the next run_at; 0 if max_jobs left
-- overdue work, NULL if nothing is waited for. Overdue work that somebody else has locked is worth
-- a look in a quarter of a second. Where lease is huge it is not read in every call; see
-- expiries_are_worth_a_look.
--
-- Locks    as reclaim, then as promote, then what is forgotten, all with SKIP LOCKED: it never
--          waits. Held for 5 s at most, as by promote: call it in a transaction of its own.
-- Raises   LF003 max_jobs negative, LF005 not READ COMMITTED.
create or replace function {schema}.reconcile(
    max_jobs integer default 1000,
    out job_ids uuid[], out tokens bigint[], out workers text[], out states text[],
    out crashes integer[], out promoted integer, out next_seconds double precision
)
language plpgsql
{pinned}
as $$
#variable_conflict use_column
declare
    v_expiry timestamptz;
    v_run_at timestamptz;
    v_now timestamptz;
begin
    perform insist_on_read_committed('reconcile');
    perform check_max_jobs(reconcile.max_jobs);
    if expiries_are_worth_a_look() then
        v_expiry := (select min(l.expires_at) from lease l);
    end if;
    if v_expiry <= clock_timestamp() then
        select array_agg(r.job_id), array_agg(r.fencing_token), array_agg(r.worker),
               array_agg(r.state), array_agg(r.crashes)
          into job_ids, tokens, workers, states, crashes
          from reclaim(reconcile.max_jobs) r;
        if coalesce(cardinality(job_ids), 0) < 1000 then
            v_expiry := (select min(l.expires_at) from lease l);  -- else there are more
        end if;
    end if;
    promoted := promote(reconcile.max_jobs);  -- which bounds the hold of this transaction
    perform forget();
    v_run_at := (select min(s.run_at) from scheduled s);
    v_now := clock_timestamp();
    next_seconds := extract(epoch from least(v_expiry, v_run_at) - v_now);
    if next_seconds <= 0 then
        next_seconds := case when promoted >= reconcile.max_jobs
                               or coalesce(cardinality(job_ids), 0)
                                  >= least(reconcile.max_jobs, 1000)
                             then 0 else 0.25 end;
    end if;
end $$;

-- expiries_are_worth_a_look: the next expiry is found by reading all of lease: an index on it would
-- make renewals non-HOT. That walks over the dead rows too, which pile up while a snapshot is
-- pinned (45 ms for a million, `python -m bench.pinned`), and every worker asks every second. So
-- all of them together read about a million rows a second: beyond that, who looks is decided by
-- lot. Nobody has to remember or to wait for anything, and more workers do not make it worse.
create or replace function {schema}.expiries_are_worth_a_look() returns boolean
language plpgsql
as $$
declare
    v_rows bigint := pg_stat_get_live_tuples('{schema}.lease'::regclass)
                   + pg_stat_get_dead_tuples('{schema}.lease'::regclass);
begin
    return v_rows < 10000 or random() * v_rows * workers_at_work() < 1000000;
end $$;

-- workers_at_work: how many have been heard of in the last minute; at least one.
create or replace function {schema}.workers_at_work() returns bigint
language plpgsql
as $$
declare
    v_lately timestamptz := clock_timestamp() - interval '1 minute';
begin
    return greatest(1, (select count(*) from worker w where w.seen_at > v_lately));
end $$;

-- forget: reports of attempts that no longer hold their lease, a minute after they were made, and
-- workers that were not seen for a day and hold none; 1000 each at a time.
--
-- Locks    with SKIP LOCKED: what is locked is being written, and so not forgotten.
create or replace function {schema}.forget() returns void
language plpgsql
as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    v_yesterday timestamptz := v_now - interval '1 day';
    v_over uuid[];
    v_gone text[];
begin
    -- LIMIT: a lease is always looked up by key. As an anti-join, planned while there were none, it
    -- compared 2,000 reports with 2,000 leases in 186 ms; so it takes 2, and 0.1 for fresh reports.
    v_over := array(select p.job_id from progress p
                     where p.at < v_now - interval '1 minute'
                       and (select true from lease l where l.job_id = p.job_id
                               and l.fencing_token = p.fencing_token limit 1) is null
                     limit 1000 for update skip locked);
    if v_over <> '{}' then
        delete from progress p where p.job_id = any (v_over);
    end if;
    v_gone := array(select w.worker from worker w
                     where w.seen_at < v_yesterday
                       and (select true from lease l where l.worker = w.worker limit 1) is null
                     limit 1000 for update skip locked);
    if v_gone <> '{}' then
        delete from worker where worker = any (v_gone);
        delete from sleeper where worker = any (v_gone) and until < v_yesterday;
    end if;
end $$;
