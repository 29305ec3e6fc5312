-- steps: which intermediate commits of a job are done, by which attempt, and what are they worth?
create or replace view {schema}.steps as
select job_id, step, fencing_token, at, value
  from {schema}.step;
