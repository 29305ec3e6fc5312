-- adopt: these leases are this worker's from now on, and start anew. How a process takes a job over
-- from the one that claimed it for it; the token stays, since it is the same attempt. started says
-- whether the job has begun: until it has, its lost lease is no crash.
--
-- Ensures  the leases still held have the new owner; the rest is recorded, returned as stale. (I3)
-- Locks    lease rows in job_id order, token in the qual.
-- Raises   LF003 bad argument.
create or replace function {schema}.adopt(
    worker text, job_ids uuid[], tokens bigint[], started boolean default true
) returns setof {schema}.stale
language plpgsql
{probing}
as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    v_held uuid[];
    v_tokens bigint[];
    v_until timestamptz;
begin
    perform check_worker(adopt.worker);
    perform check_attempts(adopt.job_ids, adopt.tokens);
    with held as (
        update lease l
           set worker = adopt.worker, started = adopt.started,
               expires_at = v_now + make_interval(secs => l.lease_seconds)
          from (select job_id, token from unnest(adopt.job_ids, adopt.tokens) u(job_id, token)
                 order by job_id offset 0) u
         where l.job_id = u.job_id and l.fencing_token = u.token and l.expires_at > v_now
           and l.job_id >= u.job_id  -- for the planner, decision 3
        returning l.job_id, l.fencing_token, l.expires_at)
    select array_agg(job_id), array_agg(fencing_token), min(expires_at)
      into v_held, v_tokens, v_until from held;
    perform bound_open_hold(v_until);
    if cardinality(v_held) is distinct from cardinality(adopt.job_ids) then
        return query
        select * from refuse(adopt.job_ids, adopt.tokens, v_held, v_tokens, 'adopt');
    end if;
end $$;
