"""Hearing what is announced, and its contrary: who is recorded as asleep, and what a session hears.

A silence is proved by a fence: a notification of the test's own, sent afterwards. Notifications
arrive in the order of the commits, so what has not come before the fence was never sent.
"""

from __future__ import annotations

from uuid import uuid4

from tests.stage import DEADLINE_SECONDS, Stage


class Ear:
    """A session that listens on the installation's channel."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._conn = stage.connect()
        self._conn.execute(f"listen {stage.schema}")

    def heard(self) -> list[str]:
        """The queues named since the last call, in the order in which they were."""
        fence = uuid4().hex
        self._stage.execute("select pg_notify(%s, %s)", self._stage.schema, fence)
        payloads: list[str] = []
        for notify in self._conn.notifies(timeout=DEADLINE_SECONDS):
            if notify.payload == fence:
                return payloads
            payloads.append(notify.payload)
        raise AssertionError("the fence was never heard")


def asleep(stage: Stage, *queues: str, worker: str = "A") -> None:
    stage.verbs.sleep(worker, queues or ["default"], 60).run(stage.conn)
