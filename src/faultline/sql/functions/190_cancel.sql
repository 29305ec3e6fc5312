-- cancel: from outside. A waiting or quarantined job ends at once as cancelled, under a token of
-- its own; a running one is asked to stop: its worker is told at the next renewal, which a
-- notification (`cancel` and the id) brings forward, and ends it with cancel_attempt. A role that
-- is not an operator cancels only what it enqueued itself. Of the reason 1,000 characters are kept:
-- one that fits into no record would stop every recovery.
--
-- Answers  for each known job: cancelled, requested, or finished (it had ended already).
-- Locks    pointer rows in job_id order, but no lease: a worker must not wait for who asks it to
--          stop. A job on the move between two places is looked for again. Held for 5 s at most:
--          in a transaction of yours, call it last and commit.
-- Raises   40001 when a job is in no place that this snapshot shows, and has not ended: a retry.
create or replace function {schema}.cancel(job_ids uuid[], reason text default null)
returns table (job_id uuid, verdict text)
language plpgsql
{probing}
as $$
#variable_conflict use_column
declare
    v_left uuid[] := own_jobs(cancel.job_ids);
    v_done uuid[];
begin
    for v_round in 1..3 loop
        v_done := cancel_waiting(v_left, cancel.reason);
        return query select j, 'cancelled' from unnest(v_done) j;
        v_left := array(select j from unnest(v_left) j where j <> all (v_done));
        with asked as (
            insert into cancel_request (job_id, reason, at)
            select u.j, left(coalesce(cancel.reason, 'cancelled'), 1000), clock_timestamp()
              from (select distinct j from unnest(v_left) j order by j offset 0) u
             where exists (select from lease l where l.job_id = u.j)
                on conflict (job_id) do update set reason = excluded.reason
            returning cancel_request.job_id)
        select coalesce(array_agg(asked.job_id), '{}') into v_done from asked;
        perform pg_notify('{schema}', 'cancel ' || j) from unnest(v_done) j;
        return query select j, 'requested' from unnest(v_done) j;
        v_left := array(select j from unnest(v_left) j where j <> all (v_done));
        exit when v_left = '{}';
    end loop;
    if exists (select from unnest(v_left) j
                where not coalesce((select a.final from attempt a where a.job_id = j
                                     order by a.fencing_token desc limit 1), false)) then
        raise exception using
            errcode = '40001',
            message = 'a job is on the move, or this snapshot is too old to see it: try again';
    end if;
    return query select j, 'finished' from unnest(v_left) j;
    perform bound_brief_hold();
end $$;

-- cancel_waiting: take the pointers of these jobs out of ready, scheduled and quarantine, and
-- record the end. Answers with the jobs that had one.
create or replace function {schema}.cancel_waiting(job_ids uuid[], reason text)
returns uuid[]
language plpgsql
as $$
#variable_conflict use_column
declare
    v_now timestamptz;
    v_ids uuid[] := array(select j from unnest(cancel_waiting.job_ids) j order by j);
    v_cancelled uuid[] := '{}';
    v_ended uuid[];
    v_tokens bigint[];
    v_place text;
begin
    foreach v_place in array array['ready', 'scheduled', 'quarantine'] loop
        execute format(
            'with gone as (delete from %I p using (select j from unnest($1) j order by j offset 0) u
                            where p.job_id = u.j returning p.job_id, p.fencing_token)
             select array_agg(job_id), array_agg(fencing_token) from gone', v_place)
           into v_ended, v_tokens using v_ids;
        v_now := clock_timestamp();
        insert into attempt (job_id, fencing_token, claimed_at, at, started, final, outcome, error)
        select j, greatest(t + 1, current_token(j) + 1, floor_now()), v_now, v_now,
               false, true, 'cancelled',
               jsonb_build_object('reason', left(cancel_waiting.reason, 1000))
          from unnest(v_ended, v_tokens) u(j, t);
        v_cancelled := v_cancelled || coalesce(v_ended, '{}');
    end loop;
    return v_cancelled;
end $$;

-- own_jobs: those of these jobs that exist and that the session may act on: all for an operator (or
-- where there are no roles), its own for anybody else.
create or replace function {schema}.own_jobs(job_ids uuid[]) returns uuid[]
language plpgsql stable
as $$
#variable_conflict use_column
declare
    v_operator regrole := to_regrole('{schema}_operator');
    v_all boolean := v_operator is null
        or pg_has_role(session_user, v_operator, 'member');
begin
    return array(select j.id from unnest(own_jobs.job_ids) u(id) join job j on j.id = u.id
                  where v_all or j.producer = session_user order by j.id);
end $$;
