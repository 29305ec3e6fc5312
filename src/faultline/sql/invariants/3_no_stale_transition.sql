-- I3  A stale token never makes a transition: no attempt ends after a higher token was claimed.
select a.job_id, format('token %s ended as %s at %s, after token %s was claimed at %s',
                        a.fencing_token, a.outcome, a.at, b.fencing_token, b.claimed_at) as detail
  from {schema}.attempt a
  join (select job_id, fencing_token, claimed_at from {schema}.attempt
        union all
        select job_id, fencing_token, claimed_at from {schema}.lease) b
    on b.job_id = a.job_id and b.fencing_token > a.fencing_token
 where a.at > b.claimed_at
