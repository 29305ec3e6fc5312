-- lane_of: the lane of one priority of one queue, made on first use.
create or replace function {schema}.lane_of(queue text, priority integer) returns integer
language plpgsql
as $$
#variable_conflict use_column
declare
    v_lane integer;
begin
    select lane into v_lane from lane
     where queue = lane_of.queue and priority = lane_of.priority;
    if found then
        return v_lane;
    end if;
    return make_lane(lane_of.queue, lane_of.priority);
end $$;

-- make_lane: on the first use of a queue or priority.
--
-- Locks    the names: a second user of a new lane waits for the first one's commit, 5 s at most.
create or replace function {schema}.make_lane(queue text, priority integer) returns integer
language plpgsql
set lock_timeout = '5s'
as $$
#variable_conflict use_column
declare
    v_lane integer;
begin
    if make_lane.queue is null or length(make_lane.queue) not between 1 and 128 then
        perform invalid(format('queue name %L must have 1 to 128 characters', make_lane.queue));
    end if;
    insert into queue (queue) values (make_lane.queue) on conflict do nothing;
    insert into lane (queue, priority) values (make_lane.queue, make_lane.priority)
        on conflict do nothing;
    select lane into strict v_lane from lane
     where queue = make_lane.queue and priority = make_lane.priority;
    return v_lane;
end $$;

-- lanes: the lanes of these queues, highest priority first; what a worker passes to claim.
create or replace function {schema}.lanes(queues text[])
returns table (lane integer, queue text, priority integer)
language sql stable
{definer}
begin atomic
    select l.lane, l.queue, l.priority
      from {schema}.lane l
     where l.queue = any (lanes.queues)
     order by l.priority desc, array_position(lanes.queues, l.queue), l.lane;
end;

-- pause: stop or resume the claiming of a queue; jobs already running go on.
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
end $$;
