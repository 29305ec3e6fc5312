-- renew: extend these leases from now by their own length. Never changes a token. Each lease keeps
-- the moments of its last 32 renewals, which its attempt inherits, so that a reader sees them stop.
--
-- Answers  for each: renewed (with the new expiry, and the reason if a cancel was requested), busy
--          (locked: an open transaction of its own is settling it; ask again) or lost. Only lost
--          cancels a handler; a loss that is not the attempt's own ending is recorded as refused,
--          and its facts are in the last three columns. (I3)
-- Locks    lease rows with SKIP LOCKED: one open transaction must not cost the worker its other
--          leases.
-- Raises   LF003 when there is a job without its token, LF005 not READ COMMITTED.
create or replace function {schema}.renew(job_ids uuid[], tokens bigint[])
returns table (job_id uuid, fencing_token bigint, verdict text, expires_at timestamptz,
               cancel_reason text, current_token bigint, reason text,
               late_seconds double precision)
language plpgsql
{probing}
as $$
#variable_conflict use_column
declare
    v_now timestamptz;
    v_free uuid[];
    v_kept uuid[];
    v_tokens bigint[];
begin
    perform insist_on_read_committed('renew');
    perform check_attempts(renew.job_ids, renew.tokens);
    perform token_floor();  -- after a failover the leases start anew first
    v_now := clock_timestamp();
    select array_agg(free.job_id) into v_free
      from (select l.job_id
              from (select u.job_id, u.token
                      from unnest(renew.job_ids, renew.tokens) u(job_id, token)
                     order by u.job_id offset 0) u
              join lease l on l.job_id = u.job_id and l.job_id >= u.job_id
             where l.fencing_token = u.token and l.expires_at > v_now
               for no key update of l skip locked) free;
    perform bound_open_hold((select min(l.expires_at) from lease l where l.job_id = any (v_free)));
    return query
    update lease l
       set expires_at = v_now + make_interval(secs => l.lease_seconds),
           renewals = case when cardinality(l.renewals) >= 32 then l.renewals[2:]
                           else l.renewals end || v_now
      from (select u.job_id, u.token from unnest(renew.job_ids, renew.tokens) u(job_id, token)
             where u.job_id = any (v_free) order by u.job_id offset 0) u
     where l.job_id = u.job_id and l.fencing_token = u.token and l.expires_at > v_now
       and l.job_id >= u.job_id  -- for the planner, decision 3
    returning l.job_id, l.fencing_token, 'renewed', l.expires_at,
              (select left(c.reason, 1000) from cancel_request c where c.job_id = l.job_id limit 1),
              null::bigint, null::text, null::double precision;
    if cardinality(v_free) is not distinct from cardinality(renew.job_ids) then
        return;
    end if;

    return query
    select l.job_id, l.fencing_token, 'busy', l.expires_at,
           (select left(c.reason, 1000) from cancel_request c where c.job_id = l.job_id limit 1),
           null::bigint, null::text, null::double precision
      from unnest(renew.job_ids, renew.tokens) u(job_id, token)
      join lease l on l.job_id = u.job_id and l.job_id >= u.job_id
     where l.fencing_token = u.token and l.expires_at > v_now
       and u.job_id <> all (coalesce(v_free, '{}'));
    select array_agg(l.job_id), array_agg(l.fencing_token) into v_kept, v_tokens
      from unnest(renew.job_ids, renew.tokens) u(job_id, token)
      join lease l on l.job_id = u.job_id and l.job_id >= u.job_id
     where l.fencing_token = u.token and l.expires_at > v_now;
    -- What the attempt itself has ended meanwhile is lost to renewal, but no stale write.
    return query
    select s.job_id, s.fencing_token, 'lost', null::timestamptz, null::text, f.current_token,
           f.reason, f.late_seconds
      from refuse(renew.job_ids, renew.tokens, v_kept, v_tokens, 'renew') s
      left join lateral (select s.current_token, s.reason, s.late_seconds
                          where not has_ended(s.job_id, s.fencing_token)) f on true;
end $$;
