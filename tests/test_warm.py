"""A worker's connections are ready before it says that it has started."""

from __future__ import annotations

import asyncio
import threading

import pytest
from psycopg import sql

from faultline import App, NotPermitted
from faultline.events import Event, WorkerStarted
from faultline.protocol import Protocol
from faultline.telemetry.catalogue import DATABASE
from faultline.worker.session import Session
from tests.stage import Stage, until
from tests.test_open import NOBODY, SESSIONS


@pytest.mark.parametrize(
    ("verb", "table"), [("reconcile", "scheduled"), ("renew", "cancel_request")]
)
def test_a_worker_starts_only_when_its_connections_are_ready(
    verb: str, table: str, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that the verb reads is locked, so that its first call has to wait."""
    for limit in ("keeper.WARM_SECONDS", "keeper.ASIDE_SECONDS", "reconciler.CALL_SECONDS"):
        monkeypatch.setattr(f"faultline.worker.{limit}", 600.0)
    app = App(stage.url)

    @app.task
    def work() -> None: ...

    lock, monitor = stage.connect(), stage.connect()
    lock.execute("begin")
    lock.execute(sql.SQL("lock table {}").format(sql.Identifier("faultline", table)))
    released, started = threading.Event(), threading.Event()
    found: list[tuple[bool, int, set[str]]] = []

    def emit(event: Event) -> None:
        if isinstance(event, WorkerStarted):
            connected = len(monitor.execute(SESSIONS).fetchall())
            found.append((released.is_set(), connected, called(app)))
            started.set()

    waiting = (
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and "
        f"datname = current_database() and query like '%.{verb}(%'"
    )

    async def story() -> None:
        working = asyncio.ensure_future(app.arun_worker(emit=emit))
        await asyncio.to_thread(until, lambda: stage.value(waiting), "the call waits")
        # A worker that does not wait starts in this second; one that waits never does, at any load.
        await asyncio.to_thread(started.wait, 1.0)
        released.set()
        lock.rollback()
        await asyncio.to_thread(until, started.is_set, "the worker has started")
        working.cancel()
        await asyncio.wait({working})

    asyncio.run(story())
    ((was_released, connected, verbs),) = found
    assert was_released
    assert connected == 3
    assert verbs >= {"claim", "claim_one", "complete", "renew", "reconcile"}


def test_warming_a_connection_that_cannot_be_had_raises_nothing(stage: Stage) -> None:
    away = Session(NOBODY, "faultline")
    asyncio.run(away.warm(Protocol().renew([]), 60))
    with stage.login("reader") as url:
        asyncio.run(refused(url))


async def refused(url: str) -> None:
    session = Session(url, "faultline")
    with pytest.raises(NotPermitted):
        await session.run(Protocol().renew([]), 60)
    await session.warm(Protocol().renew([]), 60)
    await session.close()


def called(app: App) -> set[str]:
    """The verbs that the database has answered."""
    keys = app.telemetry.tally.snapshot().histograms
    return {labels[0] for name, *labels in keys if name == DATABASE.name}
