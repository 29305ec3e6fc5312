-- busy: which of these attempts' leases an open transaction holds just now, so that ending them
-- would have to wait. Answers with the jobs. What a worker asks after a settling verb gave up.
--
-- Locks    the others, for the moment that it takes; with SKIP LOCKED. Held for 5 s at most.
-- Raises   LF003 when there is a job without its token, 55P03 when the whole table is locked.
create or replace function {schema}.busy(job_ids uuid[], tokens bigint[]) returns setof uuid
language plpgsql
{settling}
as $$
#variable_conflict use_column
declare
    v_free uuid[];
begin
    perform check_attempts(busy.job_ids, busy.tokens);
    select array_agg(free.job_id) into v_free
      from (select l.job_id
              from (select u.job_id, u.token
                      from unnest(busy.job_ids, busy.tokens) u(job_id, token)
                     order by u.job_id offset 0) u
              join lease l on l.job_id = u.job_id and l.job_id >= u.job_id
             where l.fencing_token = u.token
               for update of l skip locked) free;
    perform bound_brief_hold();
    return query
    select l.job_id
      from unnest(busy.job_ids, busy.tokens) u(job_id, token)
      join lease l on l.job_id = u.job_id and l.job_id >= u.job_id
     where l.fencing_token = u.token and l.job_id <> all (coalesce(v_free, '{}'));
end $$;
