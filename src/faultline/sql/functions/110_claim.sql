-- claim: take up to max_jobs due jobs from these lanes, in the order of the lanes and oldest first,
-- and lease each to the worker under a token higher than any before. (I4, I5)
--
-- cursors is a hint, one per lane: the scan starts there, past the dead entries at the front of the
-- index. Pass NULL about once a second to find rows committed late with a lower seq.
-- started says that the jobs run at once; otherwise say so later with execute.
-- last_chances (NULL: none) says which jobs go to quarantine if this attempt's worker dies as well:
-- run those where no other job can be hurt.
--
-- Ensures  one lease for each job returned; one row of arrays, so that 800 jobs cost one row's
--          overhead (0.4 µs a job against 2.3 as rows). Headers and payloads are JSON arrays, as
--          text.
--          The text has at most 64 MiB. Jobs beyond that go back to their places, and a job that
--          alone has more is quarantined: a claim that could not be answered would stop the queue.
-- Locks    ready rows with SKIP LOCKED: it never waits. Only what the DELETE returned is trusted.
--          By ctid, because joining a LIMITed subquery makes the planner hash a sequential scan;
--          safe here since ready rows are never updated.
--          One bad row never stops the batch: a token at the top is left out (promote parks it),
--          and a row that has a lease already, or whose job is gone, is quarantined. (Looked for,
--          as in complete: who has deleted the pointer is the only one that may lease the job.)
-- Raises   LF003 bad argument, LF005 not READ COMMITTED.
create or replace function {schema}.claim(
    worker text, lanes integer[], max_jobs integer default 1, cursors bigint[] default null,
    started boolean default true,
    out job_ids uuid[], out tokens bigint[], out job_lanes integer[], out seqs bigint[],
    out attempts integer[], out crashes integer[], out snoozes integer[],
    out leases_seconds real[], out tasks text[], out payloads text, out headers text,
    out last_chances boolean[]
)
language plpgsql
{pinned}
as $$
#variable_conflict use_column
declare
    v_floor bigint;
    v_paused integer[] := '{}';
    v_now timestamptz;
    v_leased uuid[];
    v_taken ready[];
    v_share bigint;  -- bytes of text that a job may have before the jobs are measured together
    v_larger bigint;
begin
    if not may_claim(claim.worker, claim.max_jobs) then
        perform check_claim(claim.worker, claim.max_jobs);
    end if;
    if claim.max_jobs = 1 then
        select array[c.job_id], array[c.token], array[c.lane], array[c.seq], array[c.attempts],
               array[c.crashes], array[c.snoozes], array[c.lease_seconds], array[c.task],
               '[' || c.payload || ']', '[' || c.headers || ']', array[c.last_chance]
          into job_ids, tokens, job_lanes, seqs, attempts, crashes, snoozes, leases_seconds,
               tasks, payloads, headers, last_chances
          from claim_one(claim.worker, claim.lanes, claim.cursors, claim.started) c
         where c.job_id is not null;
        return;
    end if;
    if exists (select from queue where paused) then
        v_paused := paused_lanes();
    end if;

    with taken as (
        delete from ready where ctid = any (array(
            select due.ctid
              from unnest(claim.lanes, claim.cursors) with ordinality l(lane, cursor, n)
             cross join lateral (
                   select r.ctid from ready r
                    where r.lane = l.lane and r.seq >= coalesce(l.cursor, 0)
                      and r.fencing_token < 9007199254740991
                    order by r.seq limit claim.max_jobs
                      for update skip locked) due
             where l.lane <> all (v_paused)
             limit claim.max_jobs))
        returning *)
    select array_agg(pointer) into v_taken
      from (select taken::ready as pointer from taken
             order by array_position(claim.lanes, taken.lane), taken.seq) sorted;
    if v_taken is null then
        perform bound_brief_hold();
        return;
    end if;

    v_floor := token_floor();
    v_now := clock_timestamp();  -- after the rows are ours: a predecessor's ending is never later
    perform bound_open_hold(v_now + make_interval(  -- a shorter one would cut off the claim itself
        secs => (select greatest(min(t.lease_seconds), 1) from unnest(v_taken) t)));
    with leased as (
        insert into lease (job_id, fencing_token, seq, expires_at, claimed_at, lane, attempts,
                           crashes, snoozes, lease_seconds, started, worker)
        select t.job_id, greatest(t.fencing_token + 1, v_floor), t.seq,
               v_now + make_interval(secs => t.lease_seconds), v_now, t.lane, t.attempts,
               t.crashes, t.snoozes, t.lease_seconds, claim.started, claim.worker
          from unnest(v_taken) t
         where (select l.job_id from lease l where l.job_id = t.job_id limit 1) is null
        returning job_id)
    select array_agg(job_id) into v_leased from leased;

    v_share := 67108864 / cardinality(v_taken) - 8;  -- and what stands between two
    loop
        select array_agg(t.job_id), array_agg(greatest(t.fencing_token + 1, v_floor)),
               array_agg(t.lane), array_agg(t.seq), array_agg(t.attempts), array_agg(t.crashes),
               array_agg(t.snoozes), array_agg(t.lease_seconds), array_agg(j.task),
               (json_agg(j.payload) filter (
                    where v_share is null or j.payload_bytes <= v_share))::text,
               case when bool_or(j.headers is not null) then (json_agg(j.headers) filter (
                    where v_share is null or j.payload_bytes <= v_share))::text end,
               case when bool_or(t.crashes > 0)
                    then array_agg(t.crashes > 0 and t.crashes + 1 >= least(j.max_crashes, 100))
                    end,
               count(*) filter (where (j.payload_bytes <= v_share) is not true)
          into job_ids, tokens, job_lanes, seqs, attempts, crashes, snoozes, leases_seconds, tasks,
               payloads, headers, last_chances, v_larger
          from unnest(v_taken) t
         -- LIMIT: job is always looked up by key
         cross join lateral (select j.task, j.payload, j.headers, j.max_crashes, j.payload_bytes
                               from job j where j.id = t.job_id limit 1) j
         where cardinality(v_leased) = cardinality(v_taken) or t.job_id = any (v_leased);
        exit when v_larger = 0 or v_share is null;
        v_taken := deliverable(v_taken, v_leased);
        v_leased := array(select t.job_id from unnest(v_taken) t
                           where t.job_id = any (v_leased));
        v_share := null;
    end loop;

    if coalesce(cardinality(job_ids), 0) <> cardinality(v_taken) then
        perform quarantine_unclaimable(v_taken, job_ids);
    end if;
end $$;

-- deliverable: of these pointers, just taken from ready, those that a claim can answer with: from
-- the front as many as have 64 MiB of text together, and those without a lease or a job, which are
-- not judged here. The others are taken back: their leases, which no other transaction has seen,
-- go, and so do their tokens. A job that alone has more than 64 MiB is quarantined, the others
-- return to their places in ready. A worker that got fewer jobs than it asked for looks again. (I5,
-- I7)
create or replace function {schema}.deliverable(taken {schema}.ready[], leased uuid[])
returns {schema}.ready[]
language plpgsql
as $$
#variable_conflict use_column
declare
    v_back ready[];
    v_undeliverable jsonb[];
    v_kept ready[];
begin
    with sized as materialized (
        select t.n, t.job_id, array_position(deliverable.leased, t.job_id) is not null as is_leased,
               (select coalesce(j.payload_bytes, text_bytes(j.payload, j.headers))
                       + 8  -- and what stands between two
                  from job j where j.id = t.job_id limit 1) as bytes
          from unnest(deliverable.taken) with ordinality
               t(lane, seq, job_id, fencing_token, attempts, crashes, snoozes, lease_seconds, n)),
    judged as (
        select s.n, s.bytes, case
               when not s.is_leased or s.bytes is null then 'kept'
               when s.bytes > 67108864 then 'undeliverable'
               when sum(s.bytes) filter (where s.is_leased and s.bytes <= 67108864)
                    over (order by s.n) > 67108864 then 'back'
               else 'kept' end as verdict
          from sized s)
    select array_agg(deliverable.taken[n] order by n) filter (where verdict = 'kept'),
           array_agg(deliverable.taken[n] order by n) filter (where verdict = 'back'),
           array_agg(to_jsonb(deliverable.taken[n]) || jsonb_build_object('text_bytes', bytes)
                     order by n) filter (where verdict = 'undeliverable')
      into v_kept, v_back, v_undeliverable from judged;
    delete from lease where job_id = any (
        array(select b.job_id from unnest(v_back) b)
        || array(select (u ->> 'job_id')::uuid from unnest(v_undeliverable) u));
    insert into ready select (unnest(v_back)).*;
    if v_undeliverable is not null then
        perform put_in_quarantine(v_undeliverable, 'undeliverable', clock_timestamp());
    end if;
    perform wake(array(select distinct b.lane from unnest(deliverable.taken) b));
    return coalesce(v_kept, '{}');
end $$;
