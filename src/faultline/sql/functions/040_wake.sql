-- wake: tell the workers that sleep on these lanes' queues. A hint: polling remains.
--
-- A NOTIFY takes a global lock at commit (762 enqueues/s instead of 3,483 with 16 connections), so
-- it is sent only when somebody is recorded as asleep (3,201).
create or replace function {schema}.wake(lanes integer[]) returns void
language plpgsql
as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
begin
    if not exists (select from sleeper) then
        return;
    end if;
    perform pg_notify('{schema}', asleep.queue)
       from (select distinct s.queue
               from lane l
               join sleeper s on s.queue = l.queue
              where l.lane = any (wake.lanes) and s.until > v_now) asleep;
end $$;

-- sleep: record that the worker is about to wait on these queues, for at most so many seconds.
-- Commit it, look for work once more, then wait for a notification on the channel named as the
-- schema.
--
-- Raises   LF003 bad argument.
create or replace function {schema}.sleep(worker text, queues text[], seconds double precision)
returns void
language plpgsql
{definer}
as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
begin
    perform check_worker(sleep.worker);
    if sleep.seconds is null or not sleep.seconds between 0 and 1e6 then
        perform invalid(format('seconds is %s, it must be from 0 to 1e6', sleep.seconds));
    end if;
    insert into sleeper (queue, worker, until)
    select distinct q, sleep.worker, v_now + make_interval(secs => sleep.seconds)
      from unnest(sleep.queues) q
     order by q
        on conflict (queue, worker) do update set until = excluded.until;
end $$;

-- awake: the worker is no longer waiting.
create or replace function {schema}.awake(worker text) returns void
language plpgsql
{definer}
as $$
begin
    delete from sleeper s where s.worker = awake.worker;
end $$;
