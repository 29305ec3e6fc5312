-- quarantined: what is parked, why, and since when? Until an operator requeues or cancels it. (The
-- task is looked up, as in leases.)
create or replace view {schema}.quarantined as
select q.job_id, n.queue,
       (select j.task from {schema}.job j where j.id = q.job_id) as task,
       q.fencing_token, q.reason, q.crashes, q.at, q.evidence
  from {schema}.quarantine q
  join {schema}.lane n on n.lane = q.lane;
