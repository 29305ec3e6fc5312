-- fail: end the attempts that still hold their lease, as failed: back with a delay, or dead.
--
-- errors is one JSON array in the order of job_ids. delays overrides the job's own backoff where
-- not NULL; dead, where true, ends the job whatever attempts are left.
--
-- Ensures  for each (job, token) still leased: one attempt row; the job is scheduled again with one
--          more attempt counted, or final as failed when max_attempts is reached. The rest is
--          recorded and returned as stale. (I3, I6, I7)
-- Locks    lease rows in job_id order, token in the qual.
-- Raises   LF003 bad argument, 55P03 as complete; nothing for stale input.
create or replace function {schema}.fail(
    job_ids uuid[], tokens bigint[], errors jsonb default null,
    delays double precision[] default null, dead boolean[] default null
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
    v_retried uuid[];
begin
    perform check_attempts(fail.job_ids, fail.tokens, fail.errors, fail.delays, fail.dead);
    v_taken := take(fail.job_ids, fail.tokens, clock_timestamp());
    v_now := clock_timestamp();
    with ended as (
        insert into attempt (job_id, fencing_token, claimed_at, at, started, final, outcome, worker,
                             renewals, error)
        select l.job_id, l.fencing_token, l.claimed_at, v_now, true,
               l.attempts + 1 >= least(j.max_attempts, 1000) or coalesce(fail.dead[place], false),
               'failed', l.worker, l.renewals, nullif(fail.errors -> (place - 1), 'null')
          from unnest(v_taken) l
         -- LIMIT: looked up by key. As a join, planned while job was empty, it read a whole month.
         cross join lateral (select j.max_attempts from job j where j.id = l.job_id limit 1) j
         cross join lateral place_of(fail.job_ids, fail.tokens, l.job_id, l.fencing_token) place
         order by l.job_id
            on conflict do nothing
        returning job_id, final)
    select array_agg(job_id), array_agg(job_id) filter (where not final)
      into v_ended, v_retried from ended;

    v_off := array(select l from unnest(v_taken) l where l.job_id = any (v_retried));
    perform put_off(
        v_off,
        array(select coalesce(
                  fail.delays[place_of(fail.job_ids, fail.tokens, l.job_id, l.fencing_token)],
                  backoff(l.attempts + 1, j.backoff_seconds, j.backoff_cap_seconds))
                from unnest(v_off) with ordinality
                     l(job_id, fencing_token, seq, expires_at, claimed_at, lane, attempts, crashes,
                       snoozes, lease_seconds, started, worker, renewals, n)
               cross join lateral (select j.backoff_seconds, j.backoff_cap_seconds from job j
                                    where j.id = l.job_id limit 1) j
               order by l.n),
        1, 0, v_now);
    if cardinality(v_ended) is distinct from cardinality(fail.job_ids) then
        return query
        select * from finish(fail.job_ids, fail.tokens, v_taken, v_ended, 'fail', v_now);
    end if;
end $$;

-- backoff: seconds before the next try after so many failures: base, 2·base, 4·base … up to the
-- cap, each shortened at random by up to half so that a herd does not come back together.
create or replace function {schema}.backoff(
    failures integer, base_seconds double precision, cap_seconds double precision
) returns double precision
language sql volatile
return least(cap_seconds, base_seconds * 2.0 ^ least(failures - 1, 30)) * (0.5 + random() / 2);
