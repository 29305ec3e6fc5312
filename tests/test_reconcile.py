"""The reconcile: what expired is taken over, what is due is queued, what is over is forgotten.

And what it forgets: the reports of running attempts. Leases, due times and reports are aged by
moving their rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from faultline.call import Call
from faultline.errors import InvalidArgument
from faultline.jobs import Reconciled
from tests.command import refusal
from tests.stage import Stage, until

pytestmark = pytest.mark.both_servers
NOTHING = Reconciled([], 0, None)


def reconcile(stage: Stage, max_jobs: int = 1000) -> Reconciled:
    return stage.verbs.reconcile(max_jobs).run(stage.conn)


def reports(stage: Stage) -> dict[UUID, Any]:
    """What is kept, whether it is shown or not."""
    return dict(stage.execute("select job_id, report from {schema}.progress"))


def make_due(stage: Stage, *job_ids: UUID) -> None:
    due = "update {schema}.scheduled set run_at = clock_timestamp() where job_id = any (%s)"
    stage.execute(due, list(job_ids))


def test_a_reconcile_takes_over_what_expired_and_queues_what_is_due(stage: Stage) -> None:
    job_id, token = stage.running("A", lease_seconds=600)
    due = stage.enqueue(delay_seconds=3600)
    assert reconcile(stage).promoted == 0
    stage.expire(job_id)
    make_due(stage, due)
    answer = reconcile(stage)
    (reclaimed,) = answer.reclaimed
    assert (reclaimed.job_id, reclaimed.token, reclaimed.worker) == (job_id, token, "A")
    assert (reclaimed.state, reclaimed.crashes) == ("queued", 1)
    assert (answer.promoted, answer.next_seconds) == (1, None)
    assert [stage.state(job) for job in (job_id, due)] == ["queued", "queued"]
    assert reconcile(stage) == NOTHING
    assert stage.violations() == []


@pytest.mark.parametrize(
    ("lease_seconds", "delay_seconds", "expected"),
    [(600, None, 600), (None, 500, 500), (600, 500, 500), (500, 600, 500), (None, None, None)],
)
def test_a_reconciler_knows_how_long_it_may_sleep(
    stage: Stage, lease_seconds: float | None, delay_seconds: float | None, expected: float | None
) -> None:
    if lease_seconds:
        stage.running("A", lease_seconds=lease_seconds)
    if delay_seconds:
        stage.enqueue(delay_seconds=delay_seconds)
    answer = reconcile(stage)
    if expected is None:
        assert answer == NOTHING
    else:
        assert answer.next_seconds is not None
        assert expected - 60 < answer.next_seconds <= expected


@pytest.mark.parametrize("kind", ["expired", "due"])
def test_work_that_a_reconcile_left_over_is_worth_another_one_at_once(
    stage: Stage, kind: str
) -> None:
    if kind == "expired":
        stage.expire(*(stage.running("A")[0] for _ in range(3)))
    else:
        make_due(stage, *(stage.enqueue(delay_seconds=60) for _ in range(3)))
    for left in (2, 1, 0):
        answer = reconcile(stage, max_jobs=1)
        assert len(answer.reclaimed) + answer.promoted == 1
        assert answer.next_seconds == (0 if left else None)


def test_overdue_work_that_somebody_holds_is_neither_waited_for_nor_asked_for_in_a_spin(
    stage: Stage,
) -> None:
    attempt = stage.running("A")
    open_transaction = stage.connect(isolation="read committed")
    stage.verbs.assert_fence(*attempt).run(open_transaction)
    stage.execute("update {schema}.lease set expires_at = clock_timestamp() - interval '1 s'")
    assert reconcile(stage) == Reconciled([], 0, 0.25)
    open_transaction.rollback()
    assert [x.job_id for x in reconcile(stage).reclaimed] == [attempt[0]]


def test_two_that_reconcile_at_once_share_the_work_and_nothing_is_done_twice(stage: Stage) -> None:
    expired = [stage.running("A")[0] for _ in range(4)]
    due = [stage.enqueue(delay_seconds=60) for _ in range(4)]
    stage.expire(*expired)
    make_due(stage, *due)
    other = stage.connect(isolation="read committed")
    first = stage.verbs.reconcile(2).run(other)
    second = reconcile(stage)  # does not wait for the first
    other.commit()
    assert len(first.reclaimed) == first.promoted == 2
    assert sorted(x.job_id for x in first.reclaimed + second.reclaimed) == sorted(expired)
    assert second.promoted == 2
    assert len(stage.claim("B", 100)) == 8
    assert stage.violations() == []


def test_a_reconcile_does_not_wait_for_who_asks_a_job_to_stop_once_more(stage: Stage) -> None:
    first, second = stage.running("A"), stage.running("A")
    stage.verbs.cancel([first[0]], "unwanted").run(stage.conn)
    asking = stage.connect(isolation="read committed")
    stage.verbs.cancel([first[0]], "really").run(asking)
    stage.expire(first[0], second[0])
    states = {x.job_id: x.state for x in reconcile(stage).reclaimed}
    asking.commit()
    assert states == {first[0]: "cancelled", second[0]: "queued"}
    assert stage.state(first[0]) == "cancelled"
    assert stage.violations() == []


def test_workers_that_were_silent_for_a_day_are_forgotten_unless_they_hold_a_lease(
    stage: Stage,
) -> None:
    for worker in ("fresh", "silent", "busy"):
        stage.verbs.beat(worker, ["default"]).run(stage.conn)
        stage.verbs.sleep(worker, ["default"], 1).run(stage.conn)
    stage.running("busy")
    ages = "set seen_at = seen_at - interval '25 hours' where worker <> 'fresh'"
    stage.execute(f"update {{schema}}.worker {ages}")
    stage.execute("update {schema}.sleeper set until = until - interval '25 hours'")
    reconcile(stage)
    assert [w["worker"] for w in stage.reading.workers(stage.conn)] == ["busy", "fresh"]
    assert stage.value("select count(*) from {schema}.sleeper where worker = 'silent'") == 0


def test_where_leases_and_workers_are_many_not_each_reconcile_reads_all_the_leases(
    stage: Stage,
) -> None:
    """Dead leases count too: while a snapshot is pinned they are walked over."""
    job_id, _ = stage.running("A")
    stage.execute(
        "insert into {schema}.lease select {schema}.new_id(), 1, 1, 'infinity', clock_timestamp(), "
        "1, 0, 0, 0, 30, true, 'B' from generate_series(1, 50000)"
    )
    stage.execute("delete from {schema}.lease where job_id <> %s", job_id)
    stage.execute("select pg_stat_force_next_flush()")
    rows = "select pg_stat_get_dead_tuples('{schema}.lease'::regclass)"
    until(lambda: stage.value(rows) >= 50_000, "the statistics say so")
    stage.expire(job_id)
    stage.crowd(100_000)
    assert reconcile(stage) == NOTHING
    stage.execute("delete from {schema}.worker")
    assert [x.job_id for x in reconcile(stage).reclaimed] == [job_id]


# ── what a running attempt says of itself ────────────────────────────────────────────────────────


def shown(stage: Stage, job_id: UUID) -> Any:
    """The progress, which the view and the producer's status agree on."""
    status = stage.verbs.status(job_id).run(stage.conn)
    assert status is not None
    assert status.progress == stage.job(job_id)["progress"]
    return status.progress


def test_a_report_is_shown_until_the_lease_ends_and_the_last_one_counts(stage: Stage) -> None:
    attempt, silent = stage.running("A"), stage.running("A")
    report = stage.verbs.progress
    report([attempt, attempt], [{"done": 1}, {"done": 2}]).run(stage.conn)
    assert shown(stage, attempt[0]) == {"done": 2}
    report([attempt], ["nearly"]).run(stage.conn)
    assert shown(stage, attempt[0]) == "nearly"
    assert shown(stage, silent[0]) is None
    stage.verbs.complete([attempt]).run(stage.conn)
    assert shown(stage, attempt[0]) is None


def test_a_stale_attempt_cannot_report_and_does_not_stop_its_neighbours(stage: Stage) -> None:
    stale, neighbour = stage.running("A"), stage.running("A")
    late = stage.running("A")
    current = stage.take_over(stale[0])
    stage.expire(late[0])
    call = stage.verbs.progress([stale, late, neighbour], ["stale", "late", "alive"])
    call.run(stage.conn)
    assert reports(stage) == {neighbour[0]: "alive"}
    stage.verbs.progress([stale, current], ["stale", "mine"]).run(stage.conn)
    assert shown(stage, stale[0]) == "mine"
    assert stage.refusals(stale[0]) == []


def test_a_report_that_was_held_up_does_not_cover_the_successors(stage: Stage) -> None:
    """The first attempt finds its lease alive, and then waits until the second has reported."""
    first = stage.running("A")
    stage.verbs.progress([first], ["old"]).run(stage.conn)
    holder = stage.connect(isolation="read committed")
    holder.execute("select from faultline.progress for update")
    held_up = stage.background(stage.verbs.progress([first], ["too late"]), stage.connect())
    held_up.until_blocked()
    second = stage.take_over(first[0])
    stage.verbs.progress([second], ["new"]).run(holder)
    holder.commit()
    held_up.answer()
    assert shown(stage, first[0]) == "new"


def test_the_report_of_an_attempt_is_not_taken_for_its_successors(stage: Stage) -> None:
    attempt = stage.running("A")
    stage.verbs.progress([attempt], ["half"]).run(stage.conn)
    stage.take_over(attempt[0])
    assert shown(stage, attempt[0]) is None
    assert reports(stage) == {attempt[0]: "half"}


def test_a_reconcile_removes_reports_without_their_lease_and_no_others(stage: Stage) -> None:
    ended, successor, running = stage.running("A"), stage.running("A"), stage.running("A")
    stage.verbs.progress([ended, successor, running], [1, 2, 3]).run(stage.conn)
    stage.verbs.complete([ended]).run(stage.conn)
    stage.take_over(successor[0])
    reconcile(stage)
    assert len(reports(stage)) == 3  # a minute is left to who just wants to look
    stage.execute("update {schema}.progress set at = at - interval '2 minutes'")
    reconcile(stage)
    assert reports(stage) == {running[0]: 3}


@pytest.mark.parametrize("said", ["[]", "[1, 2]", "{}", "null", None])
def test_reports_that_are_not_one_for_each_attempt_are_rejected(
    stage: Stage, said: str | None
) -> None:
    attempt = stage.running("A")
    call = Call("faultline", "progress", "select faultline.progress(%s, %s, %s::jsonb)",
                ([attempt[0]], [attempt[1]], said), list)  # fmt: skip
    with pytest.raises(InvalidArgument, match="reports must be a JSON array"):
        call.run(stage.conn)


def test_a_reconciler_whose_login_may_not_reconcile_ends_at_once_and_says_what_to_grant(
    stage: Stage, tmp_path: Path
) -> None:
    """And does not call it an outage, again and again."""
    with stage.login("producer") as url:
        said = refusal("reconcile", home=tmp_path, FAULTLINE_DATABASE_URL=url)
    assert "may not call reconcile" in said
    assert "GRANT faultline_worker" in said
