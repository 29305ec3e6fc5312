-- The fence on the user's own writes.

-- assert_fence: the write gate. Returns if (job, token) holds a live lease, and then nobody can
-- reclaim the job before this transaction ends. Call it last, and not inside a savepoint that may
-- be rolled back: that would give the lock back.
--
-- Ensures  a transaction that has passed it commits before any successor is leased the job, or not
--          at all: a session that stalls is cut off when the lease runs out. (I3)
-- Locks    the lease row, FOR KEY SHARE: conflicts with the DELETE of reclaim, not with renew.
-- Raises   LF001 stale; 40001 under REPEATABLE READ when the lease has changed since the snapshot.
create or replace function {schema}.assert_fence(job_id uuid, token bigint) returns void
language plpgsql
{pinned}
as $$
begin
    perform hold_lease(assert_fence.job_id, assert_fence.token, 'assert_fence');
end $$;

-- hold_lease: what assert_fence is, for whoever says which operation is refused.
create or replace function {schema}.hold_lease(job_id uuid, token bigint, operation text)
returns void
language plpgsql
as $$
declare
    v_expires_at timestamptz;
begin
    -- The clock is read after the lock is held, and never as now(), which stands still inside a
    -- transaction: a lease that died meanwhile would still look alive.
    select l.expires_at into v_expires_at from lease l
     where l.job_id = hold_lease.job_id and l.fencing_token = hold_lease.token
       for key share;
    if v_expires_at is null or v_expires_at <= clock_timestamp() then
        perform raise_stale(hold_lease.job_id, hold_lease.token, hold_lease.operation);
    end if;
    perform bound_hold(v_expires_at);
end $$;

-- fence: open a fence for this transaction; it is checked when the transaction commits. The check
-- is deferred, because a lock held from here on would let a stalled worker block the reclaim.
--
-- Answers  with the mark to ask commit_status about, should the answer to the COMMIT be lost.
-- Raises   LF001 now if the lease is already lost, and again at COMMIT if it is lost by then.
create or replace function {schema}.fence(job_id uuid, token bigint) returns text
language plpgsql
{pinned}
as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    v_mark text;
begin
    insert into fence_tx (job_id, fencing_token)
    select l.job_id, l.fencing_token from lease l
     where l.job_id = fence.job_id and l.fencing_token = fence.token and l.expires_at > v_now
        on conflict do nothing
    returning transaction_mark(txid, (select life from server_life)) into v_mark;
    -- Not found: the lease is lost, or this transaction has a fence for the job already; one under
    -- another token is none.
    if v_mark is null then
        if not exists (select from lease l
                        where l.job_id = fence.job_id and l.fencing_token = fence.token
                          and l.expires_at > v_now)
           or not exists (select from fence_tx f
                           where f.txid = pg_current_xact_id() and f.job_id = fence.job_id
                             and f.fencing_token = fence.token) then
            perform raise_stale(fence.job_id, fence.token, 'fence');
        end if;
        v_mark := transaction_mark(pg_current_xact_id(), (select life from server_life));
    end if;
    return v_mark;
end $$;

-- check_fence_at_commit: the lease is live, or this very transaction ended the attempt as succeeded
-- or failed. Any other ending of this transaction does not count: a stale worker could call reclaim
-- in it.
create or replace function {schema}.check_fence_at_commit() returns trigger
language plpgsql
{pinned}
as $$
declare
    v_expires_at timestamptz;
begin
    delete from fence_tx f where f.txid = new.txid and f.job_id = new.job_id;
    select l.expires_at into v_expires_at from lease l
     where l.job_id = new.job_id and l.fencing_token = new.fencing_token
       for key share;
    if v_expires_at > clock_timestamp() then
        -- With SET CONSTRAINTS … IMMEDIATE this is not the end yet, and the lock is held from here.
        perform bound_hold(v_expires_at);
        return null;
    end if;
    if not exists (select from attempt a
                    where a.job_id = new.job_id and a.fencing_token = new.fencing_token
                      and a.txid = new.txid and a.outcome in ('succeeded', 'failed')) then
        perform raise_stale(new.job_id, new.fencing_token, 'commit');
    end if;
    return null;
end $$;

do $do$
begin
    if not exists (select from pg_trigger where tgrelid = '{schema}.fence_tx'::regclass
                      and tgname = 'a_fence_is_checked_at_commit') then
        create constraint trigger a_fence_is_checked_at_commit
            after insert on {schema}.fence_tx
            deferrable initially deferred
            for each row execute function {schema}.check_fence_at_commit();
    end if;
    -- Otherwise whoever may set session_replication_role commits unchecked. Only if it is not so
    -- yet: the lock that this takes would be in the way of everybody's fences.
    if exists (select from pg_trigger where tgrelid = '{schema}.fence_tx'::regclass
                  and tgname = 'a_fence_is_checked_at_commit' and tgenabled <> 'A') then
        alter table {schema}.fence_tx enable always trigger a_fence_is_checked_at_commit;
    end if;
end $do$;
