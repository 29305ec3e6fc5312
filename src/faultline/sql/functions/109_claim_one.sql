-- claim_one: take the oldest due job from the first of these lanes that has one, and lease it to
-- the worker under a token higher than any before. (I4, I5)
--
-- For who waits for a job, and for long jobs, which are claimed one at a time: plain single-row
-- statements, at half the cost of claim's (`make bench-verbs`). Each microsecond here is two or
-- three of a pickup, since both sides have just slept. Arguments are those of claim; by_itself says
-- that the caller's transaction ends with this call, so that there is nothing to bound (as
-- bound_open_hold cannot tell of a prepared statement).
--
-- Ensures  one lease for the job returned; NULLs if there is none.
-- Locks    a ready row with SKIP LOCKED: it never waits. A row that has a lease already, whose job
--          is gone, or whose text is too large for any claim, is quarantined, and the next taken.
-- Raises   LF003 bad argument, LF005 not READ COMMITTED.
create or replace function {schema}.claim_one(
    worker text, lanes integer[], cursors bigint[] default null, started boolean default true,
    by_itself boolean default false,
    out job_id uuid, out token bigint, out lane integer, out seq bigint, out attempts integer,
    out crashes integer, out snoozes integer, out lease_seconds real, out task text,
    out payload text, out headers text, out last_chance boolean
)
language plpgsql
{single}
as $$
#variable_conflict use_column
declare
    v_lanes integer[] := claim_one.lanes;
    v_pointer ready;
    v_token bigint;
    v_now timestamptz;
    v_leased boolean;
begin
    if not may_claim(claim_one.worker, 1) then
        perform check_claim(claim_one.worker, 1);
    end if;
    if exists (select from queue where paused) then
        v_lanes := without_paused(v_lanes);
    end if;
    loop
        v_pointer := null;
        for i in 1..coalesce(cardinality(v_lanes), 0) loop
            delete from ready where ctid = (
                select r.ctid from ready r
                 where r.lane = v_lanes[i] and r.seq >= coalesce(claim_one.cursors[i], 0)
                   and r.fencing_token < 9007199254740991
                 order by r.seq limit 1
                   for update skip locked)
            returning * into v_pointer;
            exit when found;
        end loop;
        if v_pointer.job_id is null then
            if claim_one.by_itself is not true then
                perform bound_brief_hold();
            end if;
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
        select j.task,
               case when j.payload_bytes <= 67108864 then j.payload::text end,
               case when j.payload_bytes <= 67108864 then j.headers::text end,
               v_pointer.crashes > 0 and v_pointer.crashes + 1 >= least(j.max_crashes, 100)
          into task, payload, headers, last_chance from job j where j.id = v_pointer.job_id;
        exit when v_leased and found and payload is not null;
        if v_leased and found then  -- not measured at enqueue, or more than was allowed there
            if deliverable(array[v_pointer], array[v_pointer.job_id]) <> '{}' then
                select j.payload::text, j.headers::text into payload, headers
                  from job j where j.id = v_pointer.job_id;
                exit;
            end if;
        else
            perform quarantine_unclaimable(array[v_pointer], '{}');
        end if;
    end loop;
    if claim_one.by_itself is not true then
        perform bound_open_hold(
            v_now + make_interval(secs => greatest(v_pointer.lease_seconds, 1)));
    end if;
    job_id := v_pointer.job_id;
    token := v_token;
    lane := v_pointer.lane;
    seq := v_pointer.seq;
    attempts := v_pointer.attempts;
    crashes := v_pointer.crashes;
    snoozes := v_pointer.snoozes;
    lease_seconds := v_pointer.lease_seconds;
end $$;

-- may_claim: what check_claim insists on, as one expression that the planner puts in place of the
-- call: only where something is wrong is it looked into what.
create or replace function {schema}.may_claim(worker text, max_jobs integer) returns boolean
language sql stable
return (current_setting('transaction_isolation') = 'read committed'
        and length(worker) between 1 and 255 and max_jobs >= 0) is true;

-- check_claim: who may claim, and how many.
--
-- Raises   LF003, LF005.
create or replace function {schema}.check_claim(worker text, max_jobs integer) returns void
language plpgsql
as $$
begin
    perform insist_on_read_committed('claim');
    perform check_worker(check_claim.worker);
    perform check_max_jobs(check_claim.max_jobs);
end $$;

-- paused_lanes: those of the queues that are not claimed from.
create or replace function {schema}.paused_lanes() returns integer[]
language plpgsql
as $$
begin
    return array(select l.lane from queue q join lane l on l.queue = q.queue where q.paused);
end $$;

-- without_paused: these lanes, with a NULL for each that is not claimed from, so that the others
-- keep their places beside their cursors.
create or replace function {schema}.without_paused(lanes integer[]) returns integer[]
language plpgsql
as $$
declare
    v_paused integer[] := paused_lanes();
begin
    return array(select case when u.lane <> all (v_paused) then u.lane end
                   from unnest(without_paused.lanes) with ordinality u(lane, n) order by u.n);
end $$;
