-- wake: tell the workers that sleep on these lanes' queues. A hint: polling remains.
-- With settings of its own: the first verb that calls it may have no index scans (see decision 3).
create or replace function {schema}.wake(lanes integer[]) returns void
language plpgsql
set enable_seqscan = off
set enable_indexscan = on
set enable_indexonlyscan = on
as $$
#variable_conflict use_column
begin
    if exists (select from sleeper) then
        perform announce(l.queue, false)
           from (select distinct queue from lane where lane = any (wake.lanes)) l;
    end if;
end $$;

-- is_quiet: whether this session knows of an announcement that does for a job of now (see
-- announce), in a transaction that began just now; by its own clock, since the caller may have
-- waited. To know saves an enqueue the look, most of what the sleepers cost it. It is a setting of
-- the session, and so gone with a transaction that is rolled back; a moment more than a minute
-- ahead counts for nothing.
--
-- An expression that the planner puts in place of the call; CASE, since a setting that was taken
-- back is empty, which is no number.
create or replace function {schema}.is_quiet(queue text) returns boolean
language sql volatile
return case when current_setting('faultline.{schema}_quiet_queue', true) = queue
             and clock_timestamp() < transaction_timestamp() + interval '20 milliseconds'
            then abs(current_setting('faultline.{schema}_quiet_until', true)::double precision
                     - date_part('epoch', clock_timestamp()) - 30) < 30 end;

-- announce: tell the workers that sleep on this queue.
--
-- A NOTIFY takes a global lock at commit (762 enqueues/s instead of 3,483 with 16 connections), so
-- it is sent only when somebody is recorded as asleep (3,201). And it wakes every session of the
-- database that listens to whatever channel: 50 of them halve what one connection can enqueue. So
-- where many sleep, one announcement does for as many milliseconds as there are sleepers, for more
-- from 25 on, for 100 at most; they look again by themselves, until after that (worker/ears.py).
--
-- The job of a transaction that goes on may be there only after they have looked. So only one that
-- is brief, and has written nothing else before, can rely on an announcement of another's; and one
-- that is not committed yet is nobody's to rely on. Under SERIALIZABLE announcements are neither
-- read nor written in their table: two enqueues would each see that the other's is missing, and one
-- be aborted.
-- One of far ahead is from before the clock was set back, and counts for nothing.
--
-- Ensures  it says whether somebody was told; the session knows of the announcement that will do.
create or replace function {schema}.announce(queue text, alone boolean) returns boolean
language plpgsql
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    v_reads boolean := current_setting('transaction_isolation') = 'read committed';
    v_quiet_until timestamptz := case when v_reads then
        (select max(quiet_until) from announcement
          where queue = announce.queue and quiet_until > v_now
            and quiet_until < v_now + interval '1 minute') end;
    v_sleepers integer;
begin
    if v_quiet_until > v_now and announce.alone
       and v_now < transaction_timestamp() + interval '20 milliseconds' then
        perform know_quiet(announce.queue, v_quiet_until);
        return false;
    end if;
    select count(*) into v_sleepers
      from sleeper where queue = announce.queue and until > v_now;
    if v_sleepers > 0 then
        perform pg_notify('{schema}', announce.queue);
    end if;
    if v_sleepers > 4 and v_reads and v_quiet_until is null then
        v_sleepers := least(v_sleepers, 50);
        v_quiet_until := v_now + greatest(v_sleepers, v_sleepers * v_sleepers / 25)
                                 * interval '1 millisecond';
        insert into announcement (queue, quiet_until) values (announce.queue, v_quiet_until)
            on conflict do nothing;
        perform know_quiet(announce.queue, v_quiet_until);
    end if;
    return v_sleepers > 0;
end $$;

-- know_quiet: what is_quiet reads. Settings under our own name: a schema's may be that of a module,
-- and then nobody else can make one. A numeric, since a session may have floats rounded.
create or replace function {schema}.know_quiet(queue text, quiet_until timestamptz) returns void
language sql volatile
begin atomic
    select set_config('faultline.{schema}_quiet_queue', queue, false),
           set_config('faultline.{schema}_quiet_until',
                      extract(epoch from quiet_until)::text, false);
end;

-- sleep: record that the worker is about to wait on these queues, for at most so many seconds.
-- Commit it, look for work once more, then wait for a notification on the channel named as the
-- schema; and after one look again within 50 ms, once more 50 ms later, and a last time between 110
-- and 150 ms after it. Forgets old announcements.
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
    delete from announcement a
     using (select ctid from announcement
             where quiet_until not between v_now - interval '1 minute'
                                       and v_now + interval '1 minute'
             limit 10000 for update skip locked) old
     where a.ctid = old.ctid;
end $$;

-- awake: the worker is no longer waiting.
create or replace function {schema}.awake(worker text) returns void
language plpgsql
{definer}
as $$
begin
    delete from sleeper s where s.worker = awake.worker;
end $$;
