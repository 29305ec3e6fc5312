-- I6  Every attempt ends in exactly one recorded outcome: a waiting job's last token has its
-- ending, and no token of an epoch is skipped.
select p.job_id, format('token %s has no ending, yet the job is in %s', p.fencing_token, p.place)
       as detail
  from {schema}.pointers p
 where p.place <> 'lease' and p.fencing_token > 0
   and not exists (select from {schema}.attempt a
                    where a.job_id = p.job_id and a.fencing_token = p.fencing_token)
union all
select t.job_id, format('no ending between token %s and token %s', t.previous, t.fencing_token)
  from (select job_id, fencing_token,
               coalesce(lag(fencing_token) over (partition by job_id order by fencing_token), 0)
                   as previous
          from (select job_id, fencing_token from {schema}.attempt
                union
                select job_id, fencing_token from {schema}.lease) known) t
 where t.fencing_token <> t.previous + 1
   and t.fencing_token <> (t.fencing_token >> 40) << 40  -- the first token of an epoch
