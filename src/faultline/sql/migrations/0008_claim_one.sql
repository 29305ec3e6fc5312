-- claim_one is a verb of its own now, and answers with one job instead of arrays of one.
drop function if exists {schema}.claim_one(text, integer[], bigint[], boolean);
