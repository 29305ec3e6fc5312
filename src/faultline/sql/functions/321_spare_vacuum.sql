-- vacuum_left: how many dead rows a vacuum of these last seconds had to leave in lease, if that is
-- so many that the next one is not to come soon; else NULL.
--
-- Of each lease there is one dead row: what is dead and was not inserted since the last vacuum,
-- this has left. The other tables are judged by that: the snapshot is the same, and each job leaves
-- as much in ready. A renewal leaves a dead row, too: at worst, a minute is waited for a vacuum
-- that would not have been in vain.
create or replace function {schema}.vacuum_left(seconds double precision) returns bigint
language sql
return (select case when s.rows_left >= 200000
                     and s.vacuumed_at > clock_timestamp() - make_interval(secs => seconds)
                    then s.rows_left end
          from (select pg_stat_get_dead_tuples(t) - pg_stat_get_ins_since_vacuum(t) as rows_left,
                       greatest(pg_stat_get_last_autovacuum_time(t),
                                pg_stat_get_last_vacuum_time(t)) as vacuumed_at
                  from (select '{schema}.lease'::regclass::oid) lease(t)) s);

-- spare_vacuum: when a pinned snapshot stops vacuum, autovacuum reads the busy tables all the same
-- whenever it comes, and each time they are larger. Every two seconds, as tens of thousands of jobs
-- a second need it otherwise, that cost a drain a quarter of its rate within a minute. So while
-- vacuum is in vain, autovacuum is to come when what it had to leave has doubled, or within a
-- minute: after 50 s, so that where it looks once a minute it leaves out no look. Answers with how
-- much it had to leave, if the tables were told so just now; else NULL. What reconcilers call every
-- few seconds: it asks the server's statistics and reads no table.
--
-- Ensures  autovacuum comes by itself when dead rows have doubled, also if nobody calls this again.
-- Locks    SHARE UPDATE EXCLUSIVE on each table, which nobody but vacuum and the like waits for;
--          leaves out what is being vacuumed, gives up after 100 ms (55P03). Held for 5 s at most
--          after its end, since vacuum would stay away.
create or replace function {schema}.spare_vacuum() returns bigint
language plpgsql
{definer}
set lock_timeout = '100ms'
as $$
declare
    v_usual constant bigint := 20000;
    v_left bigint := vacuum_left(50);
    v_doubled bigint := least(2 * v_left, 2000000000);
    v_name text;
    v_threshold numeric;  -- somebody may have written it as 1e5
    v_spared boolean := false;
begin
    foreach v_name in array array['lease', 'ready', 'scheduled'] loop
        v_threshold := (select o.option_value::numeric
                          from pg_class c, pg_options_to_table(c.reloptions) o
                         where c.oid = ('{schema}.' || v_name)::regclass
                           and o.option_name = 'autovacuum_vacuum_threshold');
        continue when case when v_left is not null
                           then v_threshold between v_doubled * 3 / 4 and v_doubled * 4 / 3
                           else v_threshold < 20 * v_usual end;
        continue when exists (select from pg_locks l join pg_database d on d.oid = l.database
                               where d.datname = current_database()
                                 and l.relation = ('{schema}.' || v_name)::regclass
                                 and l.mode = 'ShareUpdateExclusiveLock' and l.granted);
        if v_left is not null then
            execute format('alter table {schema}.%I set (autovacuum_vacuum_threshold = %s, '
                           'autovacuum_vacuum_insert_threshold = %s)',
                           v_name, v_doubled, v_doubled);
            v_spared := true;
        else
            execute format('alter table {schema}.%I set (autovacuum_vacuum_threshold = %s)',
                           v_name, v_usual);
            execute format('alter table {schema}.%I reset (autovacuum_vacuum_insert_threshold)',
                           v_name);
        end if;
    end loop;
    perform bound_brief_hold();
    return case when v_spared then v_left end;
end $$;
