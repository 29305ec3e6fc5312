-- The two doors through which a job that is not finished leaves its lease: back into ready, or put
-- off. Both end a job that somebody asked to cancel meanwhile, and both quarantine a job that is in
-- the place already (by force, or by a bug), so that one bad row does not stop its neighbours. (I7)

-- put_back: into ready again, each with its own lane and seq: a new seq would put it behind the
-- whole backlog.
create or replace function {schema}.put_back(freed {schema}.lease[], moment timestamptz)
returns void
language plpgsql
as $$
#variable_conflict use_column
declare
    v_queued uuid[] := end_cancelled(put_back.freed, put_back.moment);
begin
    with queued as (
        insert into ready (lane, seq, job_id, fencing_token, attempts, crashes, snoozes,
                           lease_seconds)
        select l.lane, l.seq, l.job_id, l.fencing_token, l.attempts, l.crashes, l.snoozes,
               l.lease_seconds
          from unnest(put_back.freed) l
         where l.job_id <> all (v_queued)
         order by l.job_id
            on conflict do nothing
        returning job_id)
    select v_queued || array_agg(job_id) into v_queued from queued;
    perform put_in_quarantine(
        array(select to_jsonb(l) from unnest(without(put_back.freed, v_queued)) l),
        'already_queued', put_back.moment);
    perform wake(array(select distinct l.lane from unnest(put_back.freed) l));
end $$;

-- put_off: into scheduled, each after its own delay, with so many failures and snoozes more.
create or replace function {schema}.put_off(
    freed {schema}.lease[], delays double precision[], failures integer, snoozes integer,
    moment timestamptz
) returns void
language plpgsql
as $$
#variable_conflict use_column
declare
    v_off uuid[] := end_cancelled(put_off.freed, put_off.moment);
begin
    with off as (
        insert into scheduled (job_id, run_at, lane, fencing_token, attempts, crashes, snoozes,
                               lease_seconds)
        select job_id, put_off.moment + make_interval(secs => delay), lane, fencing_token,
               attempts + put_off.failures, crashes, snoozes + put_off.snoozes, lease_seconds
          from rows from (unnest(put_off.freed), unnest(put_off.delays))
               l(job_id, fencing_token, seq, expires_at, claimed_at, lane, attempts, crashes,
                 snoozes, lease_seconds, started, worker, renewals, delay)
         where job_id <> all (v_off)
         order by job_id
            on conflict do nothing
        returning job_id)
    select v_off || array_agg(job_id) into v_off from off;
    perform put_in_quarantine(
        array(select to_jsonb(l) from unnest(without(put_off.freed, v_off)) l),
        'already_queued', put_off.moment);
end $$;

-- end_cancelled: those of these that were asked to stop end here as cancelled, under a token of
-- their own, instead of running again. Answers with them.
create or replace function {schema}.end_cancelled(freed {schema}.lease[], moment timestamptz)
returns uuid[]
language plpgsql
as $$
#variable_conflict use_column
declare
    v_ended uuid[] := array(select c.job_id from unnest(end_cancelled.freed) l
                             cross join lateral (select c.job_id from cancel_request c
                                                  where c.job_id = l.job_id limit 1) c);
    v_floor bigint;
begin
    if v_ended <> '{}' then
        v_floor := floor_now();
        insert into attempt (job_id, fencing_token, claimed_at, at, started, final, outcome, error)
        select l.job_id, greatest(l.fencing_token + 1, v_floor), end_cancelled.moment,
               end_cancelled.moment, false, true, 'cancelled',
               jsonb_build_object('reason', left(c.reason, 1000))
          from unnest(end_cancelled.freed) l
          join cancel_request c on c.job_id = l.job_id
         where l.job_id = any (v_ended)
         order by l.job_id
            on conflict do nothing;
        delete from cancel_request where job_id = any (array(  -- who asks again has it locked
            select c.job_id from cancel_request c where c.job_id = any (v_ended)
               for update skip locked));
    end if;
    return v_ended;
end $$;
