-- I2  A succeeded job has exactly one success, its token is the job's last, and it has no pointer.
select a.job_id, format('succeeded under token %s, yet %s', a.fencing_token, later.what) as detail
  from {schema}.attempt a
 cross join lateral (
       select format('token %s is later', b.fencing_token) as what
         from {schema}.attempt b
        where b.job_id = a.job_id and b.fencing_token > a.fencing_token
       union all
       select 'it is in ' || p.place from {schema}.pointers p where p.job_id = a.job_id) later
 where a.outcome = 'succeeded'
