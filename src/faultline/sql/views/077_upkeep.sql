-- upkeep: is anything left undone that somebody should do? One row; at most 100,000 leases are
-- counted, and the hundred oldest jobs looked at.
--
-- retention_behind_seconds: for how long a month should have been forgotten that was not, or a
-- refusal; what is kept for good reason (a pointer leads to it, or it ended lately) does not count.
create or replace view {schema}.upkeep as
with leases as (
    select count(*) as held, count(*) filter (where expires_at <= clock_timestamp()) as expired
      from (select l.expires_at from {schema}.lease l limit 100001) l
), horizon as (
    select clock_timestamp() - make_interval(days => s.retention_days) as at
      from {schema}.setting s
), kept as (
    select (date_trunc('month', j.created_at at time zone 'UTC') + interval '1 month')
               at time zone 'UTC' as until
      from (select j.id, j.created_at from {schema}.job j order by j.id limit 100) j, horizon h
     where j.created_at < h.at
       and not exists (select from {schema}.ready r where r.job_id = j.id)
       and not exists (select from {schema}.scheduled s where s.job_id = j.id)
       and not exists (select from {schema}.lease l where l.job_id = j.id)
       and not exists (select from {schema}.quarantine q where q.job_id = j.id)
       and not exists (select from {schema}.attempt a where a.job_id = j.id and a.at >= h.at)
     order by j.id limit 1
), refused as (
    select r.at as until from {schema}.refusal r order by r.id limit 1
)
select (l.held - l.expired) as live_leases, l.expired as expired_leases,
       greatest(0, extract(epoch from clock_timestamp()
           - (select min(s.run_at) from {schema}.scheduled s)))::double precision
           as scheduled_overdue_seconds,
       greatest(0, extract(epoch from h.at - least((select until from kept),
                                                   (select until from refused))))::double precision
           as retention_behind_seconds
  from leases l, horizon h;
