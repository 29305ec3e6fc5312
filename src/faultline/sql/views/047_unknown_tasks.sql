-- unknown_tasks: which tasks do declined jobs wait for? `jobs` counts up to 10,000 of a task, and
-- next_run_at is the soonest of those. is_known: a worker that was seen in the last minute has a
-- handler. At most 1,000 tasks, by name.
--
-- Reads only the index of the declined jobs, one look for each task, and the rows that it counts.
create or replace view {schema}.unknown_tasks as
with recursive awaited(task) as (
    (select s.awaits from {schema}.scheduled s
      where s.awaits is not null order by s.awaits limit 1)
    union all
    select (select s.awaits from {schema}.scheduled s
             where s.awaits > a.task order by s.awaits limit 1)
      from awaited a where a.task is not null
), tasks as materialized (
    select a.task from awaited a where a.task is not null limit 1000
)
select t.task, counted.jobs, counted.next_run_at,
       exists (select from {schema}.worker w
                where t.task = any (w.tasks)
                  and w.seen_at > clock_timestamp() - interval '1 minute') as is_known
  from tasks t
 cross join lateral (
       select count(*) as jobs, min(c.run_at) as next_run_at
         from (select s.run_at from {schema}.scheduled s
                where s.awaits = t.task limit 10000) c) counted;
