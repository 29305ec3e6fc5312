-- wake: tell all who sleep on these lanes' queues, at once: there may be many jobs. A hint: polling
-- remains.
-- With settings of its own: the first verb that calls it may have no index scans (see decision 3).
create or replace function {schema}.wake(lanes integer[]) returns void
language plpgsql
set enable_seqscan = off
set enable_indexscan = on
set enable_indexonlyscan = on
as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
begin
    if exists (select from sleeper) then
        perform pg_notify('{schema}', queue)
           from (select distinct queue from lane where lane = any (wake.lanes)) l
          where exists (select from sleeper s where s.queue = l.queue and s.until > v_now);
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
            then abs(current_setting('faultline.{schema}_quiet_until', true)::bigint - 30000
                     - date_part('epoch', clock_timestamp()) * 1000) < 30000 end;

-- announce: tell those who sleep on this queue that it has a job.
--
-- A NOTIFY takes a global lock at commit (762 enqueues/s instead of 3,483 with 16 connections), so
-- it is sent only when somebody is recorded as asleep (3,201). And it wakes every session of the
-- database that listens to whatever channel, and then all the sleepers would ask for the one job:
-- 50 workers take all of two cores at 50 jobs a second. So where more than four sleep, the word is
-- `among N QUEUE` instead of `QUEUE`: about four of the N are to look at once. And such a word does
-- for N milliseconds, with more than 50 for 50; and where the next enqueue follows on its heels,
-- the next word does for N²/5, with more than 50 for half a second. Meanwhile they look by
-- themselves, one of them every five milliseconds (worker/sleeper.py).
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
          where queue = announce.queue and quiet_until < v_now + interval '1 minute') end;
    v_sleepers integer;
    v_quiet float8;  -- milliseconds
begin
    if v_quiet_until > v_now and announce.alone
       and v_now < transaction_timestamp() + interval '20 milliseconds' then
        perform know_quiet(announce.queue, v_quiet_until);
        return false;
    end if;
    select count(*) into v_sleepers
      from sleeper where queue = announce.queue and until > v_now;
    if v_sleepers > 4 then
        perform pg_notify('{schema}', format('among %s %s', v_sleepers, announce.queue));
    elsif v_sleepers > 0 then
        perform pg_notify('{schema}', announce.queue);
    end if;
    if v_sleepers > 4 and v_reads and (v_quiet_until > v_now) is not true then
        v_quiet := least(v_sleepers, 50);
        if v_quiet_until > v_now - interval '5 milliseconds' then
            v_quiet := v_quiet * v_quiet / 5;
        end if;
        v_quiet_until := v_now + v_quiet * interval '1 millisecond';
        insert into announcement (queue, quiet_until) values (announce.queue, v_quiet_until)
            on conflict do nothing;
        perform know_quiet(announce.queue, v_quiet_until);
    end if;
    return v_sleepers > 0;
end $$;

-- know_quiet: what is_quiet reads. Settings under our own name: a schema's may be that of a module,
-- and then nobody else can make one. Milliseconds, since a whole number is read the quickest.
create or replace function {schema}.know_quiet(queue text, quiet_until timestamptz) returns void
language sql volatile
begin atomic
    select set_config('faultline.{schema}_quiet_queue', queue, false),
           set_config('faultline.{schema}_quiet_until',
                      (extract(epoch from quiet_until) * 1000)::bigint::text, false);
end;

-- sleep: record that the worker is about to wait on these queues, for at most so many seconds.
-- Commit it, look for work once more, then wait for a notification on the channel named as the
-- schema. After `QUEUE` look at once. After `among N QUEUE` look at once in four of N cases, and in
-- any case four times more: at a random moment of the next 5 N milliseconds; of the 5 N after
-- those; and when these are over, of the next 5 N, or 250 if that is more; and of the next five
-- seconds. A new word among many for the same queue begins this anew; no other does. Who has just
-- gone to sleep does as after `among 50`: he may have missed a word. Forgets old announcements.
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
