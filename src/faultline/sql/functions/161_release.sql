-- release: hand jobs back, to their own places in their lanes; no attempt and no crash is counted.
--
-- Ensures  for each (job, token) still leased: an attempt row `released` and the pointer back in
--          ready; the rest is recorded and returned as stale. (I3, I6, I7)
-- Locks    lease rows in job_id order, token in the qual.
create or replace function {schema}.release(job_ids uuid[], tokens bigint[])
returns setof {schema}.stale
language plpgsql
{probing}
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_taken lease[] := take(release.job_ids, release.tokens, v_now);
    v_ended uuid[] := record_endings(v_taken, 'released', v_now);
begin
    perform put_back(array(select l from unnest(v_taken) l where l.job_id = any (v_ended)), v_now);
    return query
    select * from finish(release.job_ids, release.tokens, v_taken, v_ended, 'release', v_now);
end $$;

-- put_back: into ready again, each with its own lane and seq: a new seq would put it behind the
-- whole backlog. One whose place is taken is quarantined.
create or replace function {schema}.put_back(freed {schema}.lease[], moment timestamptz)
returns void
language plpgsql
as $$
#variable_conflict use_column
declare
    v_queued uuid[];
begin
    with queued as (
        insert into ready (lane, seq, job_id, fencing_token, attempts, crashes, snoozes,
                           lease_seconds)
        select l.lane, l.seq, l.job_id, l.fencing_token, l.attempts, l.crashes, l.snoozes,
               l.lease_seconds
          from unnest(put_back.freed) l
         order by l.job_id
            on conflict do nothing
        returning job_id)
    select array_agg(job_id) into v_queued from queued;
    if cardinality(v_queued) is distinct from cardinality(put_back.freed) then
        perform put_in_quarantine(
            array(select to_jsonb(l) from unnest(put_back.freed) l
                   where l.job_id <> all (coalesce(v_queued, '{}'))),
            'already_queued', put_back.moment);
    end if;
    perform wake(array(select distinct l.lane from unnest(put_back.freed) l));
end $$;
