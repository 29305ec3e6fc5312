-- swap: complete the previous batch and claim the next, in one call and one commit. Arguments and
-- answers are those of complete (the stale ones, as columns) and of claim.
create or replace function {schema}.swap(
    job_ids uuid[], tokens bigint[], results jsonb,
    worker text, lanes integer[], max_jobs integer, cursors bigint[] default null,
    started boolean default true,
    out stale_ids uuid[], out stale_tokens bigint[], out current_tokens bigint[],
    out reasons text[], out operations text[], out lateness_seconds double precision[],
    out claimed_ids uuid[], out claimed_tokens bigint[], out job_lanes integer[],
    out seqs bigint[], out attempts integer[], out crashes integer[], out snoozes integer[],
    out leases_seconds real[], out tasks text[], out payloads text, out headers text,
    out last_chances boolean[]
)
language plpgsql
{definer}
as $$
begin
    select array_agg(s.job_id), array_agg(s.fencing_token), array_agg(s.current_token),
           array_agg(s.reason), array_agg(s.operation), array_agg(s.late_seconds)
      into stale_ids, stale_tokens, current_tokens, reasons, operations, lateness_seconds
      from complete(swap.job_ids, swap.tokens, swap.results) s;
    select * into claimed_ids, claimed_tokens, job_lanes, seqs, attempts, crashes, snoozes,
                  leases_seconds, tasks, payloads, headers, last_chances
      from claim(swap.worker, swap.lanes, swap.max_jobs, swap.cursors, swap.started);
end $$;
