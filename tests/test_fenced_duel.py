"""The duel over the handlers' own writes: every shape of handler, real workers, and SIGSTOP.

Worker A runs one job of each shape and is stopped when all its handlers are inside; B takes them
all over and finishes; A wakes, and each of its handlers goes on to write. Twice: with leases that
run out by themselves, so that A notices and tells its handlers, which do not heed it; and with
leases that are taken from A while its own clock says that they are fine, so that only the database
stands between a late write and the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from tests.duelling import TABLES
from tests.stage import Stage, until
from tests.workers import Ground, Process

# Which operation is refused, if nobody tells the handler before.
SHAPES: list[tuple[str, dict[str, Any], str]] = [
    ("fenced", {"complete": True, "stall": "before"}, "fence"),
    ("fenced", {"complete": True, "stall": "opened"}, "complete_one"),
    ("fenced", {"complete": True, "stall": "written"}, "complete_one"),
    ("fenced", {"stall": "before"}, "fence"),
    ("fenced", {"stall": "opened"}, "assert_fence"),
    ("fenced", {"stall": "written"}, "assert_fence"),
    ("fenced", {"emit": True, "stall": "opened"}, "assert_fence"),
    ("fenced", {"emit": True, "complete": True, "stall": "written"}, "complete_one"),
    ("fenced", {"step": "charge", "stall": "before"}, "fence"),
    ("fenced", {"step": "charge", "stall": "opened"}, "record_step"),
    ("fenced", {"step": "charge", "emit": True, "stall": "written"}, "record_step"),
    ("fenced", {"swallow": True, "stall": "before"}, "complete"),
    ("fenced", {"swallow": True, "stall": "written"}, "complete"),
    ("whole", {"stall": "opened"}, "complete_one"),
    ("whole", {"stall": "written"}, "complete_one"),
    ("session", {"complete": True, "stall": "before"}, "fence"),
    ("session", {"complete": True, "stall": "opened"}, "complete_one"),
    ("session", {"stall": "written"}, "assert_fence"),
    ("gate", {"stall": "opened"}, "assert_fence"),
    ("gate", {"stall": "written"}, "assert_fence"),
    ("gate", {"swallow": True, "stall": "written"}, "complete"),
    ("guarded", {"stall": "before"}, "fence"),
    ("guarded", {"stall": "opened"}, "commit"),
    ("guarded", {"stall": "written"}, "commit"),
    ("guarded", {"swallow": True, "stall": "written"}, "complete"),
    ("guarded", {"forget": True, "stall": "before"}, "fail"),
]
# Behind its own gate a handler holds its lease, until the server cuts it off when that runs out.
CUT_OFF = ("gate", {"stall": "checked"}, "fail")
# Told, a handler finds its connection cut, or is cancelled, and its job is handed back: too late.
TOLD = {"release"}
MESSAGES = (
    "select token from (select (headers ->> 'job_id')::uuid as job_id, "
    "(headers ->> 'token')::int as token from {schema}.job) messages"
)


@pytest.fixture
def ground(stage: Stage) -> Ground:
    ground = Ground(stage)
    stage.execute(TABLES)
    assert stage.verbs.guard("guarded").run(stage.conn) == 1
    return ground


@pytest.fixture
def url(stage: Stage) -> Iterator[str]:
    """The workers' own log-in: it can EXECUTE, and INSERT into the business tables."""
    with stage.login("worker", "producer") as url:
        yield url


class Duel:
    """One job of each shape, and what became of it."""

    def __init__(self, ground: Ground, shapes: list[tuple[str, dict[str, Any], str]]) -> None:
        self.ground = ground
        self.stage = ground.stage
        self.shapes = [
            (f"{task}{kind}", payload, refused)
            for task, payload, refused in shapes
            for kind in ("", "_async")
        ]
        self.jobs: dict[UUID, tuple[str, dict[str, Any], str]] = {}

    def enqueue(self, lease_seconds: float) -> None:
        for task, payload, refused in self.shapes:
            job_id = self.stage.enqueue(task, payload, lease_seconds=lease_seconds)
            self.jobs[job_id] = (f"{task} {json.dumps(payload)}", payload, refused)

    def until_all_are_in(self) -> None:
        inside = "select distinct job_id from mark where note = 'in' and token = 1"
        self._until_none_is_missing(inside, "all handlers are inside")

    def until_all_have_succeeded(self) -> None:
        states = "select state, count(*) from {schema}.jobs group by 1"
        until(lambda: {s for s, _ in self.stage.execute(states)} == {"succeeded"}, "B is done")

    def until_all_are_refused(self) -> None:
        refused = "select distinct job_id from {schema}.refusals where stale_token = 1"
        self._until_none_is_missing(refused, "the evidence is there")

    def _until_none_is_missing(self, question: str, what: str) -> None:
        """Until each of the jobs is an answer; if not, who is missing and how it has fared."""

        def missing() -> set[UUID]:
            return self.jobs.keys() - {job_id for (job_id,) in self.stage.execute(question)}

        try:
            until(lambda: not missing(), what)
        except AssertionError as error:
            for job_id in missing():
                job = self.stage.job(job_id)
                error.add_note(f"not {self.jobs[job_id][0]}: {job['state']}, {job['error']}")
            raise

    def complaints(self, a: Process, told: bool) -> dict[str, list[str]]:
        """What is wrong, for each shape of which something is."""
        found = {}
        for job_id, (shape, payload, refused) in self.jobs.items():
            operations = {refused} | (TOLD if told else set())
            wrong = [*self._effects(job_id, payload), *self._evidence(job_id, a, operations, told)]
            if wrong:
                found[shape] = wrong
        return found

    def _effects(self, job_id: UUID, payload: dict[str, Any]) -> Iterator[str]:
        """The one success has left behind all that it should, and nobody else anything."""
        outcomes = self.stage.outcomes(job_id)
        winner = outcomes[-1][0]
        if outcomes[0] != (1, "expired") or outcomes[-1][1] != "succeeded":
            yield f"its attempts ended as {outcomes}"
        if self.stage.job(job_id)["result"] != winner:
            yield f"its result is {self.stage.job(job_id)['result']}"
        for what, expected, tokens_of in (
            ("row", True, "select token from (table effect union all table guarded) e"),
            ("step", "step" in payload, "select value::int as token from {schema}.steps"),
            ("message", "emit" in payload, MESSAGES),
            ("delivery", "emit" in payload, "select distinct token from delivery"),
        ):
            tokens = [
                row[0] for row in self.stage.execute(f"{tokens_of} where job_id = %s", job_id)
            ]
            if tokens != [winner] * expected:
                yield f"the tokens of each {what} are {tokens}, of the success {winner}"

    def _evidence(
        self, job_id: UUID, a: Process, operations: set[str], told: bool
    ) -> Iterator[str]:
        """What A's log says of its refusals is what the view says, field by field."""
        fields = ("worker", "stale_token", "current_token", "reason", "operation", "late_seconds")
        rows = [
            {field: row[field] for field in fields}
            for row in self.stage.reading.refusals(self.stage.conn, job_id)
            if row["stale_token"] == 1
        ]
        name = a.told("worker_started")[0]["worker"]
        winner = self.stage.job(job_id)["fencing_token"]
        for row in rows:
            facts = (row["worker"], row["current_token"], row["reason"])
            if facts != (name, winner, "token_mismatch") or not row["late_seconds"] > 0:
                yield f"not {name}'s, too late for {winner}: {row}"
        events = [
            {field: event[field] for field in fields}
            for event in a.told("stale_write_blocked", job_id=job_id)
        ]
        # The keeper and the pump tell what they hear of, each on its own.
        rows, events = (sorted(seen, key=lambda row: row["operation"]) for seen in (rows, events))
        if events != rows:
            yield f"the log says {events}, the view {rows}"
        # A refused renewal is no write of the handler's, and may be the first to be refused.
        late = [row for row in rows if row["operation"] != "renew"]
        if not {row["operation"] for row in late} <= operations:
            yield f"other operations than {operations} were refused: {late}"
        if not told and (not late or a.told("lease_lost", job_id=job_id)):
            yield "the handler's own write was not the first to be refused"
        if a.told("job_completed", job_id=job_id):
            yield "A said that it has completed the job"


@pytest.mark.parametrize("told", [True, False], ids=["leases expire", "leases are taken away"])
def test_whatever_a_handler_writes_with_no_worker_that_comes_back_late_leaves_anything_behind(
    ground: Ground, url: str, told: bool
) -> None:
    stage = ground.stage
    duel = Duel(ground, [*SHAPES, CUT_OFF] if told else SHAPES)
    duel.enqueue(lease_seconds=10 if told else 600)
    options = {"app": "tests.duelling:app"}
    with Process(url, "--concurrency", "60", **options) as a:
        duel.until_all_are_in()
        a.stall()
        if not told:
            stage.expire(*duel.jobs)
        with Process(url, "--concurrency", "60", **options) as b:
            duel.until_all_have_succeeded()
            stage.execute("insert into go values (null, 0)")  # A goes on as soon as it can
            a.wake()
            duel.until_all_are_refused()
            b.terminate()
            assert b.ended() == 0
        # A lives on, and takes the next job.
        following = stage.enqueue("following")
        a.until("job_completed", job_id=following)
        a.terminate()
        assert a.ended() == 0
    assert duel.complaints(a, told) == {}
    assert stage.value("select count(*) from {schema}.fence_tx") == 0
    assert stage.violations() == []
