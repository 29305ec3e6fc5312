-- swap: complete the previous batch and claim the next, in one call and one commit.
create or replace function {schema}.swap(
    job_ids uuid[], tokens bigint[], results jsonb,
    worker text, lanes integer[], max_jobs integer, cursors bigint[] default null,
    started boolean default true,
    out stale {schema}.stale[],
    out claimed_ids uuid[], out claimed_tokens bigint[], out job_lanes integer[],
    out seqs bigint[], out attempts integer[], out crashes integer[], out snoozes integer[],
    out leases_seconds real[], out tasks text[], out payloads text, out headers text
)
language plpgsql
{definer}
as $$
begin
    stale := array(select s from complete(swap.job_ids, swap.tokens, swap.results) s);
    select * into claimed_ids, claimed_tokens, job_lanes, seqs, attempts, crashes, snoozes,
                  leases_seconds, tasks, payloads, headers
      from claim(swap.worker, swap.lanes, swap.max_jobs, swap.cursors, swap.started);
end $$;
