-- claim_one is a verb of its own now, and answers with one job instead of arrays of one.
drop function if exists {schema}.claim_one(text, integer[], bigint[], boolean);

-- Whether any queue is paused is asked by every claim: nearly always this is empty.
create index a_paused_queue_is_found_at_once on {schema}.queue (queue) where paused;

-- Vacuum gives the end of an empty table back to the disk under a lock that stops everybody, again
-- and again for seconds: at 30,000 jobs/s a worker was held up until a quarter of a million waited.
-- What is empty here is soon used again.
alter table {schema}.ready set (vacuum_truncate = off);
alter table {schema}.lease set (vacuum_truncate = off);
alter table {schema}.scheduled set (vacuum_truncate = off);
alter table {schema}.progress set (vacuum_truncate = off);
