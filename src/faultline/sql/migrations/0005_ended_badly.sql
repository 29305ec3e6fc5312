-- Jobs that failed for good or were cancelled are found without reading those that succeeded:
-- without it, the first page of failed jobs read every success since. A success is not in it, and
-- pays nothing for it (docs/decisions/0012).
create index ended_without_success on {schema}.attempt (job_id)
    where final and outcome <> 'succeeded';
