"""The worker's main loop: settle what has ended, claim what there is room for, wait.

    while it is going on:
        settle_and_claim()       one call and one commit, where both are to be done
        wait()                   for an ending, a notification, or the next poll

Claims as many jobs as can begin in a moment. Where these are hundreds, the next batches are settled
and claimed on other connections while the answer for the first is awaited (`Beside`).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from uuid import UUID

import psycopg

from faultline.errors import FaultlineError
from faultline.events import Emit
from faultline.jobs import Lease, Stale
from faultline.observer import NOBODY, Observer
from faultline.protocol import Protocol
from faultline.worker.ahead import MAX_CLAIM, most_in_a_call
from faultline.worker.beside import Beside
from faultline.worker.ears import Ears, Word
from faultline.worker.endings import Completed, keys, results
from faultline.worker.lanes import Lanes, begun
from faultline.worker.limit import Limit
from faultline.worker.lost import Lost
from faultline.worker.outage import Outage
from faultline.worker.prompt import Prompt
from faultline.worker.session import Locked, Session, Unavailable
from faultline.worker.settler import Settler, is_unknown, seconds_for
from faultline.worker.sleeper import Sleeper

FEW_LANES = 20  # for one job each is looked at by itself: of more, claim reads them sooner
CALL_SECONDS = 5.0
LINGER_SECONDS = 0.005


class Pump:
    """Moves jobs between the database and the hands of one worker."""

    def __init__(
        self,
        worker: str,
        queues: list[str],
        session: Session,
        verbs: Protocol,
        settler: Settler,
        emit: Emit,
        *,
        others: Sequence[Session] = (),
        room: Callable[[], int],
        is_ahead: Callable[[int], bool],
        start: Callable[[list[Lease], float], None],
        known: Callable[[], list[tuple[UUID, int]]],
        poll_seconds: Callable[[], float],
        apart: str | None,
        listens: bool,
        on_cancel: Callable[[UUID], None],
        observer: Observer = NOBODY,
    ) -> None:
        self._worker = worker
        self._queues = queues
        self._session = session
        self._verbs = verbs
        self._settler = settler
        self._all_room = room  # how many jobs may be claimed in all; 0 when draining
        self._is_ahead = is_ahead  # with room for so few there are enough here for now
        self._start = start
        self._poll_seconds = poll_seconds
        self._apart = apart  # whose the leases of suspects are
        self._observer = observer
        self._lanes = Lanes(queues, verbs, session, observer)
        self._outage = Outage(worker, emit)
        self._signal = asyncio.Event()
        self._ears = Ears(session, verbs.schema, self.work_announced, on_cancel, self._signal.set)
        self._listens = listens
        self._besides = [Beside(other, self._claim_beside) for other in others]
        self._claiming = 0  # jobs asked for and not answered yet
        self._looked_at = 0.0  # when the last claim was made
        self._most = MAX_CLAIM  # in one call
        self._hungry = True  # there may be work
        self._flows = False  # the last claim got as much as it asked for
        self._rests = False  # the last claim got nothing
        self._is_announced = False  # a queue whose lanes are known has a job, unless that is gone
        self._prompt = Prompt(session, self._begin_at_once)
        self._sleeper = Sleeper(worker, queues, verbs, session, self._poll)
        self._lost = Lost(worker, session, verbs, known)

    def wake(self) -> None:
        """Something has ended, or the worker is to drain."""
        self._prompt.forget()
        self._signal.set()
        if self._claiming:
            self._share()

    def ended_itself(self) -> None:
        """As `wake`, with nothing left to be written: not while others wait for its place, and
        there is room for too few to claim. Each of them ends, and then asks again."""
        if not self._is_ahead(self._free()):
            self.wake()

    def work_announced(self, word: Word | None) -> None:
        """A queue has a job; None: some queue may have one."""
        if word is None:
            self._is_announced = False
            self._look_anew()
        elif word.queue in self._queues:
            self._sleeper.told(*word)
            if word.is_for_me():
                self._is_announced = self._lanes.has(word.queue)
                if self._is_announced and self._prompt.send():
                    self._claiming += 1
                    if self._ears.is_watching:
                        return  # `_hear` does the rest: now it would keep a core from the server
                self._look_anew()
            self._sleeper.look_again()

    def _look_anew(self) -> None:
        self._lanes.sweep_soon()
        if not self._is_announced:
            self._lanes.refresh_soon()
        self._poll()

    @property
    def listening(self) -> bool:
        """Whether it is told of new work."""
        return self._ears.listening

    def trouble(self) -> str | None:
        """Why nothing can be claimed or settled, if so; from any thread."""
        why = self._outage.trouble
        return None if why is None else f"jobs cannot be claimed or settled: {why}"

    async def begin(self) -> set[str]:
        """Connect, and fail now if this worker could never claim anything; answers with those of
        its queues that have had a job."""
        lanes = await begun(self._session, self._verbs, self._worker, self._queues)
        self._observer.lanes(lanes)  # for who never claims: a process of one job
        return {lane.queue for lane in lanes}

    async def run(
        self, going_on: Callable[[], bool], patient: Callable[[], bool], limit: Limit
    ) -> bool:
        """Until `going_on` says no and all is written; an outage only makes it wait, as long as
        it is `patient`, and nothing longer than the limit. False: not all could be written."""
        while going_on() or self._has_more():
            if limit.is_over and (self._has_more() or not going_on()):
                return False  # not where nothing but a process of its own is waited for
            try:
                await self.settle_and_claim()
            except Exception as error:  # whatever it is: a worker that stops here loses its jobs
                if not patient():
                    return False
                await self._outage.wait(error, limit.left())
            else:
                self._outage.over()
                if self._has_more() and not (going_on() or patient()):
                    return False
                if self._has_more() or going_on():
                    await self._wait()
        return True

    def _has_more(self) -> bool:
        """Whether something is to be written, heard or looked for, or being written."""
        is_asking = self._is_busy_beside() or self._prompt.is_sent or self._lost.is_due
        return bool(self._settler) or is_asking

    def _is_busy_beside(self) -> bool:
        return any(beside.is_busy for beside in self._besides)

    async def close(self) -> None:
        """Close the other connections; the first is not the pump's own."""
        await self._prompt.give_back(self._verbs)
        await asyncio.gather(*(beside.close() for beside in self._besides))

    async def settle_and_claim(self) -> None:
        """One step. Raises Unavailable; what was to be written is then kept for the next."""
        if self._prompt.is_sent:
            await self._hear()
            return  # what was claimed begins before anything else is sent
        await self._settler.resolve()
        await self._lost.release(self._is_busy_beside)
        if self._wants_some():
            completions = self._settler.take_done()
            if completions or self._hungry:
                await self._claim(self._room(), completions)
        await self._settler.settle(self._linger_seconds())

    def _free(self) -> int:
        """For how many jobs there is room that nobody has asked for."""
        return self._all_room() - self._claiming

    def _room(self) -> int:
        """How many jobs the next claim may ask for."""
        return min(self._free(), self._most)

    def _wants_some(self) -> bool:
        return (free := self._free()) > 0 and not self._is_ahead(free)

    def _linger_seconds(self) -> float:
        """How long successes can wait, to go out together with a claim."""
        if not self._hungry:
            return 0.0
        if self._wants_some():
            return math.inf  # the next step claims
        return LINGER_SECONDS if self._claiming or self._is_ahead(self._free()) else 0.0

    async def _claim(self, room: int, completions: list[Completed]) -> None:
        self._looked_at = sent = time.monotonic()
        self._hungry = False  # until somebody announces work, also while the claim is under way
        announced, self._is_announced = self._is_announced, False
        try:
            await self._lanes.refresh()
            sent = time.monotonic()
            claim = self._lanes.for_claim()
            is_one = announced and self._rests and room > 1 and not completions
            is_one = is_one and len(claim[0]) <= FEW_LANES
            room = 1 if is_one else room
            stale, leases = await self._ask(self._session, room, completions, claim)
        except (FaultlineError, psycopg.Error, Locked) as error:
            self._hungry = True
            if not completions:
                raise
            settle = self._settler.locked if isinstance(error, Locked) else self._settler.write
            await settle(completions)  # alone, and if need be one by one
            return
        except Exception as error:  # an answer that cannot be understood counts as lost
            self._unanswered(completions, error, sent)
            raise
        self._rests, swept = not leases, claim[1] is None
        self._lanes.claimed(leases, time.monotonic() - sent, swept=swept)
        await self._take(self._session, leases, sent)
        if completions:
            await self._settler.answered(completions, stale)
        if not is_one:
            await self._sleep_or_not(len(leases) >= room, swept)
        if announced:  # whatever was found: there may be more, or it is in a lane that is new
            self._lanes.refresh_soon()
            self._hungry = True

    def _prepare(self) -> None:
        """What to send at the next word, for who found nothing the last time: one job, which is had
        sooner if nothing else is asked for. With room for just one, that would have to be said."""
        if self._rests and self._room() > 1 and self._lanes.are_fresh and not self._lost:
            lanes, _ = self._lanes.for_claim(may_sweep=False)
            if len(lanes) <= FEW_LANES:
                self._prompt.prepare(self._verbs.claim_one(self._worker, lanes, by_itself=True))

    async def _hear(self) -> None:
        """What came of the claim that was sent at a word."""
        self._is_announced = False
        try:
            left = await self._prompt.answer()
        except Exception as error:
            self._unanswered([], error, self._prompt.sent_at)
            raise
        finally:
            self._claiming -= 1
        await self._take(self._session, left, self._prompt.sent_at)
        self._lanes.refresh_soon()  # there may be more, or it is in a lane that is new
        self._hungry = True
        self._sleeper.look_again()

    def _begin_at_once(self, leases: list[Lease], sent: float) -> list[Lease]:
        """What that claim got, before this loop's other work; a suspect is left for `_hear`."""
        self._rests = not leases
        if self._apart is not None and any(lease.last_chance for lease in leases):
            return leases
        self._begin(leases, sent)
        return []

    def _share(self) -> None:
        """A claim is under way: another connection makes the next one, if that is a fat one."""
        enough = self._settler.done >= self._most / 2 or self._wants_some()
        if enough and self._is_worth_it(self._room()):
            for beside in self._besides:
                if not beside.is_busy:
                    beside.ask()
                    return

    def _is_worth_it(self, room: int) -> bool:
        return room >= self._most / 2 and self._flows and not self._lost

    async def _claim_beside(self, session: Session) -> None:
        """On another connection. Whatever is not plain success is left to the first."""
        room = self._room()
        is_worth_it = self._is_worth_it(room)
        completions = self._settler.take_done() if is_worth_it else []
        sent = time.monotonic()
        try:
            if not is_worth_it:
                return
            lanes = self._lanes.for_claim(may_sweep=False)
            stale, leases = await self._ask(session, room, completions, lanes)
        except (FaultlineError, psycopg.Error, Locked):
            self._flows = False
            self._settler.add_all(completions)
        except BaseException as error:
            self._flows = False
            self._unanswered(completions, error, sent)
            raise
        else:
            self._lanes.claimed(leases, time.monotonic() - sent, swept=False)
            await self._take(session, leases, sent)
            self._settler.answered_beside(completions, stale)
            self._flows = len(leases) >= room
            self._hungry = self._hungry or self._flows
        finally:
            self.wake()

    async def _ask(
        self,
        session: Session,
        room: int,
        completions: list[Completed],
        where: tuple[list[int], list[int] | None],
    ) -> tuple[list[Stale], list[Lease]]:
        """Settle these and claim so many, in one call and one commit."""
        lanes, cursors = where
        self._claiming += room
        self._share()
        try:
            if room == 1 and not completions:
                one = self._verbs.claim_one(self._worker, lanes, cursors=cursors, by_itself=True)
                return [], await session.run(one, CALL_SECONDS)
            if not completions:
                call = self._verbs.claim(self._worker, lanes, max_jobs=room, cursors=cursors)
                return [], await session.run(call, CALL_SECONDS)
            ended = keys(completions), results(completions)
            swap = self._verbs.swap(*ended, self._worker, lanes, max_jobs=room, cursors=cursors)
            return await session.run(swap, min(CALL_SECONDS, seconds_for(completions)))
        finally:
            self._claiming -= room

    def _unanswered(self, completions: list[Completed], error: BaseException, sent: float) -> None:
        """Look up what became of these, and of what may have been leased to us."""
        self._hungry = True
        self._settler.unanswered(completions, error)
        if is_unknown(error):
            self._lost.look_for(sent)

    async def _take(self, session: Session, leases: list[Lease], sent: float) -> None:
        """These were claimed by a call that was sent at this moment."""
        suspects = [(lease.job_id, lease.token) for lease in leases if lease.last_chance]
        if suspects and self._apart is not None:
            # What will run alone shares this worker's fate no longer, from before anything begins.
            call = self._verbs.adopt(self._apart, suspects, started=False)
            with suppress(Unavailable, FaultlineError, psycopg.Error):  # its process will find out
                await session.run(call, CALL_SECONDS)
        self._begin(leases, sent)

    def _begin(self, leases: list[Lease], sent: float) -> None:
        if leases:
            self._most = most_in_a_call([lease.lease_seconds for lease in leases])
            self._start(leases, sent)

    async def _sleep_or_not(self, full: bool, swept: bool) -> None:
        """Ask to be notified when there is no more work; not while there is: it costs enqueuers."""
        self._flows = full
        if full:
            self._hungry = True
            await self._sleeper.awake()
        elif not swept or await self._sleeper.asleep():
            self._lanes.refresh_soon()
            self._hungry = True  # look once more, by a sweep: a job may have come before we asked

    async def _wait(self) -> None:
        """For an ending, an announcement or the next poll; not at all while there is work."""
        now = time.monotonic()  # a poll comes so long after the last claim, whatever ends meanwhile
        if (poll_at := (now if self._hungry else self._looked_at) + self._poll_seconds()) <= now:
            self._poll()
        seconds = min(poll_at, self._settler.due_at(self._linger_seconds())) - now
        if seconds <= 0 or (self._hungry and self._wants_some()):
            await asyncio.sleep(0)
            return
        if self._listens:
            await self._ears.listen()
        timer = asyncio.get_running_loop().call_later(seconds, self._poll)
        self._prepare()
        self._ears.watch()
        try:
            await self._signal.wait()
        finally:
            self._prompt.forget()
            self._ears.rest()
            timer.cancel()
        self._signal.clear()

    def _poll(self) -> None:
        if self._rests:  # who finds nothing without a sweep would sweep next
            self._lanes.sweep_soon()
        self._hungry = True
        self._signal.set()
