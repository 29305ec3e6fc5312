-- Jobs that failed for good or were cancelled are found without reading those that succeeded:
-- without it, the first page of failed jobs read every success since. A success is not in it, and
-- its INSERT alone took as long with it as without; for complete as a whole that is not settled
-- (docs/decisions/0012).
create index ended_without_success on {schema}.attempt (job_id)
    where final and outcome <> 'succeeded';
