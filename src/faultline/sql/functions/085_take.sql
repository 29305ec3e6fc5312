-- take: delete the leases that these attempts still hold, and answer with them: the fence that
-- every settling verb goes through. (complete has it inlined: it is the hot one.)
--
-- Locks    lease rows in job_id order, token in the qual. (I3)
-- Raises   LF003 when there is a job without its token.
create or replace function {schema}.take(job_ids uuid[], tokens bigint[], moment timestamptz)
returns {schema}.lease[]
language plpgsql
as $$
#variable_conflict use_column
declare
    v_taken lease[];
begin
    perform check_attempts(take.job_ids, take.tokens);
    with taken as (
        delete from lease l
         using (select job_id, token from unnest(take.job_ids, take.tokens) u(job_id, token)
                 order by job_id offset 0) u
         where l.job_id = u.job_id and l.fencing_token = u.token and l.expires_at > take.moment
           and l.job_id >= u.job_id  -- for the planner, decision 3
        returning l)
    select array_agg(l) into v_taken from taken;
    perform bound_open_hold((select min(l.expires_at) from unnest(v_taken) l));
    return coalesce(v_taken, '{}');
end $$;

-- place_of: where in the arrays this very attempt stands; the job may be there under another token
-- too.
create or replace function {schema}.place_of(
    job_ids uuid[], tokens bigint[], job_id uuid, token bigint
) returns integer
language plpgsql
as $$
declare
    v_place integer := array_position(place_of.job_ids, place_of.job_id);
begin
    while place_of.tokens[v_place] <> place_of.token loop
        v_place := array_position(place_of.job_ids, place_of.job_id, v_place + 1);
    end loop;
    return v_place;
end $$;

-- finish: what every settling verb does last: quarantine what had an ending already, and refuse and
-- answer with what was not taken.
create or replace function {schema}.finish(
    job_ids uuid[], tokens bigint[], taken {schema}.lease[], ended uuid[], operation text,
    moment timestamptz
) returns setof {schema}.stale
language plpgsql
as $$
begin
    if cardinality(finish.ended) is distinct from cardinality(finish.taken) then
        perform put_in_quarantine(
            array(select to_jsonb(l) from unnest(finish.taken) l
                   where l.job_id <> all (coalesce(finish.ended, '{}'))),
            'attempt_already_ended', finish.moment);
    end if;
    if cardinality(finish.taken) is distinct from cardinality(finish.job_ids) then
        return query
        select * from refuse(finish.job_ids, finish.tokens,
                             array(select l.job_id from unnest(finish.taken) l),
                             array(select l.fencing_token from unnest(finish.taken) l),
                             finish.operation);
    end if;
end $$;
