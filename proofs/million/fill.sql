-- An installation that has been at work for some weeks: {jobs} jobs in every state, in the order
-- that is worst for lists. The newest eighth is queued; failed, cancelled, quarantined and
-- scheduled ones are all in the oldest third; one queue and one task only in the oldest hundredth.
--
-- Written into the tables, since the functions would take a quarter of an hour; no invariant is
-- broken by it (tests/test_million.py).

insert into {schema}.queue (queue)
select 'queue-' || n from generate_series(1, 8) n union all select 'rare';
insert into {schema}.lane (queue, priority)
select queue, priority from {schema}.queue, generate_series(0, 20, 10) priority;

create temporary table filled as
with weeks as (
    select greatest(clock_timestamp() - interval '20 days',
                    {schema}.id_time(lowest) + interval '1 minute') as since
      from {schema}.partition_months() order by suffix limit 1
), numbered as (
    select k, k::float8 / {jobs} as age,
           since + (clock_timestamp() - since) * (k::float8 / {jobs}) as at
      from weeks, generate_series(1, {jobs}) k
)
select k, at,
       encode(set_bit(set_bit(overlay(
           uuid_send(gen_random_uuid())
           placing substring(int8send(floor(extract(epoch from at) * 1000)::bigint) from 3)
           from 1 for 6), 52, 1), 53, 1), 'hex')::uuid as id,
       case when age > 0.875 then 'queued'
            when age > 0.872 then 'running'
            when age > 0.33 then 'succeeded'
            when k % 50 = 0 then 'quarantined'
            when k % 10 = 1 then 'failed'
            when k % 25 = 2 then 'cancelled'
            when k % 5 = 3 then 'scheduled'
            else 'succeeded' end as state,
       case when age < 0.01 and k % 20 = 0 then 'rare' else 'task-' || k % 12 end as task,
       (select lane from {schema}.lane n
         where n.queue = case when age < 0.01 and k % 20 = 1 then 'rare'
                              else 'queue-' || 1 + k % 8 end
           and n.priority = 10 * (k / 8 % 3)) as lane
  from numbered;
create index on filled (state, id);
analyze filled;

insert into {schema}.job (id, created_at, lane, max_attempts, max_crashes, lease_seconds,
                          backoff_seconds, backoff_cap_seconds, task, producer, payload)
select id, at, lane, 5, 3, 30, 1, 60, task, 'shop',
       jsonb_build_object('order_id', k, 'customer', md5(k::text))
  from filled order by id;

insert into {schema}.ready (lane, job_id, lease_seconds)
select lane, id, 30 from filled where state = 'queued' order by id;

-- A retry has failed once; the others are for later.
insert into {schema}.scheduled (job_id, run_at, lane, fencing_token, attempts, lease_seconds)
select id, clock_timestamp() + make_interval(secs => 3600 + k % 86400), lane, k % 2, k % 2, 30
  from filled where state = 'scheduled' order by id;

insert into {schema}.worker (worker, queues, details, started_at, seen_at, clock_difference_seconds)
select 'host-' || n || ':7:0000', array['queue-' || 1 + n % 8], '{"concurrency": 20}',
       clock_timestamp() - interval '1 day', clock_timestamp(), 0.001 * n
  from generate_series(1, 200) n;
insert into {schema}.lease (job_id, fencing_token, seq, expires_at, claimed_at, lane, attempts,
                            crashes, snoozes, lease_seconds, started, worker)
select id, 1, k, clock_timestamp() + interval '1 hour', clock_timestamp(), lane, 0, 0, 0, 3600,
       true, 'host-' || 1 + k % 200 || ':7:0000'
  from filled where state = 'running' order by id;

-- The endings: every twentieth success is a second attempt after a lost lease, whose late write was
-- refused; a dead job has failed five times, a quarantined one was lost three times.
insert into {schema}.attempt (job_id, fencing_token, claimed_at, at, lease_expired_at, started,
                              final, outcome, worker, result, error)
select id, token, at + make_interval(secs => 60 * token),
       at + make_interval(secs => 60 * token + 1),
       case when outcome = 'expired' then at + make_interval(secs => 60 * token) end,
       outcome <> 'cancelled', token = tokens and state in ('succeeded', 'failed', 'cancelled'),
       outcome, 'host-' || 1 + k % 200 || ':7:0000',
       case when outcome = 'succeeded' then jsonb_build_object('charged', k) end,
       case when outcome = 'failed' then '{"type": "Timeout", "message": "no answer"}'::jsonb end
  from (select *, case state when 'failed' then 5 when 'quarantined' then 3
                             when 'scheduled' then k % 2 when 'cancelled' then 1
                             else 1 + (k % 20 = 7)::int end as tokens
          from filled where state not in ('queued', 'running')) f,
       generate_series(1, tokens) token,
       lateral (select case when state = 'quarantined' or (state = 'succeeded' and token < tokens)
                            then 'expired'
                            when state = 'scheduled' then 'failed' else state end as outcome) o
 order by id, token;

insert into {schema}.quarantine (job_id, fencing_token, at, lane, attempts, crashes, snoozes,
                                 lease_seconds, reason, evidence)
select id, 3, at + interval '200 seconds', lane, 0, 3, 0, 30, 'crashed_too_often', '{}'
  from filled where state = 'quarantined' order by id;

insert into {schema}.refusal (job_id, stale_token, current_token, reason, operation, worker,
                              late_seconds, at)
select id, 1, 2, 'token_mismatch', 'complete', 'host-1:7:0000', 4.2, at + interval '90 seconds'
  from filled where state = 'succeeded' and k % 20 = 7 order by id;

insert into {schema}.idempotency (task, key, job_id, payload_digest, created_at)
select task, 'order-' || k, id, '\x00', at from filled where k % 10 = 0;

drop table filled;
analyze;
