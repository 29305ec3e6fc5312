-- attempts: how did each attempt of a job end? (With leases, the whole life of a job.)
create or replace view {schema}.attempts as
select a.job_id, a.fencing_token, a.outcome, a.final, a.started, a.worker, a.claimed_at, a.at,
       a.lease_expired_at, a.result, a.error, a.renewals
  from {schema}.attempt a;
