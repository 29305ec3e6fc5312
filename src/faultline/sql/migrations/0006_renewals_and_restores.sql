-- When a lease was renewed lately, oldest first; NULL if never. The attempt inherits it. No
-- default: nothing is rewritten, and a job that ends within its first lease has nothing to carry.
alter table {schema}.lease add column renewals timestamptz[];
alter table {schema}.attempt add column renewals timestamptz[];

-- In which table the epoch was written down: a dump that is restored has made another, and tokens
-- have to rise, as after a failover.
alter table {schema}.epoch add column relation oid;
update {schema}.epoch set relation = '{schema}.epoch'::regclass;
