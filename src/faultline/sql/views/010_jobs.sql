-- jobs: where does each job stand? (One job: select … where id = …, answered by primary keys.)
--
-- payload_bytes is the size of payload and headers as text. Where it is above 16 MiB, which is more
-- than an enqueue accepts, both are left out: the server may be unable to print them.
create or replace view {schema}.jobs as
select j.id,
       case
           when l.job_id is not null then 'running'
           when r.job_id is not null then 'queued'
           when s.job_id is not null then 'scheduled'
           when q.job_id is not null then 'quarantined'
           when last.final then last.outcome
           else 'lost'  -- never: invariant 7
       end as state,
       n.queue,
       n.priority,
       j.task,
       l.worker as lease_owner,
       l.expires_at as lease_expires_at,
       coalesce(l.fencing_token, r.fencing_token, s.fencing_token, q.fencing_token,
                last.fencing_token, 0) as fencing_token,
       s.run_at as next_run_at,
       coalesce(l.attempts, r.attempts, s.attempts, q.attempts, ended.attempts) as attempts,
       coalesce(l.crashes, r.crashes, s.crashes, q.crashes, ended.crashes) as crashes,
       coalesce(l.snoozes, r.snoozes, s.snoozes, q.snoozes, ended.snoozes) as snoozes,
       j.max_attempts,
       j.max_crashes,
       j.created_at,
       case when last.final and l.job_id is null then last.at end as finished_at,
       case when text.bytes <= 16777216 then j.payload end as payload,
       case when text.bytes <= 16777216 then j.headers end as headers,
       last.result,
       last.error,
       q.reason as quarantine_reason,
       q.evidence as quarantine_evidence,
       c.reason as cancel_reason,
       j.producer,
       p.report as progress,
       text.bytes as payload_bytes
  from {schema}.job j
  join {schema}.lane n on n.lane = j.lane
  left join {schema}.lease l on l.job_id = j.id
  left join {schema}.ready r on r.job_id = j.id
  left join {schema}.scheduled s on s.job_id = j.id
  left join {schema}.quarantine q on q.job_id = j.id
  left join {schema}.cancel_request c on c.job_id = l.job_id
  left join {schema}.progress p on p.job_id = l.job_id and p.fencing_token = l.fencing_token
  left join lateral (
       select a.outcome, a.final, a.fencing_token, a.at, a.result, a.error
         from {schema}.attempt a where a.job_id = j.id
        order by a.fencing_token desc limit 1) last on true
 cross join lateral (  -- counted, like a pointer's, from the last requeue on
       select count(*) filter (where a.outcome in ('succeeded', 'failed')) as attempts,
              count(*) filter (where a.outcome = 'expired' and a.started) as crashes,
              count(*) filter (where a.outcome = 'snoozed') as snoozes
         from {schema}.attempt a
        where a.job_id = j.id
          and a.fencing_token > coalesce((select max(r.fencing_token) from {schema}.attempt r
                                           where r.job_id = j.id and r.outcome = 'requeued'), 0)
       ) ended
 cross join lateral (  -- OFFSET: found once a job, and not at all where it is not asked for
       select {schema}.shown_bytes(j.payload, j.headers, j.payload_bytes) as bytes offset 0) text;
