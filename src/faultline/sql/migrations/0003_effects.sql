-- What the user's own writes need: steps that are committed once, and a way to learn what became of
-- a COMMIT that was never answered.

-- Which intermediate commits of a job are done, and what they were worth. Written in the commit
-- itself; kept as long as the job, so that a requeued one goes on where it was.
create table {schema}.step (
    job_id uuid not null,
    step text not null,
    fencing_token bigint not null,
    txid xid8 not null default pg_current_xact_id(),
    at timestamptz not null,
    value jsonb,
    constraint a_step_is_committed_once primary key (job_id, step)
);

-- One row with a random name for the time in which transaction ids mean what they meant. UNLOGGED,
-- so that the server itself empties it whenever ids may be given out again: after a crash, on a
-- promoted standby, on a restored backup. `beat` puts a new name in.
create unlogged table {schema}.server_life (
    one boolean not null default true,
    life uuid not null default gen_random_uuid(),
    constraint a_server_has_one_life primary key (one),
    constraint there_is_one_row check (one)
);
insert into {schema}.server_life default values;

-- A refusal also says which write was refused and how late it came.
alter type {schema}.stale add attribute operation text, add attribute late_seconds double precision;

-- They answer with more, or are told more; functions are made anew after the migrations.
drop function if exists {schema}.fence(uuid, bigint);
drop function if exists {schema}.renew(uuid[], bigint[]);
drop function if exists {schema}.raise_stale(uuid, bigint);
drop function if exists {schema}.swap(
    uuid[], bigint[], jsonb, text, integer[], integer, bigint[], boolean);
