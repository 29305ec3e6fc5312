-- record_endings: one attempt row for each of these leases, just deleted. A reclaim records
-- `expired` and so burns the token: from then on the primary key refuses any other ending for it.
-- (I3, I6)
--
-- Ensures  answers with the jobs whose ending was recorded; one that had an ending already is left
--          out, and so is one whose month has no partition any more: it must not stop its
--          neighbours.
create or replace function {schema}.record_endings(
    taken {schema}.lease[], outcome text, moment timestamptz, error jsonb default null
) returns uuid[]
language plpgsql
as $$
#variable_conflict use_column
declare
    v_ended uuid[];
begin
    with ended as (
        insert into attempt (job_id, fencing_token, claimed_at, at, lease_expired_at, started,
                             final, outcome, worker, error, renewals)
        select l.job_id, l.fencing_token, l.claimed_at, record_endings.moment,
               case record_endings.outcome
               when 'expired' then least(l.expires_at, record_endings.moment) end, l.started,
               record_endings.outcome = 'cancelled', record_endings.outcome, l.worker,
               record_endings.error, l.renewals
          from unnest(record_endings.taken) l
         where coalesce((select true from job j where j.id = l.job_id limit 1),
                        (select true from partition_months() m
                          where l.job_id >= m.lowest and l.job_id < m.beyond limit 1))
         order by l.job_id
            on conflict do nothing
        returning job_id)
    select array_agg(job_id) into v_ended from ended;
    return coalesce(v_ended, '{}');
end $$;

-- without: these leases but for the jobs named, of which nearly all are named. EXCEPT hashes: an
-- array that was searched for each row made a recovery of 20,000 leases take 2 s, of 100,000 48 s.
create or replace function {schema}.without(leases {schema}.lease[], job_ids uuid[])
returns {schema}.lease[]
language plpgsql
as $$
declare
    v_left uuid[] := array(select l.job_id from unnest(without.leases) l
                           except
                           select * from unnest(without.job_ids));
begin
    if v_left = '{}' then
        return '{}';
    end if;
    return array(select l from unnest(without.leases) l where l.job_id = any (v_left));
end $$;
