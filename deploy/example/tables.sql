-- The example's own table, and all that its workers may do with it.
create table if not exists charge (
    order_id bigint not null,
    at timestamptz not null default clock_timestamp()
);
grant insert on charge to worker;
