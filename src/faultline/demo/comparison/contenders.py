"""The two queues, as the driver sees them: how to enqueue, run a worker, and ask for the state."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from faultline.app import App
from faultline.demo import naive
from faultline.demo.comparison.orders import QUEUE, take_orders
from faultline.demo.comparison.schedule import LEASE_SECONDS
from faultline.demo.comparison.tables import Connection
from faultline.reading import Reading, Record

CONCURRENCY = 2  # jobs at once in a process: a fault hits the neighbours as well


@dataclass(frozen=True)
class Findings:
    """What a queue itself says when all is over; None: it does not know such a thing."""

    succeeded: set[int]
    stale_refused: int | None
    refused_by_operation: dict[str, int] | None
    violations: int | None


def stale_writes(refusals: Sequence[Record]) -> int:
    """How many stale attempts were refused a write, each counted once, however often it tried.

    A refused renewal does not count: it would have written nothing of the user's.
    """
    writes = [entry for entry in refusals if entry["operation"] != "renew"]
    return len({(entry["job_id"], entry["stale_token"]) for entry in writes})


class Contender(Protocol):
    """A queue under test. Jobs are numbered from 0 in the order in which they are enqueued."""

    name: str
    schema: str  # of Faultline; what belongs to this run stands beside it

    @property
    def command(self) -> list[str]:
        """What starts one of its workers."""

    def enqueue(self, conn: Connection, payloads: Sequence[dict[str, Any]]) -> None:
        """Accept the jobs of a run."""

    def ended(self, conn: Connection) -> int:
        """How many of them have come to an end, whatever it is."""

    def findings(self, conn: Connection) -> Findings:
        """How they ended."""


@dataclass
class Faultline:
    """Real `faultline worker` processes."""

    schema: str
    name: str = "faultline"
    _ids: list[UUID] = field(default_factory=list)

    @property
    def command(self) -> list[str]:
        """As a user starts it."""
        worker = [
            sys.executable,
            "-m",
            "faultline",
            "worker",
            "faultline.demo.comparison.orders:app",
        ]
        return [*worker, "--queues", QUEUE, "--concurrency", str(CONCURRENCY)]

    def enqueue(self, conn: Connection, payloads: Sequence[dict[str, Any]]) -> None:
        """All at once, with the task's own settings."""
        order = take_orders(App(schema=self.schema))
        with conn.transaction():
            self._ids = [job.id for job in order.options(connection=conn).enqueue_many(payloads)]

    def ended(self, conn: Connection) -> int:
        """In a state that no worker changes any more."""
        over = {"succeeded", "failed", "cancelled", "quarantined"}
        return sum(state in over for state in self._states(conn).values())

    def findings(self, conn: Connection) -> Findings:
        """From the views."""
        reading = Reading(self.schema)
        states = self._states(conn)
        refusals = [entry for job_id in self._ids for entry in reading.refusals(conn, job_id)]
        return Findings(
            {n for n, job_id in enumerate(self._ids) if states.get(job_id) == "succeeded"},
            stale_writes(refusals),
            dict(Counter(entry["operation"] for entry in refusals)),
            len(reading.violations(conn)),
        )

    def _states(self, conn: Connection) -> dict[UUID, str]:
        return dict(
            conn.execute(
                f"select id, state from {self.schema}.jobs where id = any (%s)", (self._ids,)
            ).fetchall()
        )


@dataclass
class Naive:
    """Processes of faultline.demo.naive."""

    schema: str
    name: str = "naive"
    _ids: list[int] = field(default_factory=list)

    @property
    def command(self) -> list[str]:
        """The same number of jobs at once, the same lease."""
        worker = [
            sys.executable,
            "-m",
            "faultline.demo.naive",
            "faultline.demo.comparison.orders:naively",
        ]
        lease = ["--lease-seconds", str(LEASE_SECONDS)]
        return [*worker, "--concurrency", str(CONCURRENCY), *lease]

    def enqueue(self, conn: Connection, payloads: Sequence[dict[str, Any]]) -> None:
        """All at once."""
        self._ids = naive.enqueue(conn, self.schema, payloads)

    def ended(self, conn: Connection) -> int:
        """Done or given up."""
        return sum(state in ("done", "failed") for state in self._states(conn).values())

    def findings(self, conn: Connection) -> Findings:
        """It refuses nothing, and has nothing that could be violated."""
        states = self._states(conn)
        done = {n for n, job_id in enumerate(self._ids) if states.get(job_id) == "done"}
        return Findings(done, None, None, None)

    def _states(self, conn: Connection) -> dict[int, str]:
        asked = naive.at_home("select id, state from {home}.job where id = any (%s)", self.schema)
        return dict(conn.execute(asked, (self._ids,)).fetchall())
