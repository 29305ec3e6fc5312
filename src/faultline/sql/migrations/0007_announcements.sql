-- When a queue's sleepers were last told of a job, and until when that will do: they look again by
-- themselves. Rows are only added and, much later, deleted, so that a pinned snapshot leaves no
-- versions in the way of who asks. A hint, so UNLOGGED.
create unlogged table {schema}.announcement (
    queue text not null,
    quiet_until timestamptz not null,
    txid xid8 not null default pg_current_xact_id(),
    constraint a_transaction_announces_a_moment_once primary key (queue, quiet_until, txid)
);
