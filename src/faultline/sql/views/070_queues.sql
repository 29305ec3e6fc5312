-- queues: what waits where? (Counts all rows, each once: for people, not for a hot path.)
create or replace view {schema}.queues as
with counted as materialized (
    select n.queue,
           sum(p.jobs) filter (where p.place = 'ready') as queued,
           sum(p.jobs) filter (where p.place = 'scheduled') as scheduled,
           sum(p.jobs) filter (where p.place = 'lease') as running,
           sum(p.jobs) filter (where p.place = 'quarantine') as quarantined
      from (select 'ready' as place, lane, count(*) as jobs from {schema}.ready group by lane
            union all
            select 'scheduled', lane, count(*) from {schema}.scheduled group by lane
            union all
            select 'lease', lane, count(*) from {schema}.lease group by lane
            union all
            select 'quarantine', lane, count(*) from {schema}.quarantine group by lane) p
      join {schema}.lane n on n.lane = p.lane
     group by n.queue
)
select q.queue, q.paused,
       coalesce(c.queued, 0)::bigint as queued,
       coalesce(c.scheduled, 0)::bigint as scheduled,
       coalesce(c.running, 0)::bigint as running,
       coalesce(c.quarantined, 0)::bigint as quarantined
  from {schema}.queue q
  left join counted c on c.queue = q.queue;
