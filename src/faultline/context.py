"""What a handler is told about its own attempt, and its way to write under the fence.

    @app.task
    def charge(ctx: Context, order_id: int) -> None:
        with ctx.transaction() as tx:
            tx.execute("insert into charges …")
            tx.complete({"charged": order_id})

Making one by hand, `Context(job_id, token=1)`, is how a handler is called in a unit test; it then
has no database.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from faultline.errors import InvalidArgument
from faultline.observer import NOBODY, Observer

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection

    from faultline.fenced.pool import Pool
    from faultline.fenced.session import Session
    from faultline.fenced.transaction import Isolation, Transaction
    from faultline.protocol import Protocol
    from faultline.task import Task
    from faultline.worker.attempt import Attempt


@dataclass(frozen=True, slots=True)
class Means:
    """What a worker lends to its handlers."""

    verbs: Protocol
    pool: Pool
    tasks: Mapping[str, Task[..., Any]]
    worker: str = ""  # its name
    observer: Observer = NOBODY


class Context:
    """One attempt of one job, as its handler sees it."""

    __slots__ = (
        "_attempt",
        "_cancel_reason",
        "_cancelled",
        "_closing",
        "_completed",
        "_means",
        "_open",
        "_tx",
        "_unsure",
        "attempt",
        "headers",
        "job_id",
        "task",
        "token",
    )

    def __init__(
        self,
        job_id: UUID,
        token: int,
        *,
        attempt: int = 1,
        task: str = "",
        headers: Mapping[str, Any] | None = None,
        attempt_of: Attempt | None = None,
        means: Means | None = None,
    ) -> None:
        self.job_id = job_id
        self.token = token
        """Rises with every claim of the job. Hand it to any sink that can compare."""
        self.attempt = attempt
        """1 for the first try; failures count, snoozes and lost leases do not."""
        self.task = task
        self.headers: Mapping[str, Any] = headers or {}
        self._cancelled = False
        self._cancel_reason: str | None = None
        self._attempt = attempt_of  # in the hands of a worker; None: made by hand
        self._means = means
        self._open: set[Connection[Any] | AsyncConnection[Any]] = set()
        self._tx: Transaction | None = None
        self._closing = 0  # commits under way that end the job
        self._completed: tuple[Any] | None = None  # the result with which one of them did
        self._unsure = False  # one of them was never answered

    @property
    def cancelled(self) -> bool:
        """Stop now. An async handler is also cancelled; a sync one has to look here by itself."""
        return self._cancelled

    @property
    def cancel_reason(self) -> str | None:
        """Why: what was said to cancel, or `lease lost`, `timeout`, `shutdown`."""
        return self._cancel_reason

    def idempotency_key(self, name: str) -> str:
        """A key for an effect outside the database: the same in every attempt of this job.

        It does not contain the token: a key that changes on a takeover is a second charge.
        """
        return f"{self.job_id}:{name}"

    def progress(self, report: Any) -> None:
        """Let others see how far the job is; any JSON. Returns at once, the last report wins."""
        from faultline.call import to_json
        from faultline.plain import Misfit, described, plain

        try:
            value = plain(report)
            to_json(value, "progress")  # too many digits, for one
        except (Misfit, RecursionError) as error:
            raise InvalidArgument(f"the progress of {self.task} {described(error)}") from error
        if self._attempt is not None:
            self._attempt.reported(value)

    # ── writing under the fence ──────────────────────────────────────────────────────────────────

    def transaction(
        self, *, step: str | None = None, isolation: Isolation | None = None
    ) -> Transaction:
        """A transaction that commits only while this attempt owns its job.

            with ctx.transaction() as tx:               # async with, and await, in an async handler
                tx.execute("insert into charges …")     # tx.connection is a psycopg connection
                tx.complete({"ok": True})               # optional: the job ends with this commit

        Leaving the block checks the lease and commits, or rolls back and raises StaleLease. With a
        `step` it is committed once per job, over all attempts: `tx.done` says whether it was, and
        `tx.value` what it recorded. When the lease is lost meanwhile, the connection is cut under
        whatever is using it.
        """
        from faultline.fenced.transaction import Transaction

        return Transaction(self, self._lent(), step, isolation)

    def session(self, factory: Callable[[], Any], *, step: str | None = None) -> Session:
        """The same on a SQLAlchemy session: give a sessionmaker, or an async one.

        with ctx.session(Session) as session:
            session.add(Charge(order_id=7))
            session.complete({"ok": True})
        """
        from faultline.fenced.session import Session

        return Session(self, self._lent(), factory, step)

    @property
    def tx(self) -> Transaction:
        """The transaction around the whole handler, in a task with `transactional=True`."""
        if self._tx is None:
            raise InvalidArgument(
                "there is no ctx.tx here: register the task with @app.task(transactional=True), or "
                "open a transaction with ctx.transaction()"
            )
        return self._tx

    def assert_fence(self, connection: Any) -> Any:
        """The write gate for a transaction of your own: call it last, then commit.

        Raises StaleLease unless the lease is alive; else nobody takes the job over before the
        commit. Any psycopg or SQLAlchemy connection or session; to be awaited for an async one.
        """
        from faultline.caller import run_or_await

        return run_or_await(connection, self._lent().verbs.assert_fence(self.job_id, self.token))

    def fence(self, connection: Any) -> Any:
        """Open a fence in a transaction of your own, before it writes to a guarded table: the
        database checks it at the commit. To be awaited for an async connection."""
        from faultline.caller import run_or_await

        return run_or_await(connection, self._lent().verbs.fence(self.job_id, self.token))

    def _lent(self) -> Means:
        if self._means is None:
            raise InvalidArgument(
                "this Context was made by hand and has no database: run the job with app.testing()"
            )
        return self._means

    # ── between a fenced transaction and the worker ──────────────────────────────────────────────

    def _refuse_if_completed(self) -> None:
        if self._completed is not None:
            raise InvalidArgument(
                f"job {self.job_id} was completed by tx.complete: an attempt ends once, and "
                "nothing can be written under its lease any more"
            )

    def _is_ending(self) -> bool:
        """Whether a commit of its own ends the job just now, or has."""
        return bool(self._closing) or self._completed is not None

    def _dump(self, result: Any) -> Any:
        return result if self._attempt is None else self._attempt.dumped(result)

    def _hold(self) -> None:
        if self._attempt is not None:
            self._attempt.hold()

    def _renewed(self) -> None:
        if self._attempt is not None:
            self._attempt.renewed()

    def _let_go(self) -> None:
        if self._attempt is not None:
            self._attempt.let_go()

    def _tell(self, reason: str, *, sever: bool = False) -> None:
        """The worker's side: the handler should stop. The first reason stands."""
        if not self._cancelled:
            self._cancel_reason = reason
            self._cancelled = True
        if sever and self._open:
            from faultline.connect import abort

            for connection in list(self._open):
                abort(connection)
