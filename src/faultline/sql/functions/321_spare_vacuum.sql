-- spare_vacuum: when a pinned snapshot stops vacuum, autovacuum reads the busy tables all the same
-- whenever it comes, and each time they are larger. Every two seconds, as tens of thousands of jobs
-- a second need it otherwise, that cost a drain a quarter of its rate within a minute. So while
-- vacuum is in vain, autovacuum is to come when what it had to leave has doubled, or after a minute
-- (`at_most`, which may be less). Answers with how much that is, if it has said so just now; else
-- NULL. What reconcilers call every few seconds: it asks the server's statistics, reads no table,
-- and costs a few microseconds.
--
-- Of each lease there is one dead row: what is dead and was not inserted since the last vacuum,
-- this has left. The other tables are judged by that: the snapshot is the same, and each job leaves
-- as much in ready. A renewal leaves a dead row, too: at worst, a minute is waited for a vacuum
-- that would not have been in vain.
--
-- Ensures  autovacuum comes by itself when dead rows have doubled, also if nobody calls this again.
-- Locks    SHARE UPDATE EXCLUSIVE on each table, which nobody but vacuum and the like waits for;
--          leaves out what is being vacuumed, gives up after 100 ms (55P03).
-- Raises   LF003 at_most is more than a minute.
create or replace function {schema}.spare_vacuum(at_most interval default '1 minute')
returns bigint
language plpgsql
{definer}
set lock_timeout = '100ms'
as $$
declare
    v_usual constant bigint := 20000;
    v_lease oid := '{schema}.lease'::regclass;
    v_left bigint := pg_stat_get_dead_tuples(v_lease) - pg_stat_get_ins_since_vacuum(v_lease);
    v_vacuumed_at timestamptz := greatest(pg_stat_get_last_autovacuum_time(v_lease),
                                          pg_stat_get_last_vacuum_time(v_lease));
    v_in_vain boolean := v_left >= 10 * v_usual and v_vacuumed_at > clock_timestamp() - at_most;
    v_doubled bigint := least(2 * v_left, 2000000000);
    v_name text;
    v_threshold bigint;
    v_spared boolean := false;
begin
    if at_most > interval '1 minute' then
        perform invalid(format('at_most is %s, it must be a minute or less', at_most));
    end if;
    foreach v_name in array array['lease', 'ready', 'scheduled'] loop
        v_threshold := (select o.option_value::bigint
                          from pg_class c, pg_options_to_table(c.reloptions) o
                         where c.oid = ('{schema}.' || v_name)::regclass
                           and o.option_name = 'autovacuum_vacuum_threshold');
        continue when case when v_in_vain
                           then v_threshold between v_doubled * 3 / 4 and v_doubled * 4 / 3
                           else v_threshold < 20 * v_usual end;
        continue when exists (select from pg_locks l join pg_database d on d.oid = l.database
                               where d.datname = current_database()
                                 and l.relation = ('{schema}.' || v_name)::regclass
                                 and l.mode = 'ShareUpdateExclusiveLock' and l.granted);
        if v_in_vain then
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
    return case when v_spared then v_left end;
end $$;
