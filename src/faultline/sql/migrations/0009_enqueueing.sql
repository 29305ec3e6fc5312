-- These answer now; and nobody but our own functions calls them.
drop function if exists {schema}.announce(text, boolean);
drop function if exists {schema}.check_payload(jsonb, jsonb, integer);
