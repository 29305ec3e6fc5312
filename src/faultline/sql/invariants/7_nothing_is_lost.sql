-- I7  Nothing accepted is ever lost: a job has a pointer, or its last attempt is final.
select j.id as job_id,
       format('no pointer, and %s', coalesce('its last attempt was only ' || last.outcome,
                                             'no attempt')) as detail
  from {schema}.job j
  left join lateral (select a.outcome, a.final from {schema}.attempt a where a.job_id = j.id
                      order by a.fencing_token desc limit 1) last on true
 where not coalesce(last.final, false)
   and not exists (select from {schema}.pointers p where p.job_id = j.id)
