"""One submission arrives several times, because whoever sent it died and somebody sent it again."""

from __future__ import annotations

from uuid import UUID

from faultline.drills.arena import until
from faultline.drills.scenario import Kind
from faultline.drills.scene import Scene
from faultline.drills.submitters import Submitter


def play(scene: Scene) -> None:
    """A producer is killed in mid-submission while others submit the same thing."""
    scene.bystanders(4, 7)
    key = f"{scene.scenario.id}-{scene.random.random()}"
    victim, *others = scene.arena.submitters(3)
    pause = ("uncommitted", "committed")[scene.scenario.seed % 2]
    arguments = scene.arguments(["effect-0"])
    options = {"idempotency_key": key, "lease_seconds": scene.lease_seconds}
    victim.send(arguments, options, pause)
    victim.answer()  # it is there
    for other in others:
        other.send(arguments, options)
    if pause == "uncommitted":
        until(lambda: _waiting(scene) == len(others), "the others wait for the end of the first")
    victim.kill()
    scene.arena.history.add("enqueue", "unknown", "", why=f"killed, {pause}")
    scene.record(scene.arena.fault(f"SIGKILL of a producer, {pause}", victim.pid))
    answers = [other.answer() for other in others]
    again = others[0]
    again.send(arguments, options)  # and once more, because one never knows
    answers.append(again.answer())
    _one_job(scene, answers)
    _conflict(scene, again, options)


def _waiting(scene: Scene) -> int:
    """The sessions that wait for a lock in this database."""
    row = scene.arena.conn.execute(
        "select count(*) from pg_stat_activity "
        "where datname = current_database() and wait_event_type = 'Lock'"
    ).fetchone()
    assert row is not None
    return int(row[0])


def _one_job(scene: Scene, answers: list[dict[str, str]]) -> None:
    ids = {answer.get("job_id", str(answer)) for answer in answers}
    if len(ids) != 1:
        scene.violations.append(f"one submission gave several answers: {sorted(ids)}")
    for job_id in ids:
        scene.expect(UUID(job_id), ["effect-0"], ["succeeded"])
    for job_id in ids:
        scene.until_state(UUID(job_id), "succeeded")


def _conflict(scene: Scene, submitter: Submitter, options: dict[str, object]) -> None:
    """The same key for something else is no second job, but an error."""
    submitter.send(scene.arguments(["effect-0", "effect-1"]), options)
    if "error" not in (answer := submitter.answer()):
        scene.violations.append(f"a key was taken for two different jobs: {answer}")


DUPLICATE_SUBMISSION = Kind(
    "duplicate_submission",
    "SIGKILL of a producer in mid-submission, while others submit the same thing",
    play,
    full=220,
    quick=8,
    token_rises=False,
    at_default=0,
)
