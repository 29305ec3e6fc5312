-- workers: who is there, when was it last seen, and what does it hold?
create or replace view {schema}.workers as
select w.worker, w.queues, w.details, w.started_at, w.seen_at,
       extract(epoch from clock_timestamp() - w.seen_at) as silent_seconds,
       w.clock_difference_seconds,
       (select count(*) from {schema}.lease l where l.worker = w.worker) as leases,
       exists (select from {schema}.sleeper s
                where s.worker = w.worker and s.until > clock_timestamp()) as asleep
  from {schema}.worker w;
