-- Looking at one job, for roles that cannot read the views.

-- status: where the job stands, for its producer or an operator; no row if it is neither's.
create or replace function {schema}.status(job_id uuid)
returns table (state text, fencing_token bigint, attempts bigint, next_run_at timestamptz,
               finished_at timestamptz, result jsonb, error jsonb, progress jsonb)
language plpgsql stable
{probing}
as $$
#variable_conflict use_column
begin
    return query
    select j.state, j.fencing_token, j.attempts, j.next_run_at, j.finished_at, j.result, j.error,
           j.progress
      from jobs j where j.id = any (own_jobs(array[status.job_id]));
end $$;

-- outcome: how the attempt (job, token) ended; NULL while it has not. How a worker finds out what
-- became of a call whose answer was lost.
create or replace function {schema}.outcome(job_id uuid, token bigint) returns text
language plpgsql stable
{pinned}
as $$
begin
    return (select a.outcome from attempt a
             where a.job_id = outcome.job_id and a.fencing_token = outcome.token);
end $$;

-- outcomes: as outcome, of many attempts in the order given; and whether their jobs ended with
-- them, which after a fail only the database knows.
--
-- Raises   LF003 when there is a job without its token.
create or replace function {schema}.outcomes(job_ids uuid[], tokens bigint[])
returns table (outcome text, final boolean)
language plpgsql stable
{pinned}
as $$
#variable_conflict use_column
begin
    perform check_attempts(outcomes.job_ids, outcomes.tokens);
    return query
    select a.outcome, a.final
      from unnest(outcomes.job_ids, outcomes.tokens) with ordinality u(job_id, token, n)
      -- LIMIT: looked up by key, whatever the plan was made for.
      left join lateral (select a.outcome, a.final from attempt a
                          where a.job_id = u.job_id and a.fencing_token = u.token limit 1) a
             on true
     order by u.n;
end $$;
