-- I4  Tokens of a job only grow: a later claim has a higher token, and no pointer is behind the
-- attempts.
select a.job_id, format('token %s was claimed at %s, after the higher token %s',
                        a.fencing_token, a.claimed_at, b.fencing_token) as detail
  from {schema}.attempt a
  join {schema}.attempt b
    on b.job_id = a.job_id and b.fencing_token > a.fencing_token and b.claimed_at < a.claimed_at
union all
select p.job_id, format('%s stands at token %s, an attempt has %s', p.place, p.fencing_token,
                        max(a.fencing_token))
  from {schema}.pointers p
  join {schema}.attempt a on a.job_id = p.job_id
 group by p.job_id, p.place, p.fencing_token
having max(a.fencing_token) > p.fencing_token
    or (p.place = 'lease' and max(a.fencing_token) = p.fencing_token)
