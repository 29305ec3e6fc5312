-- backlog: how much work is there for workers of these queues (NULL: of all), for whoever decides
-- how many there should be? Jobs that could be claimed now and jobs that run, both counted only to
-- at_most, and for how long the oldest one waits (0: none does). What waits in a paused queue needs
-- no worker; what runs there still does.
--
-- Jobs that are due but not promoted yet count: where no worker is left, nobody promotes.
--
-- Reads    at most at_most rows of ready; what is due in scheduled, and lease, until there are
--          enough; never the jobs.
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
    v_all integer[];
    v_waiting bigint;
    v_due bigint;
    v_overdue double precision;
begin
    if coalesce(backlog.at_most, 0) < 1 then
        perform invalid(format('at_most is %s, it must be a whole number from 1 on',
                               coalesce(backlog.at_most::text, 'NULL')));
    end if;
    select array_agg(distinct q.queue) filter (where not q.paused),
           array_agg(n.lane) filter (where not q.paused), array_agg(n.lane)
      into v_queues, v_lanes, v_all
      from queue q join lane n on n.queue = q.queue
     where backlog.queues is null or q.queue = any (backlog.queues);
    select count(*) into v_waiting
      from (select from unnest(v_lanes) n(lane)
             cross join lateral (select from ready r
                                  where r.lane = n.lane limit backlog.at_most) r
             limit backlog.at_most) r;
    select count(*), coalesce(extract(epoch from v_now - min(s.run_at)), 0) into v_due, v_overdue
      from (select s.run_at from scheduled s
             where s.run_at <= v_now and s.lane = any (v_lanes)
             order by s.run_at limit backlog.at_most) s;
    jobs := least(v_waiting + v_due, backlog.at_most);
    select count(*) into running
      from (select from lease l where l.lane = any (v_all) limit backlog.at_most) l;
    select greatest(v_overdue, max(w.oldest_seconds)) into oldest_seconds
      from waiting w where w.queue = any (v_queues);
    return next;
end $$;
