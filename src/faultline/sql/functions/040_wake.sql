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

-- announce: tell the workers that sleep on this queue.
--
-- A NOTIFY takes a global lock at commit (762 enqueues/s instead of 3,483 with 16 connections), so
-- it is sent only when somebody is recorded as asleep (3,201). And it wakes every session of the
-- database that listens to whatever channel: 50 of them halve what one connection can enqueue. So
-- where many sleep, one announcement does for as many milliseconds as there are sleepers, at most
-- 50; they look again by themselves, until after that (see worker/pump.py).
--
-- The job of a transaction that goes on may be there only after they have looked. So only one that
-- is brief, and has written nothing else before, can rely on an announcement of another's; and one
-- that is not committed yet is nobody's to rely on. Under SERIALIZABLE announcements are neither
-- read nor written: two enqueues would each see that the other's is missing, and one be aborted.
-- One of far ahead is from before the clock was set back, and counts for nothing.
--
-- Ensures  it says whether somebody was told.
create or replace function {schema}.announce(queue text, alone boolean) returns boolean
language plpgsql
as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    v_quiet boolean := case when current_setting('transaction_isolation') = 'read committed' then
                           exists (select from announcement
                                    where queue = announce.queue and quiet_until > v_now
                                      and quiet_until < v_now + interval '1 minute') end;
    v_sleepers integer;
begin
    if v_quiet and announce.alone
       and v_now < transaction_timestamp() + interval '20 milliseconds' then
        return false;
    end if;
    select count(*) into v_sleepers
      from sleeper where queue = announce.queue and until > v_now;
    if v_sleepers > 0 then
        perform pg_notify('{schema}', announce.queue);
    end if;
    if v_sleepers > 4 and not v_quiet then
        insert into announcement (queue, quiet_until)
        values (announce.queue, v_now + least(v_sleepers, 50) * interval '1 millisecond')
            on conflict do nothing;
    end if;
    return v_sleepers > 0;
end $$;

-- sleep: record that the worker is about to wait on these queues, for at most so many seconds.
-- Commit it, look for work once more, then wait for a notification on the channel named as the
-- schema; and after one look again within 50 ms, and from then on within 100. Forgets old
-- announcements.
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
