-- progress: what running attempts say of themselves, for whoever looks at the job. reports is one
-- JSON array in the order of job_ids; of two reports of one attempt the later one is kept.
--
-- Ensures  a report is kept only if the attempt holds its lease, and never over one of a higher
--          token; the rest is left out without a word: renew tells the worker. Nothing is decided
--          by it. (I3)
-- Locks    progress rows in job_id order, no lease.
-- Raises   LF003 bad argument.
create or replace function {schema}.progress(job_ids uuid[], tokens bigint[], reports jsonb)
returns void
language plpgsql
{probing}
as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
begin
    perform check_attempts(progress.job_ids, progress.tokens, coalesce(progress.reports, 'null'));
    insert into progress as p (job_id, fencing_token, at, report)
    select distinct on (u.job_id) u.job_id, u.token, v_now, progress.reports -> (u.n::integer - 1)
      from unnest(progress.job_ids, progress.tokens) with ordinality u(job_id, token, n)
     cross join lateral (select from lease l
                          where l.job_id = u.job_id and l.fencing_token = u.token
                            and l.expires_at > v_now limit 1) held
     order by u.job_id, u.n desc
        on conflict (job_id) do update
       set fencing_token = excluded.fencing_token, at = excluded.at, report = excluded.report
     where p.fencing_token <= excluded.fencing_token;
end $$;
