-- release: hand jobs back, to their own places in their lanes; no attempt and no crash is counted.
--
-- Ensures  for each (job, token) still leased: an attempt row `released` and the pointer back in
--          ready; the rest is recorded and returned as stale. (I3, I6, I7)
-- Locks    lease rows in job_id order, token in the qual.
-- Raises   55P03 as complete.
create or replace function {schema}.release(job_ids uuid[], tokens bigint[])
returns setof {schema}.stale
language plpgsql
{settling}
as $$
declare
    v_taken lease[] := take(release.job_ids, release.tokens, clock_timestamp());
    v_now timestamptz := clock_timestamp();
    v_ended uuid[] := end_released(v_taken, v_now);
begin
    return query
    select * from finish(release.job_ids, release.tokens, v_taken, v_ended, 'release', v_now);
end $$;
