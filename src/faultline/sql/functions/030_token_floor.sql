-- token_floor: the lowest token that this life of the server may hand out.
--
-- A standby that lost the last commits would hand out the same numbers again. So a token is
-- greatest(previous + 1, epoch << 40), and the epoch rises with each promotion (the timeline), with
-- each move to another cluster (the system identifier), with each restored dump (the table of the
-- epoch itself is another one then) and by epoch_bump. Epoch 0 is a server that never failed over:
-- tokens 1, 2, 3 … (I4)
--
-- Read it after the rows whose tokens are to be raised are locked: rescue raises it together with
-- the pointers it gives back, and a claim that waited for those would else use the floor of before.
--
-- The timeline is read from the WAL position: pg_control_checkpoint() still shows the old one right
-- after a promotion. It costs 0.3 µs; pg_control_system() reads a file and costs 6, so it is asked
-- only when the postmaster is not the one that was checked last.
create or replace function {schema}.token_floor() returns bigint
language plpgsql
as $$
declare
    e epoch;
begin
    select * into strict e from epoch where one;
    if e.timeline = server_timeline() and e.postmaster_started_at = pg_postmaster_start_time()
       and e.relation = 'epoch'::regclass then
        return e.epoch::bigint << 40;
    end if;
    return see_epoch()::bigint << 40;
end $$;

-- floor_now: the same for verbs that are called in transactions of the user's, which may stay open:
-- it writes nothing down and locks nothing.
create or replace function {schema}.floor_now() returns bigint
language plpgsql
as $$
declare
    e epoch;
begin
    select * into strict e from epoch where one;
    return epoch_of(e)::bigint << 40;
end $$;

-- epoch_of: which epoch it is now, given the last one that was written down. Above every epoch that
-- an ancestor of this data can have used, also when the row's own last change was lost: the
-- distance in timelines is added, not one. A restored dump is as good as a bump.
create or replace function {schema}.epoch_of(e {schema}.epoch) returns integer
language plpgsql
as $$
declare
    v_timeline integer := server_timeline();
begin
    if e.timeline = v_timeline and e.postmaster_started_at = pg_postmaster_start_time()
       and e.relation = 'epoch'::regclass then
        return e.epoch;
    end if;
    return e.epoch + case when e.relation = 'epoch'::regclass then 0 else 16 end + case
        when v_timeline >= e.timeline
             and e.system_identifier = (select system_identifier from pg_control_system())
        then v_timeline - e.timeline
        else v_timeline
    end;
end $$;

-- server_timeline: of the WAL that is being written.
create or replace function {schema}.server_timeline() returns integer
language sql stable
return ('x' || substring(pg_walfile_name(pg_current_wal_insert_lsn()) for 8))::bit(32)::integer;

-- see_epoch: look which life of the server this is, and write down a new one.
--
-- Ensures  after a new epoch each lease starts anew: renewals may have been lost with the old
--          server, and living workers must be able to renew before anyone reclaims. Nobody's token
--          changes.
-- Locks    after a mere restart nothing that anybody waits for. For a new epoch the epoch row, for
--          5 s at most; then lease rows, skipping those in use (their holders are alive).
create or replace function {schema}.see_epoch() returns integer
language plpgsql
as $$
declare
    e epoch;
    v_epoch integer;
begin
    select * into strict e from epoch where one;
    v_epoch := epoch_of(e);
    if v_epoch = e.epoch then
        update epoch set postmaster_started_at = pg_postmaster_start_time()
         where one = (select one from epoch where one for update skip locked);
        return v_epoch;
    end if;
    select * into strict e from epoch where one for update;
    perform bound_hold(clock_timestamp() + interval '5 s');
    v_epoch := epoch_of(e);
    if v_epoch > e.epoch then
        update epoch
           set epoch = v_epoch, timeline = server_timeline(), seen_at = clock_timestamp(),
               system_identifier = (select system_identifier from pg_control_system()),
               relation = 'epoch'::regclass,
               postmaster_started_at = pg_postmaster_start_time();
        perform restart_leases();
    end if;
    return v_epoch;
end $$;

-- epoch_bump: for a restore that leaves no trace (a disk snapshot). Sixteen at once, so that a bump
-- which is itself lost in a failover is not repeated by the timeline's step of one.
--
-- Locks    the epoch row, then as see_epoch. Held for 5 s at most after its end.
create or replace function {schema}.epoch_bump() returns integer
language plpgsql
{definer}
as $$
declare
    v_epoch integer;
begin
    perform see_epoch();
    update epoch set epoch = epoch + 16, seen_at = clock_timestamp() returning epoch into v_epoch;
    perform restart_leases();
    perform bound_brief_hold();
    return v_epoch;
end $$;

-- restart_leases: each lease runs from now again, unless its holder is just using it. Transaction
-- ids of before are not believed any more: a restored copy would give them out again.
create or replace function {schema}.restart_leases() returns void
language plpgsql
as $$
declare
    v_now timestamptz := clock_timestamp();
begin
    update lease l
       set expires_at = greatest(l.expires_at, v_now + make_interval(secs => l.lease_seconds))
      from (select job_id from lease order by job_id for no key update skip locked) alive
     where l.job_id = alive.job_id;
    delete from server_life;
end $$;
