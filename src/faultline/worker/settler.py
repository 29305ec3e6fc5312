"""Settling: writing endings to the database, in groups, each exactly once.

Whatever ends while one call is under way goes out with the next: groups form by themselves, and a
lone ending leaves at once. A call whose answer was lost is looked up, attempt by attempt, before
anything is sent again; one ending that cannot be written does not stop its neighbours. What an open
transaction of the handler's own holds, or is about to decide, is put aside until it has ended.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import UUID

import psycopg
from psycopg.errors import DataError, ProgramLimitExceeded

from faultline.errors import FaultlineError, InvalidArgument
from faultline.events import Emit, StaleWriteBlocked
from faultline.jobs import Stale
from faultline.protocol import Protocol
from faultline.worker.attempt import Hands
from faultline.worker.endings import (
    Completed,
    Ending,
    Failed,
    Gone,
    Late,
    Refused,
    Settled,
    Snoozed,
    Unsure,
    describe,
    keys,
)
from faultline.worker.outage import nothing
from faultline.worker.session import Locked, Session, Unavailable

MAX_BATCH = 1000
MAX_BYTES = 16_000_000
E = TypeVar("E", bound=Ending)
CALL_SECONDS = 10.0
LOCKED_SECONDS = 1.5  # the server waits for a lock for 1 s, and has to be given the time to say so
ASIDE_SECONDS = 0.5  # how often to look at what was put aside


class Settler:
    """The endings of one worker that are not in the database yet."""

    def __init__(
        self,
        worker: str,
        verbs: Protocol,
        session: Session,
        hands: Hands,
        emit: Emit,
        on_put_off: Callable[[], None] = nothing,
    ) -> None:
        self._worker = worker
        self._verbs = verbs
        self._session = session
        self._hands = hands
        self._emit = emit
        self._on_put_off = on_put_off  # a job is to be run again, later
        self._waiting: list[Ending] = []
        self._unsure: list[Ending] = []  # sent, and never answered
        self._aside: list[Ending] = []  # somebody else's transaction has to end first
        self._look_aside_at = math.inf

    def add(self, ending: Ending) -> None:
        """To be written with the next call."""
        if isinstance(ending, Gone):
            self._hands.drop(ending.attempt)
        elif isinstance(ending, Unsure):
            self._unsure.append(ending)
        elif isinstance(ending, Settled):
            self.settled([ending], [])
        else:
            self._waiting.append(ending)

    def __bool__(self) -> bool:
        return bool(self._waiting or self._unsure or self._aside)

    @property
    def due_at(self) -> float:
        """When there is something to do here; 0 is at once."""
        return 0.0 if self._waiting or self._unsure else self._look_aside_at

    def take_completions(self) -> list[Completed]:
        """Successes to be written together with the next claim."""
        found = [ending for ending in self._waiting if isinstance(ending, Completed)]
        return self._take(found) if found else []

    async def settle(self) -> None:
        """Write all that waits; raises Unavailable, and then knows what it still has to write."""
        await self.resolve()
        while self._waiting:
            kind = self._waiting[0].batch
            await self.write(self._take([e for e in self._waiting if e.batch == kind]))

    async def settle_all(self) -> None:
        """As `settle`, until nothing is left."""
        while self:
            await asyncio.sleep(min(self.due_at - time.monotonic(), ASIDE_SECONDS))
            await self.settle()

    def _take(self, endings: list[E]) -> list[E]:
        """As many of them as make one call; they wait no longer."""
        size = 0
        taken: list[E] = []
        for ending in endings[:MAX_BATCH]:
            size += ending.size if isinstance(ending, Completed) else 0
            if taken and size > MAX_BYTES:
                break
            taken.append(ending)
        chosen = set(map(id, taken))
        self._waiting = [ending for ending in self._waiting if id(ending) not in chosen]
        return taken

    async def write(self, batch: Sequence[Ending]) -> None:
        """Write endings of one kind; if they cannot be written together, one by one."""
        try:
            call = batch[0].call(self._verbs, batch)
            stale = await self._session.run(call, seconds_for(batch))
        except Locked:
            await self.locked(batch)
        except (FaultlineError, psycopg.Error) as error:
            await self._one_by_one(batch, error)
        except Exception as error:
            self.unanswered(batch, error)
            raise
        else:
            await self.answered(batch, stale)

    async def _one_by_one(self, batch: Sequence[Ending], error: Exception) -> None:
        """The batch cannot be written as it stands: find out whose fault it is."""
        if len(batch) > 1:
            await self._write_each(batch)
        elif not isinstance(error, InvalidArgument | DataError | ProgramLimitExceeded):
            self._waiting.append(batch[0])  # not its own fault: a right was taken away, …
            raise Unavailable(error, unknown=False) from error
        elif isinstance(batch[0], Failed) or not batch[0].is_last:
            self._hands.drop(batch[0].attempt)  # nothing more can be said; its lease will expire
        else:
            await self.write([Failed(batch[0].attempt, describe(error), dead=True)])

    async def _write_each(self, batch: Sequence[Ending]) -> None:
        """One by one; what was not tried any more waits."""
        left = list(batch)
        try:
            while left:
                await self.write([left.pop(0)])
        finally:
            self._waiting.extend(left)

    async def locked(self, batch: Sequence[Ending]) -> None:
        """Nothing of the batch was written, because somebody holds one of them: put that aside,
        and write the others."""
        try:
            held = await self._held(batch)
        except Exception:
            self._waiting.extend(batch)
            raise
        if not held and len(batch) > 1:  # it was given back just now, or is no lease
            await self._write_each(batch)
        elif not held:
            self._put_aside(batch)
        else:
            self._put_aside([ending for ending in batch if ending.attempt.job_id in held])
            if free := [ending for ending in batch if ending.attempt.job_id not in held]:
                await self.write(free)

    async def _held(self, batch: Sequence[Ending]) -> set[UUID]:
        """The jobs among them whose leases an open transaction holds."""
        held = await self._session.run(self._verbs.busy(keys(batch)), CALL_SECONDS)
        return set(held)

    def _put_aside(self, endings: Sequence[Ending]) -> None:
        self._aside.extend(endings)
        self._look_aside_at = min(self._look_aside_at, time.monotonic() + ASIDE_SECONDS)

    async def _look_aside(self) -> None:
        """What was put aside, and is free now, is to be written; or looked up again."""
        locked = [ending for ending in self._aside if not isinstance(ending, Unsure)]
        held = await self._held(locked) if locked else set()
        aside, self._aside, self._look_aside_at = self._aside, [], math.inf
        for ending in aside:
            if isinstance(ending, Unsure):
                self._unsure.append(ending)
            elif ending.attempt.job_id in held:
                self._put_aside([ending])
            else:
                self._waiting.append(ending)

    async def answered(self, batch: Sequence[Ending], stale: Sequence[Stale]) -> None:
        """The call was answered: these were refused, the rest is written."""
        first = batch[0]
        if isinstance(first, Refused) and not stale:  # not by this database: its lease is alive
            self._waiting.append(Failed(first.attempt, first.error))
            return
        if isinstance(first, Late) or not stale:
            self.settled(batch, stale)
            return
        endings = {ending.attempt.key: ending for ending in batch}
        refused = []
        for item in stale:
            key = (item.job_id, item.token)
            # Whose lease was never taken away may have ended itself: then nothing was recorded.
            if item.late_seconds is not None or not await self._has_ended(endings[key]):
                refused.append(item)
            else:
                del endings[key]
        self.settled(list(endings.values()), refused)

    async def _has_ended(self, ending: Ending) -> bool:
        """Whether an ending was refused only because the attempt had one before: by its handler's
        own commit, or by the first sending, which was never answered. Reports that, then."""
        try:
            outcome = await self._session.run(
                self._verbs.outcome(*ending.attempt.key), CALL_SECONDS
            )
        except Exception:
            self._unsure.append(ending)
            return True
        if outcome in (None, "expired"):
            return False
        if outcome != ending.outcome:
            ending = (Settled if outcome == Settled.outcome else Gone)(ending.attempt)
        self.settled([ending], [])
        return True

    async def resolve(self) -> None:
        """Find out what became of the calls that were never answered, and of what was put aside."""
        if self._look_aside_at <= time.monotonic():
            await self._look_aside()
        while self._unsure:
            ending = self._unsure[-1]
            is_open = isinstance(ending, Unsure) and ending.is_open  # asked before the database is
            outcome = None
            if ending.outcome is not None:
                call = self._verbs.outcome(*ending.attempt.key)
                outcome = await self._session.run(call, CALL_SECONDS)
            self._unsure.remove(ending)  # by now it may not be the last any more
            if outcome == ending.outcome is not None:
                self.settled([ending], [])
            elif is_open and outcome is None:  # the commit decides, or the end of its lease
                self._put_aside([ending])
            else:  # not written; or the token was burnt, and the refusal is to be recorded
                self.add(ending.otherwise if isinstance(ending, Unsure) else ending)

    def unanswered(self, batch: Sequence[Ending], error: Exception) -> None:
        """The call failed: keep its endings, to be looked up first if it may have committed."""
        (self._unsure if is_unknown(error) else self._waiting).extend(batch)

    def settled(self, batch: Sequence[Ending], stale: Sequence[Stale]) -> None:
        """The call was answered: report what was written and what was refused."""
        refused = {(item.job_id, item.token) for item in stale}
        now = time.monotonic()
        for ending in batch:
            if ending.is_last:
                self._hands.drop(ending.attempt)
            if ending.attempt.key not in refused:
                seconds = round(now - ending.attempt.started_at, 3)
                if (event := ending.event(self._worker, seconds)) is not None:
                    self._emit(event)
        if batch and isinstance(batch[0], Failed | Snoozed):
            self._on_put_off()
        for item in stale:
            self._emit(
                StaleWriteBlocked(
                    self._worker,
                    item.job_id,
                    item.token,
                    item.current_token,
                    item.reason,
                    item.operation,
                    item.late_seconds,
                )
            )


def is_unknown(error: Exception) -> bool:
    """Whether the call that failed so may have committed: unless we know better, yes."""
    return not isinstance(error, Unavailable) or error.unknown


def seconds_for(batch: Sequence[Ending]) -> float:
    """How long the call may take: below the shortest lease it is about, unless that is shorter than
    the wait for a lock."""
    shortest = min(ending.attempt.lease.lease_seconds for ending in batch)
    return max(min(CALL_SECONDS, shortest / 2), LOCKED_SECONDS)
