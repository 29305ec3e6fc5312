-- Refusing a stale writer, and keeping the evidence.

-- current_token: the highest token the job has had, wherever its pointer stands; NULL if unknown.
create or replace function {schema}.current_token(job_id uuid) returns bigint
language plpgsql stable
as $$
#variable_conflict use_column
begin
    return greatest(
        (select fencing_token from lease where job_id = current_token.job_id),
        (select fencing_token from ready where job_id = current_token.job_id),
        (select fencing_token from scheduled where job_id = current_token.job_id),
        (select fencing_token from quarantine where job_id = current_token.job_id),
        (select a.fencing_token from attempt a where a.job_id = current_token.job_id
          order by a.fencing_token desc limit 1));
end $$;

-- judge: why (job, token) holds no live lease. Called when the fence has found none.
--
-- lease_expired   the lease is dead, and no higher token has been given out yet
-- token_mismatch  the job has gone on, or never was under this token
create or replace function {schema}.judge(
    job_id uuid, token bigint,
    out current_token bigint, out reason text, out worker text, out expired_at timestamptz
)
language plpgsql
as $$
#variable_conflict use_column
begin
    -- Under a frozen snapshot a lease that was renewed meanwhile looks dead. Locking the row makes
    -- the server say so (40001, a retry) instead of this function calling a live worker stale.
    -- FOR SHARE: a key share would be granted on the old version, since a renewal changes no key.
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        perform from lease l
          where l.job_id = judge.job_id and l.fencing_token = judge.token
            for share;
    end if;
    current_token := current_token(judge.job_id);
    select l.worker, l.expires_at into worker, expired_at from lease l
     where l.job_id = judge.job_id and l.fencing_token = judge.token;
    if not found then
        select a.worker, a.lease_expired_at into worker, expired_at from attempt a
         where a.job_id = judge.job_id and a.fencing_token = judge.token;
    end if;
    reason := case when expired_at is not null and current_token = judge.token
                   then 'lease_expired' else 'token_mismatch' end;
end $$;

-- has_ended: whether (job, token) has an ending of its own: its lease was not taken away from it.
create or replace function {schema}.has_ended(job_id uuid, token bigint) returns boolean
language plpgsql stable
as $$
begin
    return exists (select from attempt a
                    where a.job_id = has_ended.job_id and a.fencing_token = has_ended.token
                      and a.outcome <> 'expired');
end $$;

-- refuse: answer with each of these attempts that was not taken, and record it. taken_tokens are
-- the tokens of the jobs taken: a worker that was leased the same job twice may bring both
-- attempts, of which one is stale.
--
-- What the attempt itself has ended before is answered and not recorded: it is said twice, and
-- nobody was late.
--
-- Raises   40001 under REPEATABLE READ when the lease has changed since the snapshot.
create or replace function {schema}.refuse(
    job_ids uuid[], tokens bigint[], taken uuid[], taken_tokens bigint[], operation text
) returns setof {schema}.stale
language plpgsql
as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
begin
    return query
    with refused as (
        select u.job_id, u.token, j.current_token, j.reason, j.worker,
               extract(epoch from v_now - j.expired_at)::double precision as late_seconds
          from unnest(refuse.job_ids, refuse.tokens) u(job_id, token)
         cross join lateral judge(u.job_id, u.token) j
         where not exists (select from unnest(refuse.taken, refuse.taken_tokens) t(job_id, token)
                            where t.job_id = u.job_id and t.token = u.token)),
    kept as (
        insert into refusal (job_id, stale_token, current_token, reason, operation, worker,
                             late_seconds, at)
        select r.job_id, r.token, r.current_token, r.reason, refuse.operation, r.worker,
               r.late_seconds, v_now
          from refused r where not has_ended(r.job_id, r.token))
    select r.job_id, r.token, r.current_token, r.reason, refuse.operation, r.late_seconds
      from refused r;
end $$;

-- report_refusal: for a refusal whose own record was rolled back with the stale transaction (gate,
-- fenced transaction, guard). Looks up the facts itself.
--
-- Answers  with no row, and records nothing, where nobody can have been late: the lease is alive,
--          the attempt has succeeded, the token was never given out. One that its worker ended
--          otherwise, because it ran too long, is late with whatever it still writes.
create or replace function {schema}.report_refusal(job_id uuid, token bigint, operation text)
returns setof {schema}.stale
language plpgsql
{pinned}
as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
begin
    if coalesce(length(report_refusal.operation), 0) not between 1 and 100 then
        perform invalid('operation must have 1 to 100 characters');
    end if;
    if coalesce((select a.outcome <> 'succeeded' from attempt a
                  where a.job_id = report_refusal.job_id
                    and a.fencing_token = report_refusal.token),
                (select l.expires_at <= v_now from lease l
                  where l.job_id = report_refusal.job_id
                    and l.fencing_token = report_refusal.token),
                report_refusal.token < current_token(report_refusal.job_id)) then
        return query
        insert into refusal (job_id, stale_token, current_token, reason, operation, worker,
                             late_seconds, at)
        select report_refusal.job_id, report_refusal.token, j.current_token, j.reason,
               report_refusal.operation, j.worker, extract(epoch from v_now - j.expired_at), v_now
          from judge(report_refusal.job_id, report_refusal.token) j
        returning job_id, stale_token, current_token, reason, operation, late_seconds;
    end if;
end $$;

-- raise_stale: the same, as an error that aborts the transaction it is raised in. Whoever made the
-- call reports it afterwards: what is written here is rolled back.
--
-- Raises   LF001 always, with the facts as JSON in the detail; LF003 if there are none.
create or replace function {schema}.raise_stale(job_id uuid, token bigint, operation text)
returns void
language plpgsql
as $$
declare
    v_judged record;
begin
    if raise_stale.job_id is null or raise_stale.token is null then
        perform invalid(format('%s needs a job_id and a token, one of them is NULL', operation));
    end if;
    select * into v_judged from judge(raise_stale.job_id, raise_stale.token);
    raise exception using
        errcode = 'LF001',
        message = format('stale lease (%s): job %s was claimed under token %s, its token is now %s',
                         v_judged.reason, raise_stale.job_id, raise_stale.token,
                         coalesce(v_judged.current_token::text, 'unknown')),
        detail = json_build_object('job_id', raise_stale.job_id, 'token', raise_stale.token,
                                   'current_token', v_judged.current_token,
                                   'reason', v_judged.reason,
                                   'operation', raise_stale.operation),
        hint = 'Roll back and stop: this attempt no longer owns the job.';
end $$;
