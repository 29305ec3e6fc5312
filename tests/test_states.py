"""The table of allowed moves: the same in Python and in the database, every row of it walked."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from faultline.states import FINAL, MOVES, State
from tests.stage import Stage

pytestmark = pytest.mark.both_servers
TOP = 2**53 - 1


def test_the_moves_in_python_are_the_moves_in_the_database(stage: Stage) -> None:
    rows = stage.reading.moves(stage.conn)
    assert {(row["from_state"], row["to_state"], row["verb"]) for row in rows} == MOVES


def test_the_documented_moves_are_the_moves() -> None:
    text = Path("docs/states.md").read_text()
    rows = re.findall(r"^\| (\w+) \| (\w+) \| ([a-z_, ]+) \|$", text, re.MULTILINE)
    shown = {
        (None if start == "new" else start, end, verb)
        for start, end, verbs in rows
        for verb in verbs.split(", ")
    }
    assert shown - {("from", "to", "verb")} == MOVES


def scheduled(stage: Stage) -> UUID:
    return stage.enqueue(delay_seconds=3600)


def dead(stage: Stage) -> UUID:
    job_id, token = stage.running(max_attempts=1)
    stage.verbs.fail([(job_id, token)]).run(stage.conn)
    return job_id


def quarantined(stage: Stage) -> UUID:
    job_id, _ = stage.running(max_crashes=1)
    stage.expire(job_id)
    stage.verbs.reclaim().run(stage.conn)
    return job_id


def make_due(stage: Stage, job_id: UUID) -> None:
    stage.execute("update {schema}.scheduled set run_at = now() where job_id = %s", job_id)


def walk_enqueue_queued(stage: Stage) -> UUID:
    return stage.enqueue()


def walk_promote_due(stage: Stage) -> UUID:
    job_id = scheduled(stage)
    make_due(stage, job_id)
    stage.verbs.promote().run(stage.conn)
    return job_id


def walk_promote_parks(stage: Stage) -> UUID:
    job_id = stage.enqueue()
    stage.execute("update {schema}.ready set fencing_token = %s where job_id = %s", TOP, job_id)
    stage.verbs.promote().run(stage.conn)
    return job_id


def settled(verb: str, *more: object, **options: object) -> Callable[[Stage], UUID]:
    def walk(stage: Stage) -> UUID:
        job_id, token = stage.running(**options)
        assert getattr(stage.verbs, verb)([(job_id, token)], *more).run(stage.conn) == []
        return job_id

    return walk


def reclaimed(**options: object) -> Callable[[Stage], UUID]:
    def walk(stage: Stage) -> UUID:
        job_id, _ = stage.running(**options)
        stage.expire(job_id)
        stage.verbs.reclaim().run(stage.conn)
        return job_id

    return walk


def moved_by(verb: str, start: Callable[[Stage], UUID]) -> Callable[[Stage], UUID]:
    def walk(stage: Stage) -> UUID:
        job_id = start(stage)
        getattr(stage.verbs, verb)([job_id]).run(stage.conn)
        return job_id

    return walk


def crashed_before(stage: Stage) -> UUID:
    job_id = reclaimed()(stage)
    stage.claim()
    stage.expire(job_id)
    stage.verbs.reclaim().run(stage.conn)
    return job_id


def undeliverable(stage: Stage) -> UUID:
    job_id = stage.enqueue()
    stage.execute(
        "update {schema}.job set payload_bytes = null, payload = (select jsonb_agg("
        "1e131071::numeric) from generate_series(1, 600)) where id = %s",
        job_id,
    )
    assert stage.claim() == []
    return job_id


def known_again(stage: Stage) -> UUID:
    job_id = settled("decline")(stage)
    assert stage.verbs.know_tasks("B", ["default"], ["work"]).run(stage.conn) == 1
    return job_id


WALKS: dict[tuple[State | None, State, str], Callable[[Stage], UUID]] = {
    (None, State.QUEUED, "enqueue"): walk_enqueue_queued,
    (None, State.SCHEDULED, "enqueue"): scheduled,
    (State.SCHEDULED, State.QUEUED, "promote"): walk_promote_due,
    (State.QUEUED, State.QUARANTINED, "promote"): walk_promote_parks,
    (State.QUEUED, State.RUNNING, "claim"): lambda stage: stage.running()[0],
    (State.QUEUED, State.QUARANTINED, "claim"): undeliverable,
    (State.RUNNING, State.SUCCEEDED, "complete"): settled("complete"),
    (State.RUNNING, State.SCHEDULED, "fail"): settled("fail"),
    (State.RUNNING, State.FAILED, "fail"): settled("fail", max_attempts=1),
    (State.RUNNING, State.SCHEDULED, "snooze"): settled("snooze", [60.0]),
    (State.RUNNING, State.SCHEDULED, "decline"): settled("decline"),
    (State.RUNNING, State.QUEUED, "release"): settled("release"),
    (State.RUNNING, State.CANCELLED, "cancel"): settled("cancel_attempt"),
    (State.RUNNING, State.QUEUED, "reclaim"): reclaimed(),
    (State.RUNNING, State.SCHEDULED, "reclaim"): crashed_before,
    (State.RUNNING, State.QUARANTINED, "reclaim"): reclaimed(max_crashes=1),
    (State.QUEUED, State.CANCELLED, "cancel"): moved_by("cancel", walk_enqueue_queued),
    (State.SCHEDULED, State.QUEUED, "retry"): moved_by("retry", scheduled),
    (State.SCHEDULED, State.QUEUED, "know_tasks"): known_again,
    (State.SCHEDULED, State.CANCELLED, "cancel"): moved_by("cancel", scheduled),
    (State.QUARANTINED, State.CANCELLED, "cancel"): moved_by("cancel", quarantined),
    (State.FAILED, State.QUEUED, "requeue"): moved_by("requeue", dead),
    (State.QUARANTINED, State.QUEUED, "requeue"): moved_by("requeue", quarantined),
}


def test_every_allowed_move_has_a_walk() -> None:
    assert WALKS.keys() == MOVES


@pytest.mark.parametrize("move", sorted(MOVES, key=str), ids=lambda m: f"{m[0]}-{m[2]}-{m[1]}")
def test_every_allowed_move_is_really_made_and_breaks_no_invariant(
    stage: Stage, move: tuple[State | None, State, str]
) -> None:
    job_id = WALKS[move](stage)
    assert stage.state(job_id) == move[1]
    parked_by_force = move[2] == "promote" and move[1] == State.QUARANTINED
    assert stage.violations() == [] or parked_by_force


def test_no_verb_moves_a_job_that_has_ended_except_requeue_from_the_dead(stage: Stage) -> None:
    verbs, conn = stage.verbs, stage.conn
    ended = {
        State.SUCCEEDED: settled("complete")(stage),
        State.CANCELLED: settled("cancel_attempt")(stage),
        State.FAILED: dead(stage),
    }
    assert ended.keys() == FINAL
    for state, job_id in ended.items():
        attempt = [(job_id, 1)]
        for call in (
            verbs.complete(attempt),
            verbs.fail(attempt),
            verbs.snooze(attempt, [0]),
            verbs.release(attempt),
            verbs.cancel_attempt(attempt),
            verbs.execute(attempt),
        ):
            assert [stale.job_id for stale in call.run(conn)] == [job_id]
        assert verbs.renew(attempt).run(conn)[0].verdict == "lost"
        assert verbs.reclaim().run(conn) == []
        assert verbs.reclaim_dead("A").run(conn) == []
        assert verbs.release_others("A", []).run(conn) == []
        assert verbs.promote().run(conn) == 0
        assert verbs.retry([job_id]).run(conn) == []
        assert stage.claim(max_jobs=10) == []
        assert verbs.cancel([job_id]).run(conn)[0].verdict == "finished"
        assert stage.state(job_id) == state
    assert verbs.requeue([ended[State.SUCCEEDED], ended[State.CANCELLED]]).run(conn) == []
    assert stage.violations() == []
