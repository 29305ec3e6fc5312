-- What the engine adds: a place for what running attempts say of themselves.

-- The last report of a running attempt. Shown only while that very attempt holds the lease, and
-- removed by reconcile afterwards: the settling verbs do not pay for it. Not UNLOGGED: the view
-- jobs reads it, also on a standby.
create table {schema}.progress (
    job_id uuid not null,
    fencing_token bigint not null,
    at timestamptz not null,
    report jsonb not null,
    constraint an_attempt_has_one_last_report primary key (job_id)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_cost_delay = 0);

-- What a verb answers for each lease that it took away from its owner.
create type {schema}.reclaimed as (
    job_id uuid, fencing_token bigint, worker text, state text, crashes integer
);

-- They answer with one column more; functions are made anew after the migrations.
drop function if exists {schema}.status(uuid);
drop function if exists {schema}.claim_one(text, integer[], bigint[], boolean);
drop function if exists {schema}.claim(text, integer[], integer, bigint[], boolean);
drop function if exists {schema}.swap(
    uuid[], bigint[], jsonb, text, integer[], integer, bigint[], boolean);
