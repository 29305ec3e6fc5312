-- queues: what waits where? (Counts rows: for people, not for a hot path.)
create or replace view {schema}.queues as
select q.queue, q.paused,
       (select count(*) from {schema}.ready r join {schema}.lane n on n.lane = r.lane
         where n.queue = q.queue) as queued,
       (select count(*) from {schema}.scheduled s join {schema}.lane n on n.lane = s.lane
         where n.queue = q.queue) as scheduled,
       (select count(*) from {schema}.lease l join {schema}.lane n on n.lane = l.lane
         where n.queue = q.queue) as running,
       (select count(*) from {schema}.quarantine p join {schema}.lane n on n.lane = p.lane
         where n.queue = q.queue) as quarantined
  from {schema}.queue q;
