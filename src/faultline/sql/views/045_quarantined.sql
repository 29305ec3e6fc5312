-- quarantined: what is parked, why, and since when? Until an operator requeues or cancels it.
create or replace view {schema}.quarantined as
select q.job_id, n.queue, j.task, q.fencing_token, q.reason, q.crashes, q.at, q.evidence
  from {schema}.quarantine q
  join {schema}.lane n on n.lane = q.lane
  left join {schema}.job j on j.id = q.job_id;
