-- backlog: how much work is there for workers of these queues (NULL: of all), for whoever decides
-- how many there should be? Jobs that could be claimed now and jobs that run, both counted only to
-- at_most, and for how long the oldest one waits (0: none does). What is paused needs no worker.
--
-- Jobs that are due but not promoted yet count: where no worker is left, nobody promotes.
--
-- Reads    at most at_most rows of each lane, of scheduled and of lease; never the jobs.
-- Raises   LF003 when at_most is not positive.
create or replace function {schema}.backlog(
    queues text[] default null, at_most integer default 10000
) returns table (jobs bigint, running bigint, oldest_seconds double precision)
language plpgsql stable
{pinned}
as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    v_queues text[];
    v_lanes integer[];
    v_waiting bigint;
    v_due bigint;
    v_overdue double precision;
begin
    if coalesce(backlog.at_most, 0) < 1 then
        perform invalid(format('at_most is %s, it must be a whole number from 1 on',
                               coalesce(backlog.at_most::text, 'NULL')));
    end if;
    select array_agg(distinct q.queue), array_agg(n.lane) into v_queues, v_lanes
      from queue q join lane n on n.queue = q.queue
     where not q.paused and (backlog.queues is null or q.queue = any (backlog.queues));
    select coalesce(sum(c.waiting), 0) into v_waiting
      from unnest(v_lanes) n(lane)
     cross join lateral (select count(*) as waiting
                           from (select from ready r
                                  where r.lane = n.lane limit backlog.at_most) r) c;
    select count(*), coalesce(extract(epoch from v_now - min(s.run_at)), 0) into v_due, v_overdue
      from (select s.lane, s.run_at from scheduled s
             where s.run_at <= v_now order by s.run_at limit backlog.at_most) s
     where s.lane = any (v_lanes);
    jobs := least(v_waiting + v_due, backlog.at_most);
    select count(*) into running
      from (select l.lane from lease l limit backlog.at_most) l where l.lane = any (v_lanes);
    select greatest(v_overdue, max(w.oldest_seconds)) into oldest_seconds
      from waiting w where w.queue = any (v_queues);
    return next;
end $$;
