-- I3  A stale token never makes a transition: no attempt ends, and no step is committed, after a
-- higher token was claimed; and no step after its own attempt ended.
select a.job_id, format('token %s ended as %s at %s, after token %s was claimed at %s',
                        a.fencing_token, a.outcome, a.at, b.fencing_token, b.claimed_at) as detail
  from {schema}.attempt a
  join (select job_id, fencing_token, claimed_at from {schema}.attempt
        union all
        select job_id, fencing_token, claimed_at from {schema}.lease) b
    on b.job_id = a.job_id and b.fencing_token > a.fencing_token
 where a.at > b.claimed_at
union all
select s.job_id, format('token %s committed step %s at %s, when token %s had ended or been claimed',
                        s.fencing_token, s.step, s.at, b.fencing_token)
  from {schema}.step s
  join (select job_id, fencing_token, claimed_at, coalesce(lease_expired_at, at) as ended_at
          from {schema}.attempt
        union all
        select job_id, fencing_token, claimed_at, null from {schema}.lease) b
    on b.job_id = s.job_id
 where b.fencing_token = s.fencing_token and s.at > b.ended_at
    or b.fencing_token > s.fencing_token and s.at > b.claimed_at
