-- leases: what runs now, where, under which token, and until when?
create or replace view {schema}.leases as
select l.job_id, n.queue, n.priority, j.task, l.fencing_token, l.worker, l.started, l.claimed_at,
       l.expires_at, extract(epoch from l.expires_at - clock_timestamp()) as remaining_seconds,
       l.lease_seconds, l.attempts, l.crashes,
       c.reason as cancel_reason
  from {schema}.lease l
  join {schema}.lane n on n.lane = l.lane
  left join {schema}.job j on j.id = l.job_id
  left join {schema}.cancel_request c on c.job_id = l.job_id;
