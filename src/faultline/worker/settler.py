"""Settling: writing endings to the database, in groups, each exactly once.

Whatever ends while one call is under way goes out with the next: groups form by themselves, and a
lone ending leaves at once. A call whose answer was lost is looked up, attempt by attempt, before
anything is sent again; one ending that cannot be written does not stop its neighbours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar
from uuid import UUID

import psycopg
from psycopg.errors import DataError, ProgramLimitExceeded

from faultline.errors import FaultlineError, InvalidArgument
from faultline.events import Emit, StaleWriteBlocked
from faultline.jobs import Stale
from faultline.protocol import Protocol
from faultline.worker.attempt import Hands
from faultline.worker.endings import Completed, Ending, Failed, Gone, Snoozed, describe
from faultline.worker.outage import nothing
from faultline.worker.session import Session, Unavailable

MAX_BATCH = 1000
MAX_BYTES = 16_000_000
E = TypeVar("E", bound=Ending)
CALL_SECONDS = 10.0


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
        self._again: set[tuple[UUID, int]] = set()  # attempts whose endings were sent twice

    def add(self, ending: Ending) -> None:
        """To be written with the next call."""
        if isinstance(ending, Gone):
            self._hands.drop(ending.attempt)
        else:
            self._waiting.append(ending)

    def __bool__(self) -> bool:
        return bool(self._waiting or self._unsure)

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
            for ending in batch:
                await self.write([ending])
        elif not isinstance(error, InvalidArgument | DataError | ProgramLimitExceeded):
            self._waiting.append(batch[0])  # not its own fault: a right was taken away, …
            raise Unavailable(error, unknown=False) from error
        elif isinstance(batch[0], Failed):
            self._hands.drop(batch[0].attempt)  # nothing more can be said; its lease will expire
        else:
            await self.write([Failed(batch[0].attempt, describe(error), dead=True)])

    async def answered(self, batch: Sequence[Ending], stale: Sequence[Stale]) -> None:
        """The call was answered: these were refused, the rest is written."""
        self.settled(batch, await self._really_stale(batch, stale) if stale else stale)

    async def _really_stale(self, batch: Sequence[Ending], stale: Sequence[Stale]) -> list[Stale]:
        """Without what was refused only because the first sending had committed after all, late."""
        outcomes = {ending.attempt.key: ending.outcome for ending in batch}
        found = []
        for item in stale:
            key = (item.job_id, item.token)
            if key in self._again:
                with suppress(Unavailable):
                    outcome = await self._session.run(self._verbs.outcome(*key), CALL_SECONDS)
                    if outcome == outcomes.get(key):
                        continue
            found.append(item)
        self._again.difference_update(outcomes)
        return found

    async def resolve(self) -> None:
        """Find out what became of the calls that were never answered."""
        while self._unsure:
            ending = self._unsure[-1]
            outcome = None
            if ending.outcome is not None:
                call = self._verbs.outcome(*ending.attempt.key)
                outcome = await self._session.run(call, CALL_SECONDS)
            self._unsure.pop()
            if outcome == ending.outcome is not None:
                self.settled([ending], [])
            else:  # not written; or the token was burnt, and the refusal is to be recorded
                self._waiting.append(ending)
                self._again.add(ending.attempt.key)

    def unanswered(self, batch: Sequence[Ending], error: Exception) -> None:
        """The call failed: keep its endings, to be looked up first if it may have committed."""
        (self._unsure if is_unknown(error) else self._waiting).extend(batch)

    def settled(self, batch: Sequence[Ending], stale: Sequence[Stale]) -> None:
        """The call was answered: report what was written and what was refused."""
        refused = {(item.job_id, item.token) for item in stale}
        now = time.monotonic()
        for ending in batch:
            self._hands.drop(ending.attempt)
            if ending.attempt.key not in refused:
                seconds = round(now - ending.attempt.started_at, 3)
                if (event := ending.event(self._worker, seconds)) is not None:
                    self._emit(event)
        if isinstance(batch[0], Failed | Snoozed):
            self._on_put_off()
        for item in stale:
            self._emit(
                StaleWriteBlocked(
                    self._worker, item.job_id, item.token, item.current_token, item.reason
                )
            )


def is_unknown(error: Exception) -> bool:
    """Whether the call that failed so may have committed: unless we know better, yes."""
    return not isinstance(error, Unavailable) or error.unknown


def seconds_for(batch: Sequence[Ending]) -> float:
    """How long the call may take: below the shortest lease it is about."""
    return min([CALL_SECONDS, *(ending.attempt.lease.lease_seconds / 2 for ending in batch)])
