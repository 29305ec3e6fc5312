-- snooze: put the job off without using up an attempt.
--
-- Ensures  for each (job, token) still leased: an attempt row `snoozed`, the job scheduled, one
--          more snooze counted; the rest is recorded and returned as stale. (I3, I6, I7)
-- Locks    lease rows in job_id order, token in the qual.
-- Raises   LF003 bad argument, 55P03 as complete; nothing for stale input.
create or replace function {schema}.snooze(
    job_ids uuid[], tokens bigint[], delays double precision[]
) returns setof {schema}.stale
language plpgsql
{settling}
as $$
#variable_conflict use_column
declare
    v_now timestamptz;
    v_taken lease[];
    v_off lease[];
    v_ended uuid[];
begin
    perform check_attempts(snooze.job_ids, snooze.tokens, null, snooze.delays);
    v_taken := take(snooze.job_ids, snooze.tokens, clock_timestamp());
    v_now := clock_timestamp();
    v_ended := record_endings(v_taken, 'snoozed', v_now);
    v_off := array(select l from unnest(v_taken) l where l.job_id = any (v_ended));
    perform put_off(
        v_off,
        array(select coalesce(snooze.delays[place_of(snooze.job_ids, snooze.tokens, l.job_id,
                                                     l.fencing_token)], 0)
                from unnest(v_off) l),
        0, 1, v_now);
    return query
    select * from finish(snooze.job_ids, snooze.tokens, v_taken, v_ended, 'snooze', v_now);
end $$;
