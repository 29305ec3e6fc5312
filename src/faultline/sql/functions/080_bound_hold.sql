-- bound_hold: the calling transaction now holds a row that others must wait for; have the server
-- cut the session off if it is still open at that moment, usually when the lease runs out. Local to
-- the transaction: a session-wide timeout below the lease would kill honest handlers that call out
-- inside a transaction. Only ever lowers what the user set.
create or replace function {schema}.bound_hold(until timestamptz) returns void
language plpgsql
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_left_ms integer := greatest(1, ceil(least(
        extract(epoch from bound_hold.until - v_now) * 1000, 2e9)))::integer;
    -- Spelt out: a function for it would cost a fenced transaction 20 µs.
    v_idle_ms double precision := extract(
        epoch from current_setting('idle_in_transaction_session_timeout')::interval) * 1000;
    v_whole_ms double precision := extract(
        epoch from current_setting('transaction_timeout', true)::interval) * 1000;
    v_ours timestamptz := nullif(current_setting('faultline.bounded_until', true), '');
begin
    if v_idle_ms = 0 or v_idle_ms > v_left_ms then
        perform set_config('idle_in_transaction_session_timeout', v_left_ms::text, true);
    end if;
    -- From PostgreSQL 17 on; bounds a running statement too. Its timer runs from when it was set,
    -- by the user at the start or by us since, and starts anew only when it was off before.
    if v_whole_ms is null or v_ours <= bound_hold.until
       or v_ours is null and v_whole_ms > 0 and v_left_ms
              > v_whole_ms - extract(epoch from v_now - transaction_timestamp()) * 1000 then
        return;
    end if;
    perform set_config('transaction_timeout', '0', true);
    perform set_config('transaction_timeout', v_left_ms::text, true);
    perform set_config('faultline.bounded_until', bound_hold.until::text, true);
end $$;

-- bound_open_hold: the same for verbs that are usually a transaction of their own, in which there
-- is nothing to bound: only inside one that was open before this statement.
create or replace function {schema}.bound_open_hold(until timestamptz) returns void
language plpgsql
as $$
begin
    if statement_timestamp() <> transaction_timestamp() and bound_open_hold.until is not null then
        perform bound_hold(bound_open_hold.until);
    end if;
end $$;
