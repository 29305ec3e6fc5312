-- guards: which tables are guarded, who is exempt, and is anything left open? Derived from the
-- triggers. Each of the tables (itself and its partitions or children) is guarded by_statement, as
-- it should be; or by_row: a partition attached since, slower, and its TRUNCATE is not guarded; or
-- it is open: a child made since, a trigger that somebody switched off or replaced. Through the
-- open_parents rows can be written past the guard. The trigger_roles were granted TRIGGER since and
-- can replace ours: revoke is the statement to run. Where it is not complete, guard is to be called
-- again.
create or replace view {schema}.guards as
with recursive own as (
    -- By its name, too: what whoever may create triggers has put in the place of ours. 62 is BEFORE
    -- INSERT, UPDATE, DELETE, TRUNCATE of a statement; 29 is AFTER the first three, of a row.
    select tgrelid as id,
           bool_or(ours and tgtype = 62 and tgenabled = 'A') as by_statement,
           bool_or(ours and tgtype = 29 and tgenabled = 'A') as by_row,
           (array_agg(tgargs order by tgtype & 1) filter (where ours))[1] as arguments
      from (select *, tgfoid = '{schema}.check_guard'::regproc
                      and tgqual is null and tgattr::text = '' as ours
              from pg_trigger) t
     where tgfoid = '{schema}.check_guard'::regproc
        or tgname in ('{schema}_guard', '{schema}_guard_row')
     group by tgrelid
), tree (target, id, arguments) as (
    select id, id, arguments from own
     where not exists (select from pg_inherits join own p on p.id = inhparent
                        where inhrelid = own.id)
    union
    select target, inhrelid, arguments from tree join pg_inherits on inhparent = id
), counted as (
    select t.target, t.arguments, count(*) as tables,
           count(*) filter (where by_statement and (relkind = 'p' or not by_row)) as by_statement,
           count(*) filter (where by_row and (relkind <> 'p' or not by_statement)) as by_row,
           count(*) filter (where (by_statement or by_row) is not true) as open,
           -- Of the row trigger on a partitioned table the next partition gets its copy.
           bool_and(coalesce(by_statement and by_row = (relkind = 'p'), false)) as complete,
           array(select distinct inhparent::regclass from pg_inherits
                  where inhrelid = any (array_agg(t.id)) and inhparent <> all (array_agg(t.id))
                ) as open_parents
      from tree t join pg_class c on c.oid = t.id left join own on own.id = t.id
     group by t.target, t.arguments
), granted as (
    select target, array_agg(distinct role) as roles,
           format('REVOKE TRIGGER ON %s FROM %s%s',
                  string_agg(distinct id::regclass::text, ', '),
                  string_agg(distinct quote_ident(role), ', '),
                  case when bool_or(is_grantable) then ' CASCADE' end) as revoke
      from (select target, id, is_grantable,
                   case when grantee = 0 then 'public' else pg_get_userbyid(grantee) end as role
              from tree join pg_class on oid = id, aclexplode(relacl)
             where privilege_type = 'TRIGGER' and grantee <> relowner) g
     group by target
)
select target::regclass as target,
       -- The arguments of a trigger are bytes, each ending with a zero.
       array(select convert_from(decode(role[1], 'hex'), getdatabaseencoding())::name
               from regexp_matches(encode(arguments, 'hex'), '((?:(?!00)..)*)00', 'g') role
            ) as exempt_roles,
       tables, by_statement, by_row, open, open_parents,
       coalesce(roles, '{}') as trigger_roles, revoke,
       complete and open_parents = '{}' and roles is null as complete
  from counted left join granted using (target);
