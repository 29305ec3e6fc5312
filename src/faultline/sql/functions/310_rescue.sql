-- rescue: give a pointer back to every job that has neither a pointer nor a final attempt. Belongs
-- to every restore: a dump taken while ready was compacted has the jobs without their pointers.
-- Answers with how many.
--
-- Ensures  the epoch is raised first if anything is rescued: the lost pointer may have been a lease
--          whose token was never recorded. (I4, I7)
-- Locks    ready, SHARE ROW EXCLUSIVE: claims and enqueues wait, so that no pointer is on the move.
--          Gives up after 5 s (55P03) behind a transaction that stays open. Held for 5 s at most
--          after its end: call it in a transaction of its own.
create or replace function {schema}.rescue() returns bigint
language plpgsql
{definer}
set lock_timeout = '5s'
as $$
declare
    v_rescued bigint;
begin
    perform insist_on_read_committed('rescue');
    lock table ready in share row exclusive mode;
    insert into ready (lane, job_id, fencing_token, lease_seconds)
    select j.lane, j.id, coalesce(last.fencing_token, 0), j.lease_seconds
      from job j
      left join lateral (select a.fencing_token, a.final from attempt a
                          where a.job_id = j.id order by a.fencing_token desc limit 1) last on true
     where not coalesce(last.final, false)
       and not exists (select from ready r where r.job_id = j.id)
       and not exists (select from scheduled s where s.job_id = j.id)
       and not exists (select from lease l where l.job_id = j.id)
       and not exists (select from quarantine q where q.job_id = j.id)
     order by j.id;
    get diagnostics v_rescued = row_count;
    if v_rescued > 0 then
        perform epoch_bump();
    end if;
    perform bound_brief_hold();
    return v_rescued;
end $$;
