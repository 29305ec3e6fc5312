"""Payments over connections that are cut: which statement meets which fate, and what must hold at
the end."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from faultline.drills.proxy import Fate, Moment, Proxy
from tests.paying import TABLES, app
from tests.stage import Stage, until
from tests.workers import Process

APP = "tests.paying:app"
SHAPES = [
    f"{kind}_{shape}"
    for kind in ("sync", "async")
    for shape in ("complete", "step", "whole", "plain")
]
SESSIONS = ["sync_session", "async_session", "asyncpg_session"]
ONCE = [(1, "succeeded")]
TWICE = [(1, "failed"), (2, "succeeded")]


@pytest.fixture
def paying(stage: Stage) -> Stage:
    stage.execute(TABLES)
    return stage


@pytest.fixture
def proxy(paying: Stage) -> Iterator[Proxy]:
    with paying.login("worker", "producer") as url, Proxy(url) as proxy:
        yield proxy


class First:
    """Decides about the first statement with one of these words in each job's fenced transactions,
    by chance but the same every time."""

    def __init__(self, words: str, *fates: Fate) -> None:
        self._words = words.split("|")
        self._fates = fates
        self._random = random.Random(4)
        self.cut: dict[UUID, Fate] = {}

    def __call__(self, moment: Moment) -> Fate | None:
        if moment.fence is None or moment.fence[0] in self.cut:
            return None
        met = moment.is_commit if self._words == ["COMMIT"] else self._is_in(moment.text)
        if not met:
            return None
        return self.cut.setdefault(moment.fence[0], self._random.choice(self._fates))

    def _is_in(self, text: str) -> bool:
        return any(words in text for words in self._words)


def enqueue(stage: Stage, *shapes: str, count: int = 1, **options: Any) -> dict[UUID, str]:
    """So many jobs of each shape, with their tasks' own options but for these."""
    options["connection"] = stage.conn
    tasks = [app.tasks[shape].options(**options) for shape in shapes * count]
    return {task.enqueue().id: shape for task, shape in zip(tasks, shapes * count, strict=True)}


def payments(stage: Stage) -> dict[UUID, list[int]]:
    """The tokens under which each job has paid."""
    found: dict[UUID, list[int]] = {}
    for job_id, token in stage.execute("select job_id, token from payment order by token"):
        found.setdefault(job_id, []).append(token)
    return found


def drained(stage: Stage, worker: Process, count: int) -> None:
    """Everything succeeded, each success was reported once, and nobody is called stale."""
    for most in range(0, count, 10):  # step by step, however slow the machine is
        until(lambda most=most: succeeded(stage) >= most, f"{most} of {count} succeeded")
    until(lambda: succeeded(stage) == count, f"{count} succeeded")
    until(lambda: len(worker.told("job_completed")) >= count, "each success is reported")
    assert len({seen["job_id"] for seen in worker.told("job_completed")}) == count
    assert len(worker.told("job_completed")) == count
    no_false_alarm(stage, worker)


def succeeded(stage: Stage) -> int:
    return int(stage.value("select count(*) from {schema}.jobs where state = 'succeeded'"))


def no_false_alarm(stage: Stage, worker: Process) -> None:
    assert worker.told("lease_lost") == []
    assert worker.told("stale_write_blocked") == []
    assert stage.execute("select * from {schema}.refusals") == []
    assert stage.violations() == []


def ends_well(worker: Process) -> None:
    assert worker.process.poll() is None
    worker.terminate()
    assert worker.ended() == 0
    assert not any("Traceback" in line for line in worker.errors), worker.errors
