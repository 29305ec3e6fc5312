-- moves: which verb may move a job from which state to which? states.MOVES in Python is the same
-- table; a test compares the two, and walks every row.
create or replace view {schema}.moves (from_state, to_state, verb) as
values (null, 'queued', 'enqueue'),
       (null, 'scheduled', 'enqueue'),
       ('scheduled', 'queued', 'promote'),
       ('scheduled', 'queued', 'retry'),
       ('queued', 'running', 'claim'),
       ('running', 'succeeded', 'complete'),
       ('running', 'scheduled', 'fail'),
       ('running', 'failed', 'fail'),
       ('running', 'scheduled', 'snooze'),
       ('running', 'queued', 'release'),
       ('running', 'queued', 'reclaim'),
       ('running', 'quarantined', 'reclaim'),
       ('running', 'cancelled', 'cancel'),
       ('queued', 'cancelled', 'cancel'),
       ('scheduled', 'cancelled', 'cancel'),
       ('quarantined', 'cancelled', 'cancel'),
       ('queued', 'quarantined', 'promote'),
       ('failed', 'queued', 'requeue'),
       ('quarantined', 'queued', 'requeue');
