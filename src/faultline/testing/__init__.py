"""Testing handlers: jobs run here and now, on a real server, by the worker's own machinery.

    with app.testing() as testing:              # or: async with
        job = charge.enqueue(order_id=7)
        assert testing.run(job).state == "succeeded"

`app` works on a database of this test's own until the block ends. Nothing is mocked: jobs are
claimed, fenced and settled as in production, and a lease is lost when a test says so
(`expire_lease`, `take_over`). No code that runs in production imports this package.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar
from uuid import UUID

from psycopg import Connection

from faultline.call import translated_errors
from faultline.connect import connect
from faultline.errors import InvalidArgument, JobNotFound
from faultline.events import Event
from faultline.handle import Job
from faultline.jobs import Lease, Status
from faultline.migrate import is_current, migrate
from faultline.protocol import Protocol
from faultline.reading import Reading, Record
from faultline.states import State
from faultline.task import as_uuid
from faultline.testing.databases import embedded_server, fresh_database
from faultline.testing.inline import sending
from faultline.testing.running import Runner

if TYPE_CHECKING:
    from faultline.app import App

T = TypeVar("T")
AnyJob = Job[Any] | UUID | str

_LOCK_SECONDS = 2  # a test that waits for its own transaction would wait for ever


class Ran(NamedTuple):
    """One attempt that `drain` ran, and where it left its job."""

    job_id: UUID
    state: str


class Testing:
    """What `app.testing()` is: a database for the app, and the jobs in it at the test's command."""

    __test__ = False  # pytest: not a class of tests
    url: str
    """The test's own database."""
    connection: Connection[Any]
    """A psycopg connection to it (autocommit), for tables of your own and for a look at ours."""

    def __init__(
        self,
        app: App,
        url: str | None = None,
        *,
        database: str | None = None,
        inline: bool = False,
    ) -> None:
        if url is not None and database is not None:
            raise InvalidArgument(
                "url names a server to make a database on, database one that is there: give one"
            )
        self._app = app
        self._server = url
        self._database = database
        self._inline = inline
        self._lock = threading.RLock()  # held while a claim is prepared, never while a job runs
        self._undo = ExitStack()
        self.events: list[Event] = []
        """What the worker's machinery reported so far."""

    # ── begin and end ────────────────────────────────────────────────────────────────────────────

    def __enter__(self) -> Self:
        schema = self._app.schema
        self._verbs, self._reading = Protocol(schema), Reading(schema)
        with ExitStack() as undo:
            if self._database is not None:
                self.url = self._database
                _bring_up_to_date(self.url, schema)
            else:
                server = self._server if self._server is not None else embedded_server()
                self.url = undo.enter_context(fresh_database(server, schema))
            undo.enter_context(self._app._moved(self.url))
            self.connection = undo.enter_context(connect(self.url, schema=schema))
            self._conn = undo.enter_context(connect(self.url, schema=schema))
            self._conn.execute(f"set lock_timeout = '{_LOCK_SECONDS}s'")
            self._runner = Runner(self._app, self.url, self.events.append)
            undo.callback(self._runner.close)
            run_new = (self._run_new, self._arun_new) if self._inline else None
            undo.enter_context(sending(self._app._producer, run_new))
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.__exit__)

    # ── running jobs ─────────────────────────────────────────────────────────────────────────────

    def run(self, job: AnyJob) -> Status:
        """Run the next attempt of this job now, also if it is scheduled for later.

        An async handler runs on an event loop of its own; inside one, await `arun`.
        """
        return _blocking(self.arun(job))

    async def arun(self, job: AnyJob) -> Status:
        """As `run`, for asyncio: an async handler runs on the running loop."""
        job_id = _id(job)
        async with self._runner.session() as session:
            sent = time.monotonic()
            await self._runner.run(session, self._claim(job_id), sent)
        return self._status(job_id)

    def drain(self, *queues: str, scheduled: bool = False, limit: int = 1000) -> list[Ran]:
        """Run what is due, one attempt after the other, until nothing is or `limit` is reached.

        In these queues, or in all. With `scheduled` also what is due later: retries, snoozes,
        delayed jobs.
        """
        return _blocking(self.adrain(*queues, scheduled=scheduled, limit=limit))

    async def adrain(self, *queues: str, scheduled: bool = False, limit: int = 1000) -> list[Ran]:
        """As `drain`, for asyncio."""
        ran: list[Ran] = []
        async with self._runner.session() as session:
            while len(ran) < limit:
                sent = time.monotonic()
                if (lease := self._claim_next(queues, scheduled)) is None:
                    break
                await self._runner.run(session, lease, sent)
                ran.append(Ran(lease.job_id, self._status(lease.job_id).state))
        return ran

    # ── taking leases away ───────────────────────────────────────────────────────────────────────

    def expire_lease(self, job: AnyJob, *, told: bool = False) -> None:
        """The lease of this running job is over, now: whatever its attempt writes is refused.

        The handler is not told, as if its process had stalled; with `told` it is, as by a worker
        that notices: `ctx.cancelled`, a cancelled coroutine, severed fenced transactions.
        """
        job_id = _id(job)
        with self._lock:
            self._runner.lose(job_id, told=False)  # first: nobody shall renew it meanwhile
            with translated_errors(self._verbs.schema, "expire_lease"):
                moved = self._conn.execute(
                    f"update {self._verbs.schema}.lease "
                    "set expires_at = clock_timestamp() - interval '1 second' where job_id = %s",
                    (job_id,),
                )
            if not moved.rowcount:
                raise InvalidArgument(
                    f"job {job_id} has no lease to lose: it is {self._status(job_id).state}"
                )
        if told:
            self._runner.lose(job_id, told=True)

    def take_over(self, job: AnyJob, worker: str = "another worker") -> int:
        """The lease is over and another worker has claimed the job; answers with its token."""
        job_id = _id(job)
        with self._lock:
            self.expire_lease(job_id)
            taken = {item.job_id: item.state for item in self._verbs.reclaim(1000).run(self._conn)}
            if job_id not in taken:
                raise InvalidArgument(
                    f"job {job_id} cannot be taken over now: an open transaction has passed its "
                    "fence, and holds the lease until it ends"
                )
            return self._claim(job_id, worker).token

    # ── looking ──────────────────────────────────────────────────────────────────────────────────

    def jobs(
        self, *, state: str | None = None, queue: str | None = None, task: str | None = None
    ) -> list[Record]:
        """The jobs that match, oldest first, with all that the view `jobs` shows."""
        with self._lock:
            found = self._reading.job_ids(self._conn, state=state, queue=queue, task=task)
            rows = [self._reading.job(self._conn, job_id) for job_id in found]
        return [row for row in rows if row is not None]

    def refusals(self, job: AnyJob) -> list[Record]:
        """The stale writes of this job that were refused, oldest first."""
        with self._lock:
            return self._reading.refusals(self._conn, _id(job))

    # ── claiming ─────────────────────────────────────────────────────────────────────────────────

    def _claim(self, job_id: UUID, worker: str = Runner.name) -> Lease:
        """Claim this very job: from its own place in its lane on, and no more than one."""
        with self._lock:
            self._verbs.reclaim(1000).run(self._conn)
            self._verbs.retry([job_id]).run(self._conn)
            place = self._conn.execute(
                f"select lane, seq from {self._verbs.schema}.ready where job_id = %s", (job_id,)
            ).fetchone()
            if place is None:
                raise self._cannot_run(job_id)
            lane, seq = place
            claimed = self._verbs.claim(worker, [lane], cursors=[seq]).run(self._conn)
            if [lease.job_id for lease in claimed] == [job_id]:
                return claimed[0]
            self._verbs.release([(lease.job_id, lease.token) for lease in claimed]).run(self._conn)
        raise InvalidArgument(
            f"job {job_id} cannot be claimed: its queue is paused, or an open transaction holds it"
        )

    def _claim_next(self, queues: tuple[str, ...], scheduled: bool) -> Lease | None:
        with self._lock:
            self._verbs.reconcile().run(self._conn)
            named = queues or [row["queue"] for row in self._reading.queues(self._conn)]
            claimed = self._claimed_from(named)
            if not claimed and scheduled:
                self._verbs.retry(self._later(named)).run(self._conn)
                claimed = self._claimed_from(named)
            return claimed[0] if claimed else None

    def _claimed_from(self, queues: Sequence[str]) -> list[Lease]:
        """Claim the next job; the lanes are read each time, idle ones may be left out."""
        lanes = [lane.lane for lane in self._verbs.lanes(queues).run(self._conn)]
        return self._verbs.claim(Runner.name, lanes).run(self._conn)

    def _later(self, queues: tuple[str, ...] | list[str]) -> list[UUID]:
        state = State.SCHEDULED
        return [
            job_id
            for queue in queues
            for job_id in self._reading.job_ids(self._conn, state=state, queue=queue)
        ]

    def _cannot_run(self, job_id: UUID) -> InvalidArgument:
        state = self._status(job_id).state
        return InvalidArgument(f"job {job_id} cannot be run, it is {state}{_ADVICE.get(state, '')}")

    def _status(self, job_id: UUID) -> Status:
        with self._lock:
            status = self._verbs.status(job_id).run(self._conn)
        if status is None:
            raise JobNotFound(job_id)
        return status

    # ── inline ───────────────────────────────────────────────────────────────────────────────────

    def _run_new(self, job_ids: list[UUID]) -> None:
        for job_id in job_ids:
            if self._status(job_id).state == State.QUEUED:
                self.run(job_id)

    async def _arun_new(self, job_ids: list[UUID]) -> None:
        for job_id in job_ids:
            if self._status(job_id).state == State.QUEUED:
                await self.arun(job_id)


_ADVICE: dict[str, str] = {
    State.RUNNING: ": let its lease run out first, with testing.expire_lease(job)",
    State.QUARANTINED: ": requeue it first",
}


def _id(job: AnyJob) -> UUID:
    return job.id if isinstance(job, Job) else as_uuid(job)


def _bring_up_to_date(url: str, schema: str) -> None:
    with connect(url, schema=None) as conn:
        if not is_current(conn, schema):
            migrate(conn, schema)


def _blocking(work: Coroutine[Any, Any, T]) -> T:
    """Wait for it here, also where an event loop is running: that one then stands still."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _on_a_loop(work)
    with ThreadPoolExecutor(1, "faultline-testing") as thread:
        return thread.submit(_on_a_loop, work).result()


def _on_a_loop(work: Coroutine[Any, Any, T]) -> T:
    # Not asyncio.run: it would forget the event loop that a test framework has set.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(work)
