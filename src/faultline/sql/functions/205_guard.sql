-- The guard on the user's own table: nobody writes to it outside a fence.

-- check_guard: the trigger of a guarded table. The transaction has opened a fence, which is checked
-- at its COMMIT, or the session logged in as one of the roles that the trigger names and may run no
-- jobs.
--
-- Ensures  what a worker writes to the table commits while its lease is alive, or not at all. (I3)
-- Raises   LF006, with the table and the operation as JSON in the detail.
create or replace function {schema}.check_guard() returns trigger
language plpgsql
{pinned}
as $$
declare
    -- The name of the log-in, and no membership: a worker may be a member of an exempt role, and
    -- SET ROLE. Without arguments tg_argv is NULL, and nobody is exempt.
    v_exempt boolean := coalesce(session_user = any (tg_argv), false);
begin
    -- It may have become a worker since guard looked, or be a worker with the name of a role that
    -- was dropped. A superuser is in every role. Installed without roles there is none to be in.
    if v_exempt and pg_has_role(session_user, to_regrole('{schema}_worker'), 'member') then
        v_exempt := (select rolsuper from pg_roles where rolname = session_user);
    end if;
    if v_exempt
       or exists (select from fence_tx f where f.txid = pg_current_xact_id_if_assigned()) then
        return null;  -- heeded neither for a statement nor after a row
    end if;
    raise exception using
        errcode = 'LF006',
        message = format('%s on the guarded table %I.%I needs a fence, opened before it in the '
                         'same transaction: with ctx.transaction() or ctx.fence(connection) in a '
                         'handler, with select {schema}.fence(job_id, token) in SQL',
                         tg_op, tg_table_schema, tg_table_name),
        detail = json_build_object('table', format('%I.%I', tg_table_schema, tg_table_name),
                                   'operation', tg_op),
        hint = 'Whoever writes to it and runs no jobs has to be exempt, by the name it logs in '
               'with, and not in {schema}_worker: see the exempt_roles of {schema}.guard.';
end $$;

-- guard_tree: the table and all its partitions or children, parents first.
--
-- Runs with the rights of its caller, as do guard and unguard: who does not own a table can neither
-- guard it nor the contrary.
-- Raises   LF003 if there is one that cannot be guarded.
create or replace function {schema}.guard_tree(target regclass)
returns table (name regclass, partitioned boolean)
language plpgsql
set search_path = {schema}, pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_tree oid[] := array(
        with recursive tree (id, depth) as (
            select guard_tree.target::oid, 0
            union select inhrelid, depth + 1 from pg_inherits join tree on inhparent = id)
        select id from tree group by id order by max(depth), id);
    v_wrong text;
begin
    select case
        when oid is null then 'there is no such table'
        when relkind not in ('r', 'p') then format('%s is %s: only tables can be guarded',
            id::regclass, case relkind when 'v' then 'a view' when 'm' then 'a materialized view'
                          when 'f' then 'a foreign table' else 'no table' end)
        when relnamespace in ('{schema}'::regnamespace, 'pg_catalog'::regnamespace)
            then format('%s is none of your tables: it cannot be guarded', id::regclass)
        when inhparent is not null then format('%s is a part of %s: guard or unguard that, with '
                                               'all its parts', id::regclass, inhparent::regclass)
        else format('%s belongs to %s: only its owner can guard it', id::regclass,
                    relowner::regrole)
        end into v_wrong
      from unnest(v_tree) with ordinality u(id, n)
      left join pg_class on oid = id
      left join pg_inherits on inhrelid = id and n = 1
     where coalesce(relkind not in ('r', 'p') or inhparent is not null
                    or relnamespace in ('{schema}'::regnamespace, 'pg_catalog'::regnamespace)
                    or not pg_has_role(relowner, 'usage'), true)
     order by n limit 1;
    if v_wrong is not null then
        raise exception using errcode = 'LF003', message = v_wrong;
    end if;
    return query select oid::regclass, relkind = 'p' from pg_class
                  where oid = any (v_tree) order by array_position(v_tree, oid);
end $$;

-- guard: from now on INSERT, UPDATE, DELETE and TRUNCATE of this table, and of its partitions or
-- children, need a fence, unless the session logged in as one of the exempt roles. Called again, it
-- takes in the partitions that have come since and exempts the roles given now; NULL keeps those
-- it has. Answers with the number of tables that are guarded.
--
-- A statement trigger costs the same for one row as for a million, and sees a TRUNCATE; but only
-- the table that a statement names is asked, so each partition has one. A partition that comes
-- later has none: it gets a copy of the row trigger on the partitioned table, which PostgreSQL
-- makes by itself, and which is switched off where there is a statement trigger. AFTER the row: a
-- BEFORE trigger slows down even when it is off (10,000 rows, none / after / before, in ms: COPY
-- 4.0 / 4.2 / 5.0, UPDATE 9.1 / 11.0 / 11.9, DELETE 3.0 / 3.9 / 5.4).
--
-- Locks    each table, SHARE ROW EXCLUSIVE: the tree of partitions first, so that none is attached
--          unseen. Waits for 5 s at most.
-- Raises   LF003, also while anybody but the owner could replace the triggers; 55P03 if a table is
--          in use.
create or replace function {schema}.guard(target regclass, exempt_roles name[] default null)
returns integer
language plpgsql
set search_path = {schema}, pg_catalog, pg_temp
set lock_timeout = '5s'
as $$
declare
    v_partitioned boolean := (select t.partitioned from guard_tree(guard.target) t limit 1);
    v_wrong text;
    v_roles text;
    v_table record;
    v_count integer := 0;
begin
    select case
        when rolname is null then format('there is no role %L', asked)
        when not rolcanlogin then format('role %I cannot log in: exempt the users themselves, '
                                         'membership does not count', rolname)
        else format('role %I may run jobs, it is in {schema}_worker: exempting it would exempt the '
                    'workers; let whoever else writes log in under a name of its own', rolname)
        end into v_wrong
      from unnest(guard.exempt_roles) asked left join pg_roles on rolname = asked
     where coalesce(not rolcanlogin or not rolsuper
                    and pg_has_role(oid, to_regrole('{schema}_worker'), 'member'), rolname is null)
     limit 1;
    if v_wrong is not null then
        raise exception using errcode = 'LF003', message = v_wrong;
    end if;
    -- A role that has been dropped is not kept: the next one of that name would be exempt.
    select string_agg(quote_literal(rolname), ', ' order by rolname) into v_roles from pg_roles
     where rolname = any (coalesce(guard.exempt_roles, (select g.exempt_roles from guards g
                                                         where g.target = guard.target)));
    if v_partitioned then
        execute format('create or replace trigger {schema}_guard_row after insert or update or '
                       'delete on %s for each row execute function {schema}.check_guard(%s)',
                       guard.target, v_roles);
    end if;
    for v_table in select * from guard_tree(guard.target) loop
        execute format('create or replace trigger {schema}_guard before insert or update or delete '
                       'or truncate on %s execute function {schema}.check_guard(%s)',
                       v_table.name, v_roles);
        -- ALWAYS: otherwise whoever may set session_replication_role writes past it. On a
        -- partitioned table the row trigger never fires, but it is the one that is copied.
        execute format('alter table only %s enable always trigger {schema}_guard', v_table.name);
        if v_partitioned then
            execute format('alter table only %s %s trigger {schema}_guard_row', v_table.name,
                           case when v_table.partitioned then 'enable always' else 'disable' end);
        end if;
        v_count := v_count + 1;
    end loop;
    -- The view has it from the triggers, so they have to be there first.
    select format('%s can take the guard of %s away, by the privilege TRIGGER; first run: %s',
                  array_to_string(g.trigger_roles, ', '), g.target, g.revoke) into v_wrong
      from guards g where g.target = guard.target and g.trigger_roles <> '{}';
    if v_wrong is not null then
        raise exception using errcode = 'LF003', message = v_wrong;
    end if;
    return v_count;
end $$;

-- unguard: the contrary, for the table and all its partitions or children. Answers with the number
-- of tables that were guarded.
--
-- Locks    each of them, ACCESS EXCLUSIVE. Waits for 5 s at most.
-- Raises   LF003; 55P03 if a table is in use.
create or replace function {schema}.unguard(target regclass) returns integer
language plpgsql
set search_path = {schema}, pg_catalog, pg_temp
set lock_timeout = '5s'
as $$
declare
    v_trigger record;
    v_tables regclass[] := '{}';
begin
    for v_trigger in
        select t.name, tgname from guard_tree(unguard.target) t
          join pg_trigger on tgrelid = t.name and tgparentid = 0
           and (tgfoid = '{schema}.check_guard'::regproc
                or tgname in ('{schema}_guard', '{schema}_guard_row'))
    loop
        execute format('drop trigger %I on %s', v_trigger.tgname, v_trigger.name);
        v_tables := array_append(array_remove(v_tables, v_trigger.name), v_trigger.name);
    end loop;
    return cardinality(v_tables);
end $$;
