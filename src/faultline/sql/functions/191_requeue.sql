-- requeue: give dead (failed) or quarantined jobs another life: attempts and crashes start from
-- zero, at the end of their lanes. Answers with the jobs moved; others are left as they are, among
-- them a job whose token has reached the top.
--
-- Ensures  the requeue is recorded under a token of its own, so that the last attempt always says
--          what became of the job. Of two that requeue one job at once, the primary key lets one.
--          (I4, I6, I7)
-- Locks    quarantine rows in job_id order; the (job, next token) key of attempt.
create or replace function {schema}.requeue(job_ids uuid[], reason text default null)
returns setof uuid
language plpgsql
{probing}
as $$
#variable_conflict use_column
declare
    v_floor bigint;
    v_now timestamptz;
    v_parked quarantine[];
    v_jobs uuid[];
begin
    v_parked := array(select q from (select j from unnest(requeue.job_ids) j order by j offset 0) u
                        join quarantine q on q.job_id = u.j
                         for update of q);
    v_floor := floor_now();
    v_now := clock_timestamp();
    with moved as (
        insert into attempt (job_id, fencing_token, claimed_at, at, started, final, outcome, error)
        select j.id, greatest(last.token + 1, v_floor), v_now, v_now, false, false, 'requeued',
               jsonb_build_object('reason', requeue.reason, 'quarantine', to_jsonb(q))
          from unnest(requeue.job_ids) u(id)
          join job j on j.id = u.id
          left join unnest(v_parked) q on q.job_id = j.id
         cross join lateral (
               select greatest(a.fencing_token, q.fencing_token) as token,
                      q.job_id is not null or (a.final and a.outcome = 'failed') as movable
                 from (select null) one
                 left join lateral (
                      select a.fencing_token, a.final, a.outcome from attempt a
                       where a.job_id = j.id order by a.fencing_token desc limit 1) a on true) last
         where last.movable and last.token < 9007199254740991
         order by j.id
            on conflict do nothing
        returning job_id)
    select array_agg(job_id) into v_jobs from moved;
    delete from quarantine where job_id = any (v_jobs);
    delete from cancel_request where job_id = any (v_jobs);
    insert into ready (lane, job_id, fencing_token, lease_seconds)
    select j.lane, j.id, current_token(j.id), j.lease_seconds
      from unnest(v_jobs) u(id) join job j on j.id = u.id
        on conflict do nothing;  -- queued already, by force: then it has its pointer
    perform wake(array(select distinct j.lane from unnest(v_jobs) u(id) join job j on j.id = u.id));
    return query select * from unnest(v_jobs);
end $$;
