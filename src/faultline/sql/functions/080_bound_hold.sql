-- bound_hold: the calling transaction now holds a row that others must wait for; have the server
-- cut the session off if it is still open at that moment, usually when the lease runs out. Local to
-- the transaction: a session-wide timeout below the lease would kill honest handlers that call out
-- inside a transaction. Only ever lowers what the user set.
create or replace function {schema}.bound_hold(until timestamptz) returns void
language plpgsql
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_ours timestamptz := nullif(current_setting('faultline.bounded_until', true), '');
    v_until timestamptz := least(bound_hold.until, v_ours);
    v_left_ms double precision := extract(epoch from v_until - v_now) * 1000;
    -- Spelt out: a function for it would cost a fenced transaction 20 µs.
    v_idle_ms double precision := extract(
        epoch from current_setting('idle_in_transaction_session_timeout')::interval) * 1000;
    -- From PostgreSQL 17 on; bounds a running statement too.
    v_whole_ms double precision := extract(
        epoch from current_setting('transaction_timeout', true)::interval) * 1000;
    v_bound integer;
begin
    if v_whole_ms > 0 then
        if v_ours is null then  -- the user's: since the beginning, unless that would be over
            v_whole_ms := coalesce(nullif(greatest(
                v_whole_ms - extract(epoch from v_now - transaction_timestamp()) * 1000, 0), 0),
                v_whole_ms);
        end if;
        v_left_ms := least(v_left_ms, v_whole_ms);
    end if;
    v_bound := greatest(1, ceil(least(v_left_ms, 2e9)))::integer;
    if v_idle_ms = 0 or v_idle_ms > v_bound then
        perform set_config('idle_in_transaction_session_timeout', v_bound::text, true);
    end if;
    if v_whole_ms is not null then
        -- Off first: a timer that runs is not set anew, and it may run though the setting says no
        -- (set in a savepoint that was rolled back). An error that a savepoint caught ends it: then
        -- the other one is left, which the server uses only where it is the lower of both.
        perform set_config('transaction_timeout', '0', true);
        perform set_config('transaction_timeout', (v_bound + 1)::text, true);
    end if;
    perform set_config('faultline.bounded_until', v_until::text, true);
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
