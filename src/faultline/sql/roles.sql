-- What each role may do. No role has any privilege on a table: verbs are EXECUTE, questions are
-- views. Applied on every migrate, unless --no-roles.
grant usage on schema {schema}
    to {schema}_worker, {schema}_producer, {schema}_operator, {schema}_reader;

-- worker: the life of a job, from claim to its ending, and the fence on its own writes.
grant execute on function
    {schema}.schema_version, {schema}.lanes, {schema}.claim, {schema}.claim_one,
    {schema}.execute, {schema}.renew,
    {schema}.adopt, {schema}.complete, {schema}.complete_one, {schema}.swap, {schema}.fail,
    {schema}.snooze, {schema}.decline,
    {schema}.release, {schema}.release_others, {schema}.cancel_attempt, {schema}.busy,
    {schema}.progress,
    {schema}.reclaim, {schema}.reclaim_dead, {schema}.promote, {schema}.reconcile,
    {schema}.assert_fence, {schema}.fence, {schema}.begin_step, {schema}.record_step,
    {schema}.same_transaction, {schema}.commit_status, {schema}.report_refusal, {schema}.outcome,
    {schema}.outcomes, {schema}.beat, {schema}.know_tasks, {schema}.leave, {schema}.sleep,
    {schema}.awake,
    {schema}.create_partitions, {schema}.compact_if_bloated, {schema}.spare_vacuum,
    {schema}.apply_retention
    to {schema}_worker;

-- producer: enqueue, and look at or cancel what it enqueued itself. A worker's handler may enqueue
-- too.
grant execute on function
    {schema}.schema_version, {schema}.enqueue, {schema}.enqueue_many, {schema}.status,
    {schema}.cancel, {schema}.new_id
    to {schema}_producer, {schema}_worker;

-- operator: whatever a person on call may have to do.
grant execute on function
    {schema}.schema_version, {schema}.lanes, {schema}.status, {schema}.cancel, {schema}.retry,
    {schema}.requeue, {schema}.pause, {schema}.reclaim, {schema}.reclaim_dead, {schema}.promote,
    {schema}.reconcile, {schema}.epoch_bump, {schema}.rescue,
    {schema}.compact, {schema}.compact_if_bloated, {schema}.spare_vacuum,
    {schema}.create_partitions,
    {schema}.drop_partitions, {schema}.apply_retention, {schema}.set_retention, {schema}.outcome,
    {schema}.outcomes, {schema}.guard, {schema}.unguard
    to {schema}_operator;
-- What these two need, since they run with the rights of their caller.
grant execute on function {schema}.guard_tree, {schema}.check_guard to {schema}_operator;

-- reader: the views, and only they. (Two of them ask sleeping and shown_bytes; backlog is for
-- autoscalers.)
grant execute on function {schema}.schema_version to {schema}_reader;
grant execute on function {schema}.sleeping, {schema}.shown_bytes, {schema}.backlog
    to {schema}_reader, {schema}_operator;
grant select on {views} to {schema}_reader, {schema}_operator;
