-- current_epoch: which life of the server hands out tokens, and since when?
create or replace view {schema}.current_epoch as
select e.epoch, e.timeline, e.system_identifier, e.seen_at from {schema}.epoch e;
