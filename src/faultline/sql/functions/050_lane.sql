-- lane_of: the lane of one priority of one queue, made on first use.
--
-- Locks    only on first use: a second user of a new lane waits for the first one's commit.
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
    if lane_of.queue is null or length(lane_of.queue) not between 1 and 128 then
        perform invalid(format('queue name %L must have 1 to 128 characters', lane_of.queue));
    end if;
    insert into queue (queue) values (lane_of.queue) on conflict do nothing;
    insert into lane (queue, priority) values (lane_of.queue, lane_of.priority)
        on conflict do nothing;
    select lane into strict v_lane from lane
     where queue = lane_of.queue and priority = lane_of.priority;
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
