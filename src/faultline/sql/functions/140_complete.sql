-- complete: end the attempts that still hold their lease, as succeeded. The check is the write.
--
-- results is one JSON array in the order of job_ids, or NULL when there is none (list[Jsonb] costs
-- 4.8 µs a job in the client and 3.9 on the server; one array 0.3).
--
-- Ensures  for each (job, token) still leased: one attempt row, no lease; the rest is recorded and
--          returned as stale, in this transaction. (I1, I2, I3, I6, I8)
-- Locks    lease rows in job_id order, token in the qual, so that a stale caller never locks its
--          successor's lease. Not by ctid: a renewal that commits meanwhile moves the row.
--          An ending that is there already is looked for, not met with ON CONFLICT, which costs a
--          tenth of a job: who has deleted the lease is the only one that may write this ending.
--          Not in a frozen snapshot: SERIALIZABLE would abort who looks beside another's ending.
-- Raises   LF003 when there is a job without its token or its result; nothing for stale input: a
--          stale row must not cost its neighbours their commit. To commit your own writes with the
--          ending, use complete_one, which raises. 23505 in a frozen snapshot, for an ending that
--          somebody has forged. 55P03 when an open transaction has held one of
--          the leases for a second: it must not cost the others theirs; `busy` says which.
create or replace function {schema}.complete(
    job_ids uuid[], tokens bigint[], results jsonb default null
) returns setof {schema}.stale
language plpgsql
{settling}
as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    v_taken lease[];
    v_places integer[];
    v_ended uuid[];
    v_frozen boolean := current_setting('transaction_isolation') <> 'read committed';
begin
    perform check_attempts(complete.job_ids, complete.tokens, complete.results);
    with taken as (
        delete from lease l
         using (select job_id, token, n::integer as n
                  from unnest(complete.job_ids, complete.tokens) with ordinality u(job_id, token, n)
                 order by job_id offset 0) u
         where l.job_id = u.job_id and l.fencing_token = u.token and l.expires_at > v_now
           and l.job_id >= u.job_id  -- for the planner, decision 3
        returning l, u.n)
    select array_agg(l), array_agg(n) into v_taken, v_places from taken;
    v_now := clock_timestamp();  -- it ends now, if it had to wait for a step of its own
    perform bound_open_hold((select min(l.expires_at) from unnest(v_taken) l));

    with ended as (
        insert into attempt (job_id, fencing_token, claimed_at, at, started, final, outcome, worker,
                             renewals, result)
        select job_id, fencing_token, claimed_at, v_now, true, true, 'succeeded', worker, renewals,
               nullif(complete.results -> (n - 1), 'null')
          from rows from (unnest(v_taken), unnest(v_places))
               t(job_id, fencing_token, seq, expires_at, claimed_at, lane, attempts, crashes,
                 snoozes, lease_seconds, started, worker, renewals, n)
         where v_frozen or (
               select a.job_id from attempt a where a.job_id = t.job_id
                  and (a.fencing_token = t.fencing_token or a.outcome = 'succeeded')
                limit 1) is null
        returning job_id)
    select array_agg(job_id) into v_ended from ended;

    if cardinality(v_ended) is distinct from cardinality(complete.job_ids) then
        return query
        select * from finish(complete.job_ids, complete.tokens, v_taken, v_ended, 'complete',
                             v_now);
    end if;
end $$;

-- complete_one: the same for one job inside the caller's transaction, so that the success and the
-- caller's own writes commit together or not at all.
--
-- Ensures  the transaction cannot commit unless the lease was held when this ran; nobody can
--          reclaim the job before it ends; and a session that stalls now is cut off when the lease
--          runs out.
-- Raises   LF001 stale, 23505 if this token already has an ending.
create or replace function {schema}.complete_one(
    job_id uuid, token bigint, result jsonb default null
) returns void
language plpgsql
{probing}
as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    v_lease lease;
begin
    delete from lease l
     where l.job_id = complete_one.job_id and l.fencing_token = complete_one.token
       and l.expires_at > v_now
    returning * into v_lease;
    if not found then
        perform raise_stale(complete_one.job_id, complete_one.token, 'complete_one');
    end if;
    insert into attempt (job_id, fencing_token, claimed_at, at, started, final, outcome, worker,
                         renewals, result)
    values (v_lease.job_id, v_lease.fencing_token, v_lease.claimed_at, clock_timestamp(), true,
            true, 'succeeded', v_lease.worker, v_lease.renewals,
            nullif(complete_one.result, 'null'));
    perform bound_hold(v_lease.expires_at);
end $$;
