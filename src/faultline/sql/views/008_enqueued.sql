-- enqueued: what was asked for, into which queue? (As jobs, but not where each stands: many of them
-- are read quickly.)
create or replace view {schema}.enqueued as
select j.id, n.queue, n.priority, j.task, j.producer, j.created_at
  from {schema}.job j
  join {schema}.lane n on n.lane = j.lane;
