-- I8  Duplicate commits = 0: no job has succeeded twice, and none has gone on after a final attempt
-- except by a recorded requeue.
select a.job_id, format('%s successes', count(*)) as detail
  from {schema}.attempt a
 where a.outcome = 'succeeded'
 group by a.job_id
having count(*) > 1
union all
select t.job_id, format('token %s %s, though token %s was final', t.fencing_token, t.outcome,
                        t.previous)
  from (select job_id, fencing_token, outcome,
               lag(final) over job as was_final, lag(fencing_token) over job as previous
          from {schema}.attempt
        window job as (partition by job_id order by fencing_token)) t
 where t.was_final and t.outcome <> 'requeued'
