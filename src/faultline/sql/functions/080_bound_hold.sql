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

-- bound_open_hold: the same for verbs that may have taken nothing: then `until` is NULL, and the
-- transaction is not bounded. It does not ask whether the transaction is the call's own, which no
-- function can know: BEGIN and the verb may come in one message, or in a DO block.
create or replace function {schema}.bound_open_hold(until timestamptz) returns void
language plpgsql
as $$
begin
    if bound_open_hold.until is not null then
        perform bound_hold(bound_open_hold.until);
    end if;
end $$;

-- bound_brief_hold: the same for verbs that are to be a transaction of their own, and that lock
-- what many wait for: 5 s from now, whatever they changed. Call it at the end, so that the verb's
-- own work is not cut short, however long it takes.
--
-- Before PostgreSQL 17 only a session that idles is cut off. So there a later statement of the
-- transaction may run for 5 s as well; a session that sends one brief statement after the other, or
-- catches each error in a savepoint, is not cut off.
create or replace function {schema}.bound_brief_hold() returns void
language plpgsql
as $$
declare
    v_ms double precision := extract(epoch from current_setting('statement_timeout')::interval)
                             * 1000;
begin
    perform bound_hold(clock_timestamp() + interval '5 s');
    if current_setting('transaction_timeout', true) is null and (v_ms = 0 or v_ms > 5000) then
        perform set_config('statement_timeout', '5000', true);
    end if;
end $$;
