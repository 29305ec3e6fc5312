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
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate
from uuid import UUID

import psycopg
from psycopg.errors import DataError, ProgramLimitExceeded

from faultline.errors import FaultlineError, InvalidArgument
from faultline.events import Emit, JobCompleted, JobsCompleted, StaleWriteBlocked, wants
from faultline.jobs import Stale
from faultline.observer import NOBODY, Observer
from faultline.protocol import Protocol
from faultline.worker.ahead import MAX_ENDINGS, ending_in_a_call
from faultline.worker.attempt import Hands
from faultline.worker.endings import (
    Completed,
    Declined,
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

MANY = 20  # successes in one commit
MAX_BYTES = 16_000_000
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
        observer: Observer = NOBODY,
    ) -> None:
        self._worker = worker
        self._verbs = verbs
        self._session = session
        self._hands = hands
        self._emit = emit
        self._says_done = wants(emit, JobCompleted.level)
        self._says_each = wants(emit, "debug")
        self._observer = observer
        self._on_put_off = on_put_off  # a job is to be run again, later
        self._waiting: list[Ending] = []
        self._done: list[Completed] = []  # successes wait apart: they may go out with a claim
        self._done_since = 0.0
        self._answers: list[tuple[Sequence[Completed], Sequence[Stale]]] = []  # to be looked into
        self._unsure: list[Ending] = []  # sent, and never answered
        self._aside: list[Ending] = []  # somebody else's transaction has to end first
        self._look_aside_at = math.inf

    def add(self, ending: Ending) -> None:
        """To be written with the next call."""
        if isinstance(ending, Gone):
            self._hands.drop([ending.attempt])
        elif isinstance(ending, Unsure):
            self._unsure.append(ending)
        elif isinstance(ending, Settled):
            self.settled([ending], [])
        elif isinstance(ending, Completed):
            self.add_done([ending])
        else:
            self._waiting.append(ending)

    def add_done(self, endings: Sequence[Completed]) -> None:
        """Successes, to be written with the next call."""
        if not self._done:
            self._done_since = time.monotonic()
        self._done.extend(endings)

    def __bool__(self) -> bool:
        return bool(self._done or self._waiting or self._unsure or self._aside or self._answers)

    @property
    def done(self) -> int:
        """How many successes wait."""
        return len(self._done)

    def due_at(self, linger_seconds: float = 0.0) -> float:
        """When there is something to do here; successes may wait so long for others."""
        if self._unsure or self._waiting or self._answers:
            return 0.0
        done = self._done_since + linger_seconds if self._done else math.inf
        return min(done, self._look_aside_at)

    def take_done(self) -> list[Completed]:
        """Successes to be written together with the next claim, as many as make one call."""
        if not self._done:
            return []
        first = self._done[:MAX_ENDINGS]
        number = ending_in_a_call([ending.attempt.lease.lease_seconds for ending in first])
        if any(sizes := [ending.size for ending in first[:number]]):
            number = max(1, bisect_right(list(accumulate(sizes)), MAX_BYTES))
        taken, self._done = self._done[:number], self._done[number:]
        return taken

    async def settle(self, linger_seconds: float = 0.0) -> None:
        """Write all that waits, but for successes that have not waited so long; raises Unavailable,
        and then knows what it still has to write."""
        await self.resolve()
        while self._waiting:
            kind = self._waiting[0].batch
            taken = [ending for ending in self._waiting if ending.batch == kind][:MAX_ENDINGS]
            chosen = set(map(id, taken))
            self._waiting = [ending for ending in self._waiting if id(ending) not in chosen]
            await self.write(taken)
        while self._done and time.monotonic() >= self._done_since + linger_seconds:
            await self.write(self.take_done())

    async def settle_all(self) -> None:
        """As `settle`, until nothing is left."""
        while self:
            await asyncio.sleep(min(self.due_at() - time.monotonic(), ASIDE_SECONDS))
            await self.settle()

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
            self.add(batch[0])  # not its own fault: a right was taken away, …
            raise Unavailable(error, unknown=False) from error
        elif isinstance(batch[0], Failed) or not batch[0].is_last:
            self._hands.drop([batch[0].attempt])  # nothing more can be said; its lease will expire
        else:
            await self.write([Failed(batch[0].attempt, describe(error), dead=True)])

    async def _write_each(self, batch: Sequence[Ending]) -> None:
        """One by one; what was not tried any more waits."""
        left = list(batch)
        try:
            while left:
                await self.write([left.pop(0)])
        finally:
            self.add_all(left)

    async def locked(self, batch: Sequence[Ending]) -> None:
        """Nothing of the batch was written, because somebody holds one of them: put that aside,
        and write the others."""
        try:
            held = await self._held(batch)
        except Exception:
            self.add_all(batch)
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
                self.add(ending)

    def answered_beside(self, batch: Sequence[Completed], stale: Sequence[Stale]) -> None:
        """As `answered`, on behalf of somebody who has no time to ask about the stale ones."""
        if stale:
            self._answers.append((batch, stale))
        else:
            self.settled(batch, [])

    async def answered(self, batch: Sequence[Ending], stale: Sequence[Stale]) -> None:
        """The call was answered: these were refused, the rest is written."""
        first = batch[0]
        if isinstance(first, Refused) and not stale:  # not by this database: its lease is alive
            self._waiting.append(Failed(first.attempt, first.error))
            return
        if isinstance(first, Failed):
            await self._learn_finals(batch)
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

    async def _learn_finals(self, batch: Sequence[Ending]) -> None:
        """Which of these failures were the last of their jobs; not worth a second try."""
        self._hands.drop([ending.attempt for ending in batch])  # no more renewals meanwhile
        with suppress(Exception):
            answers = await self._session.run(self._verbs.outcomes(keys(batch)), CALL_SECONDS)
            for ending, (outcome, final) in zip(batch, answers, strict=True):
                if isinstance(ending, Failed) and outcome == ending.outcome:
                    ending.final = final

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
        while self._answers:
            await self.answered(*self._answers.pop())
        if self._look_aside_at <= time.monotonic():
            await self._look_aside()
        while self._unsure:
            asked = self._unsure[:MAX_ENDINGS]
            under_way = {e for e in asked if isinstance(e, Unsure) and e.is_open}  # asked first
            outcomes = await self._session.run(self._verbs.outcomes(keys(asked)), CALL_SECONDS)
            for ending, (outcome, final) in zip(asked, outcomes, strict=True):
                self._unsure.remove(ending)  # more may have come meanwhile
                if isinstance(ending, Failed):
                    ending.final = final
                self._resolve(ending, outcome, is_open=ending in under_way)

    def _resolve(self, ending: Ending, outcome: str | None, *, is_open: bool) -> None:
        """This is what the database says of an ending that was sent and never answered."""
        if outcome == ending.outcome is not None:
            self.settled([ending], [])
        elif is_open and outcome is None:  # the commit decides, or the end of its lease
            self._put_aside([ending])
        else:  # not written; or the token was burnt, and the refusal is to be recorded
            self.add(ending.otherwise if isinstance(ending, Unsure) else ending)

    def unanswered(self, batch: Sequence[Ending], error: BaseException) -> None:
        """The call failed: keep its endings, to be looked up first if it may have committed."""
        if is_unknown(error):
            self._unsure.extend(batch)
        else:
            self.add_all(batch)

    def add_all(self, endings: Sequence[Ending]) -> None:
        """As `add`, each."""
        for ending in endings:
            self.add(ending)

    def _report(self, written: Sequence[Ending]) -> None:
        """Say that these were written; of many successes, how many: lines cost more than jobs."""
        if written and isinstance(written[0], Completed | Settled):
            if not self._says_done:
                return
            if len(written) > MANY and not self._says_each:
                self._emit(JobsCompleted(self._worker, len(written)))
                return
        now = time.monotonic()
        for ending in written:
            seconds = round(now - ending.attempt.started_at, 3)
            if (event := ending.event(self._worker, seconds)) is not None:
                self._emit(event)

    def settled(self, batch: Sequence[Ending], stale: Sequence[Stale]) -> None:
        """The call was answered: report what was written and what was refused."""
        if batch and batch[0].is_last:  # as all of one batch are
            self._hands.drop([ending.attempt for ending in batch])
        if batch:
            self._observer.settled(batch, stale)
        refused = {(item.job_id, item.token) for item in stale}
        written = [e for e in batch if e.attempt.key not in refused] if refused else batch
        self._report(written)
        if batch and isinstance(batch[0], Failed | Snoozed | Declined):
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


def is_unknown(error: BaseException) -> bool:
    """Whether the call that failed so may have committed: unless we know better, yes."""
    return not isinstance(error, Unavailable) or error.unknown


def seconds_for(batch: Sequence[Ending]) -> float:
    """How long the call may take: below the shortest lease it is about, unless that is shorter than
    the wait for a lock."""
    shortest = min([ending.attempt.lease.lease_seconds for ending in batch])
    return max(min(CALL_SECONDS, shortest / 2), LOCKED_SECONDS)
