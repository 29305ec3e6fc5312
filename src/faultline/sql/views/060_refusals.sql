-- refusals: which stale writes were refused, whose, and how late were they?
create or replace view {schema}.refusals as
select r.id, r.job_id, r.stale_token, r.current_token, r.reason, r.operation, r.worker,
       r.late_seconds, r.at
  from {schema}.refusal r;
