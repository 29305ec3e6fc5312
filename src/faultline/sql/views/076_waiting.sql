-- waiting: for how long has the oldest waiting job of each queue been due? A job that waits again
-- after a failure has had its pause, so the oldest of those that were never claimed is looked for,
-- among the first hundred of a lane; if there is none, it is since the first one's last attempt.
-- priorities: how many priorities of the queue have such a job; a claim looks at each.
create or replace view {schema}.waiting as
select n.queue,
       max(extract(epoch from clock_timestamp() - coalesce(
           -- One that was made due before its time has waited since it came, at most.
           case when jsonb_typeof(j.headers -> 'faultline-due') = 'number'
                 and (j.headers -> 'faultline-due')::double precision
                     <= extract(epoch from clock_timestamp())
                then to_timestamp((j.headers ->> 'faultline-due')::double precision) end,
           j.created_at, again.at)))::double precision as oldest_seconds,
       count(*) as priorities
  from {schema}.lane n
  join lateral (select r.job_id from {schema}.ready r
                 where r.lane = n.lane order by r.seq limit 1) front on true
  left join lateral (select f.job_id
                       from (select r.job_id, r.fencing_token from {schema}.ready r
                              where r.lane = n.lane order by r.seq limit 100) f
                      where f.fencing_token = 0 limit 1) new on true
  left join lateral (select j.headers, j.created_at from {schema}.job j
                      where j.id = new.job_id limit 1) j on true
  left join lateral (select a.at from {schema}.attempt a
                      where a.job_id = front.job_id
                      order by a.fencing_token desc limit 1) again on true
 group by n.queue;
