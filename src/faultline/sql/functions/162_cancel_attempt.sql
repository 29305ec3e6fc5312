-- cancel_attempt: the attempt that holds the lease ends its job as cancelled.
--
-- Ensures  for each (job, token) still leased: an attempt row `cancelled`, final; the rest is
--          recorded and returned as stale. (I3, I6)
-- Locks    lease rows in job_id order, token in the qual.
-- Raises   55P03 as complete.
create or replace function {schema}.cancel_attempt(
    job_ids uuid[], tokens bigint[], reason text default null
) returns setof {schema}.stale
language plpgsql
{settling}
as $$
declare
    v_taken lease[] := take(cancel_attempt.job_ids, cancel_attempt.tokens, clock_timestamp());
    v_now timestamptz := clock_timestamp();
    v_ended uuid[] := record_endings(v_taken, 'cancelled', v_now,
                                     jsonb_build_object('reason', cancel_attempt.reason));
begin
    return query
    select * from finish(cancel_attempt.job_ids, cancel_attempt.tokens, v_taken, v_ended, 'cancel',
                         v_now);
end $$;
