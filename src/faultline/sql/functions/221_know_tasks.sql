-- know_tasks: the worker serves these queues and has handlers for these tasks. Written down for
-- decline, doctor and the views, and up to 1,000 jobs of these queues that were declined for want
-- of one of these tasks become due now, at the ends of their lanes. Answers with how many. A worker
-- calls it when it starts: once, then again until it answers with fewer than 1,000. The second call
-- finds what was declined during the first.
--
-- Locks    the worker's own row, then scheduled rows with SKIP LOCKED. Held for 5 s at most. (I7)
-- Raises   LF003 bad argument.
create or replace function {schema}.know_tasks(
    worker text, queues text[], tasks text[]
) returns integer
language plpgsql
{pinned}
as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    v_taken scheduled[];
    v_due integer;
begin
    perform check_worker(know_tasks.worker);
    if know_tasks.tasks is null or array_position(know_tasks.tasks, null) is not null then
        perform invalid('tasks must be an array of task names, none of them NULL');
    end if;
    insert into worker (worker, queues, details, started_at, seen_at, tasks)
    values (know_tasks.worker, coalesce(know_tasks.queues, '{}'), '{}', v_now, v_now,
            know_tasks.tasks)
        on conflict (worker) do update set tasks = excluded.tasks;
    with taken as (
        delete from scheduled where job_id = any (array(
            select s.job_id from scheduled s
             where s.awaits = any (know_tasks.tasks)
               and (select l.queue from lane l where l.lane = s.lane)
                   = any (know_tasks.queues)
             limit 1000 for update skip locked))
        returning *)
    select coalesce(array_agg(taken::scheduled order by job_id), '{}') into v_taken from taken;
    v_due := cardinality(queue_up(v_taken, v_now));
    perform bound_brief_hold();
    return v_due;
end $$;
