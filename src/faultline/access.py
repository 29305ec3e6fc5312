"""The service's way to the database: for each request a transaction in the least role that will do.

    read      as reader, read only, for at most so many seconds
    study     the same, for what reads every table
    act       as producer or operator, one verb
    server    as whoever logged in, read only: what the server says of itself

The role is set for the transaction and not for the session, so that it does not leak through a
pooler. An installation without roles (`migrate --no-roles`) has only the user who logged in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar
from uuid import UUID

from psycopg import Connection, Error, errors

from faultline.call import Call
from faultline.errors import FaultlineError, NotPermitted
from faultline.producer import Producer
from faultline.reading import Reading

if TYPE_CHECKING:
    from faultline.app import App

T = TypeVar("T")
Role = Literal["reader", "producer", "operator"]

MAX_CONNECTIONS = 8
WAIT_SECONDS = 3.0  # for a connection; whoever asks over HTTP will not wait for long
STATEMENT_SECONDS = 10

# With JIT, the views of many joins take longer to compile than to read; and a plan that is kept for
# any state or queue is a bad one for most.
_SETTINGS = """
select set_config('jit', 'off', true), set_config('statement_timeout', %s, true),
       set_config('plan_cache_mode', 'force_custom_plan', true),
       case when %s then set_config('transaction_read_only', 'on', true) end,
       case when to_regrole(%s::text) is not null then set_config('role', %s, true) end"""

# One process of the server and no more: whoever waits for an answer comes first.
_ALONE = "select set_config('max_parallel_workers_per_gather', '0', true)"


class Access:
    """One installation, for the requests of one service."""

    def __init__(self, app: App) -> None:
        self.app = app
        self._producer = Producer(
            lambda: app.url,
            lambda: app.schema,
            max_connections=MAX_CONNECTIONS,
            wait_seconds=WAIT_SECONDS,
            observer=lambda: app.telemetry,
        )

    @cached_property
    def reading(self) -> Reading:
        """The views of the installation."""
        return Reading(self.app.schema)

    @property
    def producer(self) -> Producer:
        """Its verbs, and ids for new jobs."""
        return self._producer

    def read(self, question: Callable[[Reading, Connection[Any]], T]) -> T:
        """Ask the views."""
        reading = self.reading
        return self._producer.run(
            _InRole("reader", self.app.schema, lambda conn: question(reading, conn))
        )

    def study(self, question: Callable[[Reading, Connection[Any]], T], seconds: int) -> T:
        """Ask the views something large, for at most so long. How long it takes says nothing about
        the database's answers, so it is not counted among them."""
        reading = self.reading

        def ask(conn: Connection[Any]) -> T:
            conn.execute(_ALONE)
            return question(reading, conn)

        return self._producer.run(_InRole("reader", self.app.schema, ask, None, seconds))

    def act(self, role: Role, call: Call[T]) -> T:
        """Carry out one verb."""
        return self._producer.run(_InRole(role, self.app.schema, call.run, call.verb))

    def retry(self, ids: Sequence[UUID], reason: str) -> tuple[list[UUID], list[UUID]]:
        """Have these tried again, now: the scheduled ones that are due by it, and the failed and
        quarantined ones that were requeued; any other is left as it is."""
        due = self.act("operator", self._producer.verbs.retry(ids))
        left = [job_id for job_id in ids if job_id not in set(due)]
        return due, self.act("operator", self._producer.verbs.requeue(left, reason)) if left else []

    def server(self, question: Callable[[Connection[Any]], T]) -> T:
        """Ask the server about itself: what may be seen there is a right of the login."""
        return self._producer.run(_InRole(None, self.app.schema, question))

    def new_id(self) -> UUID:
        """An id for a job."""
        return self._producer.new_id()

    async def aopen(self) -> None:
        """Connect, so that the first request does not have to. Raises nothing and waits at most 3 s
        if the database is away: each request reports that."""
        with suppress(FaultlineError, Error, TimeoutError):
            await asyncio.wait_for(self._producer.aopen(), WAIT_SECONDS)

    def close(self) -> None:
        """Let go of the connections; the next request opens new ones."""
        self._producer.close()


@dataclass(frozen=True, slots=True)
class _InRole(Generic[T]):
    """Something to run in a transaction of its own, in a role."""

    role: Role | None
    schema: str
    what: Callable[[Connection[Any]], T]
    verb: str | None = ""
    seconds: int = STATEMENT_SECONDS

    def run(self, conn: Connection[Any]) -> T:
        name = f"{self.schema}_{self.role}" if self.role else None
        read_only = self.role not in ("producer", "operator")
        with conn.transaction():
            try:
                conn.execute(_SETTINGS, (f"{self.seconds}s", read_only, name, name))
            except errors.InsufficientPrivilege as error:
                verb = self.verb or ""
                raise NotPermitted(conn.info.user, verb, self.schema, [str(name)]) from error
            return self.what(conn)
