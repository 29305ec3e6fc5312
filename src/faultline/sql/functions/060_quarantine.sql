-- Parking a job with the evidence. A job that cannot go on must not stop its neighbours: the verbs
-- leave out what is there already, and what does not come back is moved here. (I7)

-- put_in_quarantine: these pointers, just deleted from ready, scheduled or lease and given as JSON
-- (their columns have the same names), which is kept as the evidence. Whatever the caller thinks
-- the reason is, a job whose row is gone is missing.
create or replace function {schema}.put_in_quarantine(
    pointers jsonb[], reason text, moment timestamptz
) returns void
language plpgsql
as $$
#variable_conflict use_column
begin
    insert into quarantine (job_id, fencing_token, at, lane, attempts, crashes, snoozes,
                            lease_seconds, reason, evidence)
    select p.job_id, p.fencing_token, put_in_quarantine.moment, p.lane, p.attempts, p.crashes,
           p.snoozes, p.lease_seconds,
           coalesce((select put_in_quarantine.reason from job j where j.id = p.job_id limit 1),
                    'job_missing'),
           e
      from unnest(put_in_quarantine.pointers) e
     cross join lateral jsonb_populate_record(null::quarantine, e) p
     order by p.job_id
        on conflict do nothing;
end $$;

-- quarantine_unclaimable: what claim took and could not lease, or leased and found no job for.
-- Whatever lease stands in the way ends here as expired, so that the job is in one place; one that
-- is locked just now is left to its holder, because claim never waits.
create or replace function {schema}.quarantine_unclaimable(
    taken {schema}.ready[], claimed uuid[]
) returns void
language plpgsql
as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    v_bad uuid[] := array(select t.job_id from unnest(quarantine_unclaimable.taken) t
                           where t.job_id <> all (coalesce(quarantine_unclaimable.claimed, '{}')));
    v_lost lease[];
begin
    with lost as (
        delete from lease where job_id = any (array(
            select job_id from lease where job_id = any (v_bad)
             order by job_id for update skip locked))
        returning *)
    select array_agg(lost::lease) into v_lost from lost;
    perform record_endings(v_lost, 'expired', v_now);
    perform put_in_quarantine(
        array(select to_jsonb(t) || jsonb_build_object('lease', l, 'fencing_token',
                                                       greatest(t.fencing_token, l.fencing_token))
                from unnest(quarantine_unclaimable.taken) t
                left join unnest(v_lost) l on l.job_id = t.job_id
               where t.job_id = any (v_bad)),
        'lease_already_held', v_now);
end $$;

-- park_exhausted: rows whose token has reached the top of the range (2^53 - 1, so that JSON is
-- safe). Found through a partial index that is otherwise empty; called by promote.
create or replace function {schema}.park_exhausted() returns void
language plpgsql
as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    v_parked jsonb[];
begin
    with parked as (
        delete from ready where ctid = any (array(
            select ctid from ready where fencing_token >= 9007199254740991
             for update skip locked))
        returning *)
    select array_agg(to_jsonb(parked)) into v_parked from parked;
    if v_parked is not null then
        perform put_in_quarantine(v_parked, 'token_exhausted', v_now);
    end if;
end $$;
