-- Steps: intermediate commits that happen once per job, whatever number of attempts it takes.

-- begin_step: open a fence, as `fence` does, and look whether the step is done.
--
-- Answers  {"mark": as fence answers, "done": boolean, "value": what was recorded}.
-- Raises   LF001 as fence.
create or replace function {schema}.begin_step(job_id uuid, token bigint, step text) returns jsonb
language plpgsql
{pinned}
as $$
#variable_conflict use_column
declare
    v_mark text := fence(begin_step.job_id, begin_step.token);
    v_step step;
begin
    select * into v_step from step s
     where s.job_id = begin_step.job_id and s.step = begin_step.step;
    return jsonb_build_object('mark', v_mark, 'done', found, 'value', v_step.value);
end $$;

-- record_step: the step is done, in this very transaction and under the live lease. Call it last,
-- as assert_fence, which it includes.
--
-- Ensures  a step has one row over all attempts; whoever would write a second cannot commit. (I3)
-- Locks    as assert_fence, then the step's key.
-- Raises   LF001 as assert_fence, LF003 when the step is done already or its name is no name, 40001
--          under REPEATABLE READ when it was done since the snapshot.
create or replace function {schema}.record_step(
    job_id uuid, token bigint, step text, value jsonb default null
) returns void
language plpgsql
{pinned}
as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();  -- before the lease is found alive: never after its end
begin
    if coalesce(length(record_step.step), 0) not between 1 and 100 then
        perform invalid('the name of a step must have 1 to 100 characters');
    end if;
    perform hold_lease(record_step.job_id, record_step.token, 'record_step');
    insert into step (job_id, step, fencing_token, at, value)
    values (record_step.job_id, record_step.step, record_step.token, v_now,
            nullif(record_step.value, 'null'))
        on conflict do nothing;
    if not found then
        perform invalid(format('step %L of job %s is done already: nothing of this transaction was '
                               'committed; give each step of a task a name of its own',
                               record_step.step, record_step.job_id));
    end if;
end $$;
