-- execute: these leased jobs are being started now. Only a started job's lost lease counts as a
-- crash. Not needed after claim(started => true).
--
-- Ensures  the leases still held are marked; the rest is recorded and returned as stale. (I3)
-- Locks    lease rows in job_id order, token in the qual.
-- Raises   LF003 when there is a job without its token.
create or replace function {schema}.execute(job_ids uuid[], tokens bigint[])
returns setof {schema}.stale
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
    perform check_attempts(execute.job_ids, execute.tokens);
    with held as (
        update lease l set started = true
          from (select job_id, token from unnest(execute.job_ids, execute.tokens) u(job_id, token)
                 order by job_id offset 0) u
         where l.job_id = u.job_id and l.fencing_token = u.token and l.expires_at > v_now
           and l.job_id >= u.job_id  -- for the planner, decision 3
        returning l.job_id, l.fencing_token, l.expires_at)
    select array_agg(job_id), array_agg(fencing_token), min(expires_at)
      into v_held, v_tokens, v_until from held;
    perform bound_open_hold(v_until);
    if cardinality(v_held) is distinct from cardinality(execute.job_ids) then
        return query
        select * from refuse(execute.job_ids, execute.tokens, v_held, v_tokens, 'execute');
    end if;
end $$;
