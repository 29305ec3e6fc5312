-- retry: scheduled jobs become due now, at the ends of their lanes, in the order of their ids;
-- their counts and tokens stay as they are. Answers with the jobs moved; others are left alone.
--
-- Locks    scheduled rows in job_id order. Held for 5 s at most. (I7)
create or replace function {schema}.retry(job_ids uuid[]) returns setof uuid
language plpgsql
{probing}
as $$
#variable_conflict use_column
declare
    v_taken scheduled[];
begin
    with taken as (
        delete from scheduled s
         using (select j from unnest(retry.job_ids) j order by j offset 0) u
         where s.job_id = u.j
        returning s)
    select array_agg(s order by (s).job_id) into v_taken from taken;
    return query select * from unnest(queue_up(v_taken, clock_timestamp()));
    perform bound_brief_hold();
end $$;
