-- No job stops its neighbours: limits on what a job may ask for, and what the verbs have to know.

-- Bytes of the text of payload and headers: a claim bounds what it answers with. NULL in a job that
-- the release before has enqueued.
alter table {schema}.job add column if not exists payload_bytes integer;

-- A claim never answers with more than 64 MiB. The floor of a lease may be lowered, in tests.
update {schema}.setting set payload_limit_bytes = 16777216 where payload_limit_bytes > 16777216;
alter table {schema}.setting
    add column if not exists lease_seconds_floor double precision not null default 1,
    drop constraint if exists a_payload_limit_is_at_most_16_mib,
    drop constraint if exists the_floor_of_a_lease_is_at_most_a_second,
    add constraint a_payload_limit_is_at_most_16_mib check (payload_limit_bytes <= 16777216),
    add constraint the_floor_of_a_lease_is_at_most_a_second
        check (lease_seconds_floor between 0.001 and 1);

-- True for all but the first 100 lanes of a queue: an enqueue into one counts the lanes in use.
alter table {schema}.lane add column if not exists counted boolean not null default false;
update {schema}.lane l set counted = true
  from (select lane, row_number() over (partition by queue order by lane) as place
          from {schema}.lane) numbered
 where numbered.lane = l.lane and numbered.place > 100;

-- The task that a declined job waits for. Few jobs have one, so know_tasks finds them by an index
-- that is nearly always empty.
alter table {schema}.scheduled add column if not exists awaits text;
create index if not exists the_jobs_that_await_a_task on {schema}.scheduled (awaits)
    where awaits is not null;

-- The tasks that a worker has a handler for; NULL: a worker of the release before.
alter table {schema}.worker add column if not exists tasks text[];

alter table {schema}.quarantine
    drop constraint if exists a_quarantine_has_a_known_reason,
    add constraint a_quarantine_has_a_known_reason check (reason in
        ('crashed_too_often', 'token_exhausted', 'attempt_already_ended', 'lease_already_held',
         'already_queued', 'job_missing', 'undeliverable'));
