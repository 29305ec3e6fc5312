-- claim_one is a verb of its own now, and answers with one job instead of arrays of one.
drop function if exists {schema}.claim_one(text, integer[], bigint[], boolean);

-- Whether any queue is paused is asked by every claim: nearly always this is empty.
create index a_paused_queue_is_found_at_once on {schema}.queue (queue) where paused;
