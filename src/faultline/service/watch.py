"""One look a second at the installation, for all who watch: the stream of changes, and rates.

A thread looks while somebody watches or has asked for rates within the last minute, and only then.
What has changed is handed to every seat. A seat keeps the newest of each kind and no more, so that
a slow reader misses what was in between and never what is.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from pydantic import BaseModel

from faultline import conditions
from faultline.access import Access
from faultline.conditions import Counters
from faultline.observing import observe
from faultline.risk import Limits, assess
from faultline.service import inspections
from faultline.service.models import Depth
from faultline.service.problem import Problem, problem_of

LOOK_SECONDS = 1.0
IDLE_SECONDS = 60.0
RATE_SECONDS = 60.0
QUIET_SECONDS = 15.0  # after which a stream says that it is still there
MAX_SAMPLES = 600
MAX_SEATS = 100
MAX_ROWS = 200
_VOLATILE = {"remaining_seconds", "silent_seconds", "seen_at", "seconds", "details", "examples"}

log = logging.getLogger("faultline.service")


class Seat:
    """One who watches: what is new for it."""

    def __init__(self, after: int | None = None) -> None:
        self._after = after  # the last refusal that it knows; None: those from now on are news
        self._known: set[int] | None = None  # of the refusals that were looked at last
        self._loop = asyncio.get_running_loop()
        self._something = asyncio.Event()
        self._news: dict[str, str] = {}
        self._refusals: deque[tuple[int, str]] = deque(maxlen=MAX_ROWS)

    def tell(self, news: dict[str, str], refusals: list[tuple[int, str]] | None = None) -> None:
        """From the watching thread; an event loop that has ended is left alone."""
        fresh = [] if refusals is None else self._unknown(refusals)
        if news or fresh:
            self.wake(news, fresh)

    def wake(self, news: dict[str, str], fresh: list[tuple[int, str]]) -> None:
        """Whatever there is to read, if anything."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._take, news, fresh)

    def _unknown(self, refusals: list[tuple[int, str]]) -> list[tuple[int, str]]:
        """Which are news. Not by the highest number: one may be committed after its successor."""
        if self._known is None:
            after = self._after
            self._known = {n for n, _ in refusals if after is None or n <= after}
        fresh = [told for told in refusals if told[0] not in self._known]
        self._known = {number for number, _ in refusals}
        return fresh

    def _take(self, news: dict[str, str], refusals: list[tuple[int, str]]) -> None:
        self._news.update(news)
        self._refusals.extend(refusals)
        self._something.set()

    async def read(self) -> str:
        """What is new, as server-sent events; a comment after a while without."""
        try:
            await asyncio.wait_for(self._something.wait(), QUIET_SECONDS)
        except TimeoutError:
            return ": still here\n\n"
        self._something.clear()
        news, self._news = self._news, {}
        refusals, self._refusals = self._refusals, deque(maxlen=MAX_ROWS)
        told = [f"id: {number}\nevent: refusal\ndata: {data}\n\n" for number, data in refusals]
        return "".join(
            [*told, *(f"event: {kind}\ndata: {data}\n\n" for kind, data in news.items())]
        )


class Watch:
    """What is seen, and who watches."""

    def __init__(self, access: Access, limits: Limits) -> None:
        self._access = access
        self._limits = limits
        self._lock = threading.Lock()
        self._seats: set[Seat] = set()
        self._samples: deque[Counters] = deque(maxlen=MAX_SAMPLES)
        self._told: dict[str, tuple[Any, str]] = {}  # kind → what matters of it, and all of it
        self._wanted_until = 0.0
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def rates(self, seconds: float) -> inspections.Throughput:
        """Of about so many last seconds."""
        self._want()
        return self._rates(seconds)

    def series(self) -> dict[str, list[float]]:
        """What happened in each second that was looked at: moments, and rates beside them."""
        self._want()
        with self._lock:
            samples = list(self._samples)
        names = ("enqueued", "claimed", "ended", "refused")
        found: dict[str, list[float]] = {name: [] for name in ("at", *names)}
        for before, after in pairwise(samples):
            if (took := after.at - before.at) > 0:
                found["at"].append(after.at)
                for name in names:
                    rate = (getattr(after, name) - getattr(before, name)) / took
                    found[name].append(max(0.0, rate))
        return found

    def _rates(self, seconds: float) -> inspections.Throughput:
        with self._lock:
            samples = list(self._samples)
        if (found := conditions.per_second(samples, seconds)) is None:
            return inspections.Throughput(seconds=0, per_second=None)
        took, rates = found
        return inspections.Throughput(seconds=took, per_second=inspections.Rates(**rates))

    def require_room(self) -> None:
        """Before a stream begins: afterwards nothing but events can be said."""
        with self._lock:
            if len(self._seats) >= MAX_SEATS:
                raise Problem(
                    503, "too_many_streams", f"{MAX_SEATS} streams are open: close some, or poll"
                )

    async def stream(self, after: int | None = None) -> AsyncIterator[str]:
        """Server-sent events, from what is the case now on; refusals from this one on."""
        seat = self._sit(after)
        try:
            yield "retry: 2000\n\n"
            while not self._ended.is_set():
                yield await seat.read()
        finally:
            with self._lock:
                self._seats.discard(seat)

    def close(self) -> None:
        """End the streams and the looking."""
        self._ended.set()
        with self._lock:
            seats = list(self._seats)
        for seat in seats:
            seat.wake({}, [])

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    def _sit(self, after: int | None) -> Seat:
        seat = Seat(after)
        with self._lock:
            fresh = self._thread is not None and self._thread.is_alive()
            self._seats.add(seat)
            news = {kind: data for kind, (_, data) in self._told.items()} if fresh else {}
        seat.tell(news)
        self._want()
        return seat

    def _want(self) -> None:
        with self._lock:
            self._wanted_until = time.monotonic() + IDLE_SECONDS
            if not self._ended.is_set() and (self._thread is None or not self._thread.is_alive()):
                self._samples.clear()
                self._told.clear()
                self._thread = threading.Thread(
                    target=self._look_on, name="faultline-watch", daemon=True
                )
                self._thread.start()

    def _look_on(self) -> None:
        while not self._ended.is_set():
            with self._lock:
                if not self._seats and time.monotonic() > self._wanted_until:
                    self._thread = None
                    return
            try:
                self._look()
            except Exception as error:  # whatever it is: others are watching
                self._say_trouble(error)
            self._ended.wait(LOOK_SECONDS)

    def _look(self) -> None:
        sample = self._access.server(
            lambda conn: conditions.counters(conn, self._access.app.schema)
        )
        depths, leases, workers, refusals = self._access.read(
            lambda reading, conn: (
                reading.depths(conn),
                reading.leases(conn, MAX_ROWS + 1),
                reading.workers(conn),
                reading.latest_refusals(conn, limit=MAX_ROWS),
            )
        )
        risk = assess(observe(self._access, self._limits), self._limits)
        with self._lock:
            self._samples.append(sample)
            self._told.pop("trouble", None)
        self._publish(
            {
                "queues": inspections.Queues(queues=[Depth(**row) for row in depths]),
                "leases": inspections.Leases(
                    leases=[inspections.Lease(**row) for row in leases[:MAX_ROWS]],
                    more=len(leases) > MAX_ROWS,
                ),
                "workers": inspections.Workers(
                    workers=[inspections.Worker(**row) for row in workers]
                ),
                "risk": inspections.Risk(**asdict(risk)),
                "throughput": self._rates(RATE_SECONDS),
            },
            [
                (row["id"], inspections.Refusal(**row).model_dump_json())
                for row in reversed(refusals)
            ],
        )

    def _publish(
        self, seen: dict[str, BaseModel], refusals: list[tuple[int, str]] | None = None
    ) -> None:
        news = {}
        with self._lock:
            for kind, model in seen.items():
                matters, data = _steady(model.model_dump(mode="json")), model.model_dump_json()
                if self._told.get(kind, (None,))[0] != matters:
                    self._told[kind] = (matters, data)
                    news[kind] = data
            seats = list(self._seats)
        for seat in seats:
            seat.tell(news, refusals)

    def _say_trouble(self, error: Exception) -> None:
        problem = problem_of(error)
        detail = problem.detail if problem else f"unexpected {type(error).__name__}"
        with self._lock:
            if "trouble" not in self._told:
                log.warning("watching: %s", type(error).__name__)
                self._told.clear()  # when it is over, everything is told again
        self._publish({"trouble": _Trouble(detail=detail)})


class _Trouble(BaseModel):
    """Nothing can be seen just now."""

    detail: str


def _steady(value: Any) -> Any:
    """The value without what changes while nothing happens."""
    if isinstance(value, dict):
        return {k: _steady(v) for k, v in value.items() if k not in _VOLATILE}
    if isinstance(value, list):
        return [_steady(item) for item in value]
    return value
