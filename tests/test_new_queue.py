"""The first jobs of a queue, which make its lane: none is lost, and nobody waits in a circle.

Method: a session that has used the queue first, and has not committed yet.
"""

from __future__ import annotations

from tests.stage import Stage


def jobs(stage: Stage) -> int:
    return int(stage.value("select count(*) from {schema}.job"))


def test_two_first_users_of_a_queue_both_get_their_job_in(stage: Stage) -> None:
    holder = stage.connect(isolation="read committed")
    call = stage.verbs.enqueue("charge", {"n": 1}, queue="new")
    first = call.run(holder)
    second = stage.background(call, stage.connect()).until_blocked()
    holder.commit()
    assert {stage.state(first), stage.state(second.answer())} == {"queued"}
    assert jobs(stage) == 2
    assert len(stage.verbs.lanes(["new"]).run(stage.conn)) == 1


def test_a_job_and_a_batch_take_a_new_queue_and_a_key_in_the_same_order(stage: Stage) -> None:
    holder = stage.connect(isolation="read committed")
    stage.verbs.enqueue("other", queue="new").run(holder)
    one = stage.verbs.enqueue("charge", {"n": 1}, queue="new", idempotency_key="k")
    waits = stage.background(one, stage.connect()).until_blocked()  # for the queue, without the key
    stage.verbs.enqueue("charge", {"n": 1}, queue="default", idempotency_key="k").run(stage.conn)
    holder.commit()
    assert waits.answer()
    assert jobs(stage) == 2
