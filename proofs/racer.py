"""One process of the race: worker A, which stalls, or worker B, which takes over.

It drives the verbs and nothing else: no lease keeper, which would renew. Its handler charges a
customer, in the transaction that completes the job. `python -m proofs.racer A SCHEMA RUN LANE`; the
URL, which holds a password, comes in the environment.
"""

from __future__ import annotations

import os
import sys
from uuid import UUID

from faultline.connect import connect
from faultline.errors import StaleLease
from faultline.events import (
    ExecutionStarted,
    JobCompleted,
    LeaseAcquired,
    LeaseReclaimed,
    StaleWriteBlocked,
    WorkerExit,
)
from faultline.protocol import Protocol
from proofs.trace import Trace


class Racer:
    """The worker: a connection for its work, another for the trace."""

    def __init__(self, name: str, url: str, schema: str, run: str, lane: int) -> None:
        self.name = name
        self.lane = lane
        self.verbs = Protocol(schema)
        self.conn = connect(url, schema=schema)
        self.trace = Trace(url, run)

    def claim(self) -> tuple[UUID, int] | None:
        """Reclaim whatever has expired, then claim the one job of this run, if it is there."""
        for lost in self.verbs.reclaim().run(self.conn):
            self.trace.emit(LeaseReclaimed(self.name, lost.job_id, lost.token, lost.worker))
        leases = self.verbs.claim(self.name, [self.lane]).run(self.conn)
        if not leases:
            return None
        job_id, token = leases[0].job_id, leases[0].token
        self.trace.emit(LeaseAcquired(self.name, job_id, token, forced=True))
        self.trace.emit(ExecutionStarted(self.name, job_id, token))
        return job_id, token

    def charge_and_complete(self, job_id: UUID, token: int) -> str:
        """The handler's write and the success in one commit; answers with why the worker exits."""
        try:
            with self.conn.transaction():
                self.conn.execute(
                    "insert into faultline_race.charge values (%s, %s, %s)",
                    (job_id, token, self.name),
                )
                self.verbs.complete_one(job_id, token, {"by": self.name}).run(self.conn)
        except StaleLease as stale:
            self.verbs.report_refusal(job_id, token, stale.operation).run(self.conn)
            facts = (stale.job_id, stale.token, stale.current_token)
            refused = StaleWriteBlocked(self.name, *facts, stale.reason, stale.operation)
            self.trace.emit(refused)
            return "stale"
        self.trace.emit(JobCompleted(self.name, job_id, token))
        return "success"

    def run_a(self) -> None:
        """Claim, begin, be stopped by the harness in the middle, and go on when resumed."""
        attempt = self.claim()
        assert attempt is not None, "the race begins with one queued job"
        self.trace.open("a_started")
        self.trace.wait("a_stopped")  # open while it is stopped: once resumed, it goes right on
        self.trace.emit(WorkerExit(self.name, self.charge_and_complete(*attempt)))
        self.trace.open("a_refused")

    def run_b(self) -> None:
        """Wait for A to begin, take over once its lease has expired, commit, see A refused."""
        self.trace.wait("a_started")
        while (attempt := self.claim()) is None:
            self.conn.execute("select pg_sleep(0.02)")
        reason = self.charge_and_complete(*attempt)
        self.trace.open("b_committed")
        self.trace.wait("a_refused")
        self.trace.emit(WorkerExit(self.name, reason))


def main() -> None:
    """Play one part to its end."""
    name, schema, run, lane = sys.argv[1:]
    racer = Racer(name, os.environ["FAULTLINE_DATABASE_URL"], schema, run, int(lane))
    racer.run_a() if name == "A" else racer.run_b()


if __name__ == "__main__":
    main()
