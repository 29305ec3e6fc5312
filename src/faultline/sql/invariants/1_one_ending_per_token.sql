-- I1  No two ledger entries for the same (job, token).
select a.job_id, format('token %s has %s endings', a.fencing_token, count(*)) as detail
  from {schema}.attempt a
 group by a.job_id, a.fencing_token
having count(*) > 1
