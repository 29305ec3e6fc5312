-- claim_one: what claim does when asked for one job, in plain single-row statements, at half the
-- cost of the set form (`make bench-verbs`). Long jobs are claimed one at a time.
--
-- Ensures, locks, raises: as claim, which has made the checks.
create or replace function {schema}.claim_one(
    worker text, lanes integer[], cursors bigint[], started boolean,
    out job_ids uuid[], out tokens bigint[], out job_lanes integer[], out seqs bigint[],
    out attempts integer[], out crashes integer[], out snoozes integer[],
    out leases_seconds real[], out tasks text[], out payloads text, out headers text,
    out last_chances boolean[]
)
language plpgsql
as $$
#variable_conflict use_column
declare
    v_pointer ready;
    v_token bigint;
    v_now timestamptz;
    v_leased boolean;
begin
    loop
        v_pointer := null;
        for i in 1..coalesce(cardinality(claim_one.lanes), 0) loop
            delete from ready where ctid = (
                select r.ctid from ready r
                 where r.lane = claim_one.lanes[i] and r.seq >= coalesce(claim_one.cursors[i], 0)
                   and r.fencing_token < 9007199254740991
                 order by r.seq limit 1
                   for update skip locked)
            returning * into v_pointer;
            exit when found;
        end loop;
        if v_pointer.job_id is null then
            return;
        end if;
        v_now := clock_timestamp();  -- as in claim: after the row is ours
        v_token := greatest(v_pointer.fencing_token + 1, token_floor());
        insert into lease (job_id, fencing_token, seq, expires_at, claimed_at, lane, attempts,
                           crashes, snoozes, lease_seconds, started, worker)
        values (v_pointer.job_id, v_token, v_pointer.seq,
                v_now + make_interval(secs => v_pointer.lease_seconds), v_now, v_pointer.lane,
                v_pointer.attempts, v_pointer.crashes, v_pointer.snoozes, v_pointer.lease_seconds,
                claim_one.started, claim_one.worker)
            on conflict do nothing;
        v_leased := found;
        select array[j.task], '[' || j.payload::text || ']', '[' || j.headers::text || ']',
               array[v_pointer.crashes > 0 and v_pointer.crashes + 1 >= j.max_crashes]
          into tasks, payloads, headers, last_chances from job j where j.id = v_pointer.job_id;
        exit when v_leased and found;
        perform quarantine_unclaimable(array[v_pointer], '{}');
    end loop;
    perform bound_open_hold(v_now + make_interval(secs => v_pointer.lease_seconds));
    job_ids := array[v_pointer.job_id];
    tokens := array[v_token];
    job_lanes := array[v_pointer.lane];
    seqs := array[v_pointer.seq];
    attempts := array[v_pointer.attempts];
    crashes := array[v_pointer.crashes];
    snoozes := array[v_pointer.snoozes];
    leases_seconds := array[v_pointer.lease_seconds];
end $$;
