-- insist_on_read_committed: claim, renew and reclaim judge leases by what is committed now; under a
-- frozen snapshot they would judge by what was.
--
-- Raises   LF005 under any other isolation level.
create or replace function {schema}.insist_on_read_committed(verb text) returns void
language plpgsql
as $$
begin
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        raise exception using
            errcode = 'LF005',
            message = format('%s needs READ COMMITTED, this transaction is %s: call it in a '
                             'transaction of its own', verb,
                             upper(current_setting('transaction_isolation')));
    end if;
end $$;

-- invalid: one shape for every argument that is wrong.
create or replace function {schema}.invalid(message text) returns void
language plpgsql
as $$
begin
    raise exception using errcode = 'LF003', message = invalid.message;
end $$;

-- check_worker: whoever takes or waits for jobs has a name that a lease can hold.
--
-- Raises   LF003.
create or replace function {schema}.check_worker(worker text) returns void
language plpgsql
as $$
begin
    if coalesce(length(check_worker.worker), 0) not between 1 and 255 then
        perform invalid(format('worker name %L must have 1 to 255 characters',
                               check_worker.worker));
    end if;
end $$;

-- check_max_jobs: 0 is a worker without room, and gets nothing; NULL would be no limit at all.
--
-- Raises   LF003.
create or replace function {schema}.check_max_jobs(max_jobs integer) returns void
language plpgsql
as $$
begin
    if check_max_jobs.max_jobs is null or check_max_jobs.max_jobs < 0 then
        perform invalid(format('max_jobs is %s, it must be a whole number from 0 on',
                               coalesce(check_max_jobs.max_jobs::text, 'NULL')));
    end if;
end $$;

-- check_attempts: each job has its token, and what the caller says about the attempts (results,
-- errors, reports, delays) is about each of them. A pair without its half would be neither ended
-- nor called stale.
--
-- Raises   LF003.
create or replace function {schema}.check_attempts(
    job_ids uuid[], tokens bigint[], said jsonb default null,
    delays double precision[] default null, dead boolean[] default null
) returns void
language plpgsql
as $$
declare
    v_jobs integer := cardinality(check_attempts.job_ids);
begin
    if v_jobs is distinct from cardinality(tokens) or array_position(job_ids, null) is not null
       or array_position(tokens, null) is not null then
        perform invalid('job_ids and tokens must have the same number of elements, none of '
                        'them NULL');
    end if;
    if said is not null
       and (jsonb_typeof(said) <> 'array' or jsonb_array_length(said) is distinct from v_jobs) then
        perform invalid('results, errors or reports must be a JSON array with as many elements as '
                        'job_ids');
    end if;
    if cardinality(delays) <> v_jobs or cardinality(dead) <> v_jobs then
        perform invalid('delays and dead must have as many elements as job_ids');
    end if;
    if exists (select from unnest(delays) d where d < 0 or d = 'NaN' or d > 1e10) then
        perform invalid('a delay is negative or not a number: it must be seconds from 0 to 1e10');
    end if;
end $$;
