-- compact: when a pinned snapshot stops vacuum, the dead entries of ready pile up, and whoever
-- claims from the beginning of a lane walks over them. Copy the live rows, truncate, put them back:
-- 20 ms with 100,000 dead rows, 0.2 s with a million (`python -m bench.pinned`). Answers whether it
-- did.
--
-- A snapshot older than this sees ready empty, so it stays away while this database is dumped; see
-- is_being_dumped, and rescue for a dump that begins in the same moment.
-- Locks    ACCESS EXCLUSIVE on ready; gives up after 100 ms (55P03) rather than make the queue
--          wait. Held for 5 s at most after its end: call it in a transaction of its own.
create or replace function {schema}.compact() returns boolean
language plpgsql
{definer}
set lock_timeout = '100ms'
as $$
declare
    v_live ready[];
    v_few boolean;
begin
    perform insist_on_read_committed('compact');
    if is_being_dumped() then
        return false;
    end if;
    -- More would be copied with everybody waiting.
    v_few := (select count(*) from (select from ready limit 10001) few) <= 10000;
    if v_few then
        lock table ready in access exclusive mode;
        v_live := array(select r from ready r order by r.lane, r.seq);
        truncate ready;
        insert into ready select (unnest(v_live)).*;
    end if;
    perform bound_brief_hold();
    return v_few;
end $$;

-- is_being_dumped: whether a session of this database that may read ready has a snapshot that it
-- keeps, and has read the catalog in the same transaction, as every dump does first, whatever name
-- it goes by. Once it has locked ready, compact gives up by itself; this is about the moments
-- before that. A snapshot that is merely kept open does not count: it is what compaction is for.
-- Nor does any session that may not read ready, whatever it calls itself.
create or replace function {schema}.is_being_dumped() returns boolean
language plpgsql
as $$
begin
    return exists (
        select from pg_locks l join pg_stat_activity a on a.pid = l.pid
         where l.locktype = 'relation' and l.mode = 'AccessShareLock' and l.granted
           and l.relation < 16384  -- the server's own
           and a.backend_xmin is not null and a.datname = current_database()
           and a.pid <> pg_backend_pid()
           and has_table_privilege(a.usesysid, '{schema}.ready', 'select'));
end $$;

-- compact_if_bloated: the same, if there are at least 50,000 dead rows, five for each live one.
-- What reconcilers call every few seconds: it asks the server's statistics, reads no table, and
-- costs a few microseconds. They lag by a second, in which 10,000 jobs may come and go: whether the
-- live rows are few enough is counted by compact.
--
-- Where many ask, one of them tries, by lot: while something holds ready, every try makes the queue
-- wait for 100 ms in vain, and workers do not know of each other's tries.
-- Locks    as compact.
create or replace function {schema}.compact_if_bloated() returns boolean
language plpgsql
{definer}
as $$
declare
    v_live bigint := pg_stat_get_live_tuples('{schema}.ready'::regclass);
    v_dead bigint := pg_stat_get_dead_tuples('{schema}.ready'::regclass);
begin
    perform insist_on_read_committed('compact_if_bloated');
    if v_dead < 50000 or v_dead < 5 * v_live then
        return false;
    end if;
    if random() * workers_at_work() >= 1 then
        return false;
    end if;
    return compact();
end $$;
