"""What a handler is told about its own attempt.

    @app.task
    async def charge(ctx: Context, order_id: int) -> None:
        provider.charge(order_id, idempotency_key=ctx.idempotency_key("charge"))

Making one by hand, `Context(job_id, token=1)`, is how a handler is called in a unit test; it then
has no database.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from faultline.errors import InvalidArgument

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection

    from faultline.transaction import Transaction


class Context:
    """One attempt of one job, as its handler sees it."""

    __slots__ = (
        "_cancel_reason",
        "_cancelled",
        "_database",
        "_open",
        "_report",
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
        report: Callable[[Any], None] | None = None,
        database: tuple[str, str] | None = None,
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
        self._report = report
        self._database = database  # URL and schema
        self._open: set[Connection[Any] | AsyncConnection[Any]] = set()

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
        if self._report is not None:
            self._report(value)

    def transaction(self) -> Transaction:
        """A transaction that commits only while this attempt owns its job.

            with ctx.transaction() as tx:               # async with, and await, in an async handler
                tx.execute("insert into charges …")     # tx.connection is a psycopg connection

        Leaving the block checks the lease and commits, or rolls back and raises StaleLease. When
        the lease is lost meanwhile, the connection is cut under whatever is using it.
        """
        from faultline.transaction import Transaction

        if self._database is None:
            raise InvalidArgument(
                "this Context was made by hand and has no database: run the job with app.testing()"
            )
        return Transaction(self, *self._database)

    def _tell(self, reason: str, *, sever: bool = False) -> None:
        """The worker's side: the handler should stop. The first reason stands."""
        if not self._cancelled:
            self._cancel_reason = reason
            self._cancelled = True
        if sever and self._open:
            from faultline.connect import abort

            for connection in list(self._open):
                abort(connection)
