-- leases: what runs now, where, under which token, and until when? The task is looked up, not
-- joined: whoever wants the next hundred to expire would otherwise read all jobs.
create or replace view {schema}.leases as
select l.job_id, n.queue, n.priority,
       (select j.task from {schema}.job j where j.id = l.job_id) as task,
       l.fencing_token, l.worker, l.started, l.claimed_at,
       l.expires_at, extract(epoch from l.expires_at - clock_timestamp()) as remaining_seconds,
       l.lease_seconds, l.attempts, l.crashes,
       (select c.reason from {schema}.cancel_request c where c.job_id = l.job_id) as cancel_reason,
       l.renewals
  from {schema}.lease l
  join {schema}.lane n on n.lane = l.lane;
