-- pointers: in which table does each job that is not finished stand, and at which token?
create or replace view {schema}.pointers as
select 'ready' as place, job_id, fencing_token from {schema}.ready
union all
select 'scheduled', job_id, fencing_token from {schema}.scheduled
union all
select 'lease', job_id, fencing_token from {schema}.lease
union all
select 'quarantine', job_id, fencing_token from {schema}.quarantine;
