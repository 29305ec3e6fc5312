-- depths: how much waits where, for whoever asks every second? As queues, but it never counts for
-- long: at most 10,000 rows of a lane, and of the other places at most 100,000 rows altogether.
-- Where there are more, the counts are lower bounds and capped says so.
create or replace view {schema}.depths as
with lanes as (
    select n.lane, n.queue,
           (select count(*) from (select from {schema}.ready r
                                   where r.lane = n.lane limit 10001) c) as queued
      from {schema}.lane n
), elsewhere as (
    select lane, count(*) filter (where place = 'scheduled') as scheduled,
           count(*) filter (where place = 'lease') as running,
           count(*) filter (where place = 'quarantine') as quarantined,
           sum(count(*)) over () > 100000 as capped
      from ((select 'lease' as place, lane from {schema}.lease limit 100001)
            union all
            (select 'quarantine', lane from {schema}.quarantine limit 100001)
            union all
            (select 'scheduled', lane from {schema}.scheduled limit 100001)) p
     group by lane
)
select q.queue, q.paused,
       coalesce(sum(least(l.queued, 10000)), 0)::bigint as queued,
       coalesce(sum(e.scheduled), 0)::bigint as scheduled,
       coalesce(sum(e.running), 0)::bigint as running,
       coalesce(sum(e.quarantined), 0)::bigint as quarantined,
       coalesce(bool_or(l.queued > 10000), false)
           or coalesce((select bool_or(capped) from elsewhere), false) as capped
  from {schema}.queue q
  left join lanes l on l.queue = q.queue
  left join elsewhere e on e.lane = l.lane
 group by q.queue, q.paused;
