-- ledger: which jobs succeeded, under which token? At most one row a job, by constraint.
create or replace view {schema}.ledger as
select a.job_id, a.fencing_token, a.worker, a.claimed_at, a.at, a.result
  from {schema}.attempt a
 where a.outcome = 'succeeded';
