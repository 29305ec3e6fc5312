"""A pump on a real session, one step at a time."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any

from faultline.connect import sever
from faultline.direct import USES
from faultline.jobs import Lease
from faultline.observer import NOBODY, Observer
from faultline.worker.attempt import Attempt, Hands
from faultline.worker.ears import Word
from faultline.worker.endings import Completed
from faultline.worker.pump import Pump
from faultline.worker.session import Session
from faultline.worker.settler import Settler
from tests.stage import DEADLINE_SECONDS, Stage

ASLEEP = "select count(*) from {schema}.sleeper"


class Told:
    """A pump whose ears are played by the test, and how many jobs each of its steps began."""

    def __init__(
        self,
        stage: Stage,
        room: int = 100,
        *,
        listens: bool = False,
        apart: str | None = None,
        observer: Observer = NOBODY,
    ) -> None:
        self.begun: list[int] = []
        self.room = room
        self.poll_seconds = 60.0
        self.is_ahead = False  # what it has will last for a while
        self.on_start: Callable[[list[Lease]], None] = lambda _: None
        self._session = Session(stage.url, stage.schema, observer)
        self._settler = Settler("A", stage.verbs, self._session, Hands(), lambda _: None)
        self._pump = Pump(
            *("A", ["default"], self._session, stage.verbs, self._settler, lambda _: None),
            room=lambda: self.room,
            is_ahead=lambda _: self.is_ahead,
            start=lambda leases, _: self._start(leases),
            known=list,
            poll_seconds=lambda: self.poll_seconds,
            apart=apart,
            listens=listens,
            on_cancel=lambda _: None,
        )

    def _start(self, leases: list[Lease]) -> None:
        self.begun.append(len(leases))
        self.on_start(leases)

    def ends(self, leases: list[Lease]) -> None:
        """These have succeeded, and it is to be written."""
        now = time.monotonic()
        self._settler.add_done([Completed(Attempt(lease, None, now), None) for lease in leases])

    def asks_beside(self, jobs: int) -> None:
        """Another connection has asked for so many, and waits for the answer."""
        self._pump._claiming += jobs

    async def told(self, queue: str | None) -> int:
        """One step after this word; how many it began. None: of some queue, or of none."""
        before = len(self.begun)
        self.hears(queue)
        await self.step()
        return sum(self.begun[before:])

    async def rest(self) -> None:
        """Until it has found nothing, and said that it sleeps."""
        for _ in range(4):
            await self.step()

    async def wait(self) -> asyncio.Task[None]:
        """It waits for a word, and has found out that way often enough to have it prepared."""
        for _ in range(USES + 1):
            await self.told("default")
            await self.rest()
        await self._pump._wait()  # not for long: it was told
        waits = asyncio.ensure_future(self._pump._wait())
        await asyncio.sleep(0)
        return waits

    async def listen(self) -> asyncio.Task[None]:
        """As `wait`, with ears of its own: from now on it is the database that tells it."""
        (await self.wait()).cancel()
        while True:
            await self.rest()
            waits = asyncio.ensure_future(self._pump._wait())
            while not (self._pump._ears.is_watching or waits.done()):
                await asyncio.sleep(0)
            if not waits.done():
                return waits

    def has_looked(self) -> None:
        """As often as it would by itself."""
        for look in self.looks():
            look.cancel()

    def looks(self) -> list[asyncio.TimerHandle]:
        """Which it is to do by itself, if nothing happens."""
        found = itertools.chain(*self._pump._sleeper._looks.values())
        return [look for look in found if not look.cancelled()]

    def hears(self, queue: str | None, among: int = 1) -> None:
        """And does nothing about it yet, but for what it does at once."""
        self._pump.work_announced(queue and Word(queue, among))

    async def step(self) -> None:
        await self._pump.settle_and_claim()

    async def cut(self) -> None:
        """The network fails; the server has not noticed."""
        sever(await self._session.connection())

    async def woken(self) -> None:
        """It waits until something happens by itself, not for long."""
        await asyncio.wait_for(self._pump._wait(), DEADLINE_SECONDS)

    def wake(self) -> None:
        """Something else has happened."""
        self._pump.wake()

    def drain(self) -> None:
        self.room = 0
        self._pump.wake()

    async def calm(self) -> None:
        await self._session.calm(0.01)

    async def close(self) -> None:
        await self._pump.close()
        await self._session.close()


def play(
    stage: Stage,
    scene: Callable[[Told], Awaitable[None]],
    room: int = 100,
    *,
    looked: bool = True,
    **more: Any,
) -> None:
    """With a pump that has found nothing, has said that it sleeps, and looked again."""

    async def run() -> None:
        pump = Told(stage, room, **more)
        await pump.rest()
        assert stage.value(ASLEEP) == 1
        if looked:
            pump.has_looked()
        await scene(pump)
        await pump.close()

    stage.running()  # so that the lane is there
    asyncio.run(run())
