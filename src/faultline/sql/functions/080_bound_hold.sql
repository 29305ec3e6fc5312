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
    v_whole text := current_setting('transaction_timeout', true);
    v_set_ms double precision;
    v_ours timestamptz;
begin
    if v_whole is null then  -- before PostgreSQL 17
        v_set_ms := extract(
            epoch from current_setting('idle_in_transaction_session_timeout')::interval) * 1000;
        if v_set_ms = 0 or v_set_ms > v_left_ms then
            perform set_config('idle_in_transaction_session_timeout', v_left_ms::text, true);
        end if;
        return;
    end if;
    -- It bounds a running statement as well as an idle session. Its timer runs from when it was
    -- set, by the user at the start or by us since, and starts anew only when it was off before.
    if v_whole <> '0' then
        v_set_ms := extract(epoch from v_whole::interval) * 1000;
        v_ours := nullif(current_setting('faultline.bounded_until', true), '');
        if v_ours <= bound_hold.until
           or v_ours is null and v_left_ms
              > v_set_ms - extract(epoch from v_now - transaction_timestamp()) * 1000 then
            return;
        end if;
        perform set_config('transaction_timeout', '0', true);
    end if;
    perform set_config('transaction_timeout', v_left_ms::text, true),
            set_config('faultline.bounded_until', bound_hold.until::text, true);
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
