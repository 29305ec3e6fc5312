-- lane_of: the lane of one priority of one queue, made on first use.
--
-- Raises   as make_lane.
create or replace function {schema}.lane_of(queue text, priority integer) returns integer
language plpgsql
as $$
#variable_conflict use_column
declare
    v_lane integer;
begin
    select lane into v_lane from lane
     where queue = lane_of.queue and priority = lane_of.priority and not counted;
    if found then
        return v_lane;
    end if;
    return make_lane(lane_of.queue, lane_of.priority);
end $$;

-- make_lane: the lane of a queue or priority that is new, or that is not among the first 100 lanes
-- of its queue. Each lane in use, that is with a ready job, costs every claim of its queue. So of
-- the later lanes none is used where 1,000 are in use already. The first 100 are never refused: no
-- producer can shut out another by using many. A lane is never deleted: jobs name it.
--
-- Two transactions that use a lane at once do not see each other. What a claim pays is bounded by
-- `lanes` all the same.
--
-- Locks    the names: a second user of a new lane waits for the first one's commit, 5 s at most.
-- Raises   LF003 for a bad name, or a lane more than 1,000; 55P03 when the wait is over.
create or replace function {schema}.make_lane(queue text, priority integer) returns integer
language plpgsql
set lock_timeout = '5s'
as $$
#variable_conflict use_column
declare
    v_lane integer;
    v_counted boolean;
begin
    if make_lane.queue is null or length(make_lane.queue) not between 1 and 128 then
        perform invalid(format('queue name %L must have 1 to 128 characters', make_lane.queue));
    end if;
    select lane, counted into v_lane, v_counted from lane
     where queue = make_lane.queue and priority = make_lane.priority;
    v_counted := coalesce(v_counted, (select count(*) >= 100 from (
        select from lane where queue = make_lane.queue limit 100) few));
    if v_counted and not exists (select from ready r where r.lane = v_lane)
       and lanes_in_use(make_lane.queue, 1000) >= 1000 then
        perform invalid(format(
            'queue %L has jobs of 1,000 priorities waiting, which is the most: use few priorities, '
            'and more queues where you need an order', make_lane.queue));
    end if;
    if v_lane is not null then
        return v_lane;
    end if;
    insert into queue (queue) values (make_lane.queue) on conflict do nothing;
    insert into lane (queue, priority, counted)
    values (make_lane.queue, make_lane.priority, v_counted)
        on conflict do nothing;
    select lane into strict v_lane from lane
     where queue = make_lane.queue and priority = make_lane.priority;
    return v_lane;
end $$;

-- busy_lanes: the lanes that have a ready job, each found by one look at the index.
create or replace function {schema}.busy_lanes() returns setof integer
language plpgsql stable
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    return query
    with recursive busy(lane) as (
        (select r.lane from ready r order by r.lane, r.seq limit 1)
        union all
        select (select r.lane from ready r where r.lane > b.lane order by r.lane, r.seq limit 1)
          from busy b where b.lane is not null)
    select b.lane from busy b where b.lane is not null;
end $$;

-- lanes_in_use: how many lanes of the queue have a ready job, counted up to at_most.
create or replace function {schema}.lanes_in_use(queue text, at_most integer) returns bigint
language plpgsql
set enable_seqscan = off
as $$
begin
    return (select count(*)
              from (select from busy_lanes() b
                     cross join lateral (select from lane l
                                          where l.lane = b and l.queue = lanes_in_use.queue
                                          limit 1) l
                     limit lanes_in_use.at_most) used);
end $$;

-- lanes: the lanes of these queues, highest priority first; what a worker passes to claim. Where
-- there are more than 20, only lanes with a ready job, of each queue the 1,000 highest, and one
-- lane of each queue, so that a worker knows it: other idle lanes cost a claim nothing. A worker
-- asks again about once a second, and after each notification.
create or replace function {schema}.lanes(queues text[])
returns table (lane integer, queue text, priority integer)
language plpgsql stable
{definer}
as $$
declare
    v_lanes bigint := (select count(*) from (select from lane l
                                              where l.queue = any (lanes.queues) limit 1001) l);
begin
    if v_lanes <= 20 then
        return query
        select l.lane, l.queue, l.priority
          from lane l
         where l.queue = any (lanes.queues)
         order by l.priority desc, array_position(lanes.queues, l.queue), l.lane;
    else
        return query
        select l.lane, l.queue, l.priority
          from lanes_with_jobs(lanes.queues, v_lanes <= 1000) l
         order by l.priority desc, array_position(lanes.queues, l.queue), l.lane;
    end if;
end $$;

-- lanes_with_jobs: of each of these queues the lanes in use, the 1,000 of the highest priorities,
-- and its lane of priority 0, or its highest. Where the queues have few lanes each is looked at, so
-- that other queues' lanes cost nothing; where they have many, the lanes in use are.
create or replace function {schema}.lanes_with_jobs(queues text[], few boolean)
returns setof {schema}.lane
language plpgsql stable
set enable_seqscan = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    v_busy integer[];
begin
    if lanes_with_jobs.few then
        v_busy := array(select k.lane from lane k
                         where k.queue = any (lanes_with_jobs.queues)
                           and (select true from ready r where r.lane = k.lane limit 1));
    else
        v_busy := array(select b from busy_lanes() b);
    end if;
    return query
    select l.lane, l.queue, l.priority, l.counted
      from (select k.*, row_number() over (partition by k.queue order by k.priority desc) as place
              from unnest(v_busy) b
             cross join lateral (select * from lane k where k.lane = b limit 1) k
             where k.queue = any (lanes_with_jobs.queues)) l
     where l.place <= 1000
    union
    select f.lane, f.queue, f.priority, f.counted
      from unnest(lanes_with_jobs.queues) q
     cross join lateral (
           (select * from lane k where k.queue = q and k.priority = 0)
            union all
           (select * from lane k where k.queue = q order by k.priority desc limit 1)
            limit 1) f;
end $$;

-- pause: stop or resume the claiming of a queue; jobs already running go on.
--
-- Locks    the queue's row, for 5 s at most.
create or replace function {schema}.pause(queue text, paused boolean default true) returns void
language plpgsql
{definer}
as $$
#variable_conflict use_column
begin
    update queue set paused = pause.paused where queue = pause.queue;
    if not found then
        perform invalid(format('there is no queue %L: a queue exists from its first job on',
                               pause.queue));
    end if;
    if not pause.paused then
        perform wake(array(select lane from lane where queue = pause.queue));
    end if;
    perform bound_brief_hold();
end $$;
