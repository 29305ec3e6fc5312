-- bound_hold: the calling transaction now holds a lease row that a reclaim must wait for; have the
-- server cut the session off if it is still open when the lease runs out. Local to the transaction:
-- a session-wide timeout below the lease would kill honest handlers that call out inside a
-- transaction. Only ever lowers what the user set.
create or replace function {schema}.bound_hold(expires_at timestamptz) returns void
language plpgsql
as $$
declare
    v_left_ms integer := greatest(1, ceil(least(
        extract(epoch from bound_hold.expires_at - clock_timestamp()) * 1000, 2e9)))::integer;
    v_timeout text;
    v_set_ms double precision;
begin
    foreach v_timeout in array array['idle_in_transaction_session_timeout', 'transaction_timeout']
    loop
        -- transaction_timeout exists from PostgreSQL 17 on; it also bounds a running statement.
        v_set_ms := extract(epoch from current_setting(v_timeout, true)::interval) * 1000;
        if v_set_ms = 0 or v_set_ms > v_left_ms then
            perform set_config(v_timeout, v_left_ms::text, true);
        end if;
    end loop;
end $$;
