"""The app: a database, and the tasks whose jobs are kept there.

    app = App()                      # FAULTLINE_DATABASE_URL, or the embedded server

    @app.task
    def resize(path: str) -> None: ...

    resize.enqueue("cat.png")

Making one costs nothing: the environment is read and connections are opened on first use, or by
`app.open()` when the process starts. An app is shared by threads, event loops and forked processes.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, overload
from uuid import UUID

from faultline.config import Settings, schema_name
from faultline.context import Context
from faultline.database import database_url
from faultline.enqueueing import Options, Route, asend_one, checked, send_one
from faultline.errors import DuplicateTask, InvalidArgument
from faultline.handle import Job
from faultline.outbox import Relay
from faultline.plain import Misfit, as_it_is, described
from faultline.producer import Producer
from faultline.retry import Backoff
from faultline.task import Decorator, Task, as_uuid

if TYPE_CHECKING:
    from psycopg import Connection

    from faultline.events import Emit
    from faultline.telemetry import Telemetry
    from faultline.testing import Testing

P = ParamSpec("P")
R = TypeVar("R")


class App:
    """Tasks, and the database where their jobs are."""

    def __init__(
        self, url: str | None = None, *, schema: str | None = None, listen_url: str | None = None
    ) -> None:
        self._url = url
        self._schema = None if schema is None else schema_name(schema)
        self._listen_url = listen_url
        self._tasks: dict[str, Task[..., Any]] = {}
        self.tasks: Mapping[str, Task[..., Any]] = MappingProxyType(self._tasks)
        self._producer = Producer(
            lambda: self.url, lambda: self.schema, observer=lambda: self.telemetry
        )

    def __repr__(self) -> str:
        return f"App({len(self._tasks)} tasks)"

    # ── where ────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def url(self) -> str:
        """The argument, FAULTLINE_DATABASE_URL, or the embedded server if it runs."""
        return self._url if self._url is not None else database_url(self._settings)

    @cached_property
    def schema(self) -> str:
        """The argument, FAULTLINE_SCHEMA, or `faultline`."""
        return self._schema if self._schema is not None else self._settings.schema

    @cached_property
    def listen_url(self) -> str | None:
        """Where to LISTEN if `url` leads to a pooler: the argument or FAULTLINE_LISTEN_URL."""
        given = self._listen_url if self._listen_url is not None else self._settings.listen_url
        return given or None

    @cached_property
    def telemetry(self) -> Telemetry:
        """What this process has done for the app, as metrics and traces."""
        from faultline.telemetry import Telemetry

        return Telemetry(self.tasks)

    @property
    def queues(self) -> list[str]:
        """`default`, and those that the tasks name."""
        return sorted({"default", *(task.queue for task in self._tasks.values())})

    def connect(self, *, autocommit: bool = True) -> Connection[Any]:
        """A new psycopg connection to the app's database; the caller closes it."""
        from faultline.connect import connect

        return connect(self.url, schema=self.schema, autocommit=autocommit)

    def open(self) -> None:
        """Connect now, so that the first enqueue does not wait for imports and a connection.

        Call it when a process starts, from any thread; while the app is open it does nothing.
        Raises DatabaseUnavailable if the database is away, and SchemaMismatch if it has no
        installation that fits.
        """
        self._producer.open()

    async def aopen(self) -> None:
        """As `open`, for asyncio."""
        await self._producer.aopen()

    def close(self) -> None:
        """Let go of the connections. Not needed at the end of a program; use opens new ones."""
        self._producer.close()

    async def aclose(self) -> None:
        """As `close`, for asyncio."""
        import asyncio

        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await self.aopen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # ── tasks ────────────────────────────────────────────────────────────────────────────────────

    @overload
    def task(self, f: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, f: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, f: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, f: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        /,
        *,
        queue: str = "default",
        name: str | None = None,
        max_attempts: int = 5,
        max_crashes: int = 3,
        lease_seconds: float = 30,
        timeout_seconds: float | None = None,
        retry: Backoff = ...,
        priority: int = 0,
        transactional: bool = False,
    ) -> Decorator: ...
    def task(
        self,
        f: Callable[..., Any] | None = None,
        /,
        *,
        queue: str = "default",
        name: str | None = None,
        max_attempts: int = 5,
        max_crashes: int = 3,
        lease_seconds: float = 30,
        timeout_seconds: float | None = None,
        retry: Backoff | None = None,
        priority: int = 0,
        transactional: bool = False,
    ) -> Any:
        """Register a function as a task, as `@app.task` or `@app.task(queue="billing")`.

        `max_crashes`: lost leases after which the job is put into quarantine. `timeout_seconds`:
        after which an attempt fails; None: it may run as long as its worker keeps the lease.
        `transactional`: the whole handler is one fenced transaction, `ctx.tx`, which commits
        together with the job's success.
        """
        local = sys._getframe(1).f_locals  # a type defined beside the function, in a function

        def register(handler: Callable[..., Any]) -> Task[..., Any]:
            return self._register(
                Task(
                    handler,
                    self._producer,
                    name=name,
                    timeout_seconds=timeout_seconds,
                    transactional=transactional,
                    local=local,
                    queue=queue,
                    priority=priority,
                    max_attempts=max_attempts,
                    max_crashes=max_crashes,
                    lease_seconds=lease_seconds,
                    retry=retry or Backoff(),
                )
            )

        return register if f is None else register(f)

    def relay(self, topic: str, **options: Any) -> Callable[[Callable[..., Any]], Relay]:
        """Register a function as the one that delivers the messages of a topic (`tx.emit`).

        It is given a `Message`, after its context if it wants that; `options` as for `task`.
        """
        local = sys._getframe(1).f_locals

        def register(handler: Callable[..., Any]) -> Relay:
            relay = Relay(topic, handler, self._producer, local=local, **options)
            self._register(relay)
            return relay

        return register

    def _register(self, task: Task[..., Any]) -> Task[..., Any]:
        if (first := self._tasks.get(task.name)) is not None:
            raise DuplicateTask(task.name, first.place, task.place)
        self._tasks[task.name] = task
        return task

    # ── jobs ─────────────────────────────────────────────────────────────────────────────────────

    def enqueue(
        self, task: str, payload: Mapping[str, Any] | None = None, **options: Unpack[Options]
    ) -> Job[Any]:
        """Enqueue by name: for a producer that does not have the code of the task.

        If the app does have it, its defaults and the check of its arguments apply.
        """
        content, merged = self._order(task, payload, options)
        return self._job(task, send_one(self._producer, Route(task, merged), content))

    async def aenqueue(
        self, task: str, payload: Mapping[str, Any] | None = None, **options: Unpack[Options]
    ) -> Job[Any]:
        """As `enqueue`, for asyncio."""
        content, merged = self._order(task, payload, options)
        return self._job(task, await asend_one(self._producer, Route(task, merged), content))

    def job(self, job_id: UUID | str) -> Job[Any]:
        """A job by its id, whatever its task; its result is as it is stored."""
        return Job(as_uuid(job_id), self._producer)

    def _order(
        self, name: str, payload: Any, options: Mapping[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        given = {} if payload is None else payload
        if not isinstance(given, Mapping):
            raise InvalidArgument(
                f"the payload for task {name!r} is {given!r:.60}: give a dict with the arguments"
            )
        if (task := self._tasks.get(name)) is not None:
            return task.arguments.dump((), given), {**task.defaults, **checked(options)}
        try:
            return as_it_is(dict(given)), checked(options)
        except (Misfit, RecursionError) as error:
            raise InvalidArgument(
                f"the payload for task {name!r}{described(error)}: a producer without the task's "
                "code sends plain JSON"
            ) from error

    def _job(self, name: str, job_id: UUID) -> Job[Any]:
        task = self._tasks.get(name)
        return self.job(job_id) if task is None else task.job(job_id)

    # ── workers ──────────────────────────────────────────────────────────────────────────────────

    def run_worker(self, *, emit: Emit | None = None, **options: Any) -> None:
        """Run a worker here until SIGTERM or Ctrl-C; `options` are the fields of WorkerOptions.

        Events are written to standard output, or given to `emit`.
        """
        from faultline.worker import WorkerOptions, run

        if status := run(self, WorkerOptions(**options), emit):
            sys.exit(status)

    async def arun_worker(self, *, emit: Emit | None = None, **options: Any) -> None:
        """As `run_worker`, on the running event loop and without handling signals; cancel it."""
        from faultline.worker import WorkerOptions, arun

        await arun(self, WorkerOptions(**options), emit)

    # ── tests ────────────────────────────────────────────────────────────────────────────────────

    def testing(
        self, url: str | None = None, *, database: str | None = None, inline: bool = False
    ) -> Testing:
        """For a test: `with app.testing() as testing` gives the app a database of its own.

        On the embedded server, on the server that `url` names, or `database`, which is then left
        there. `inline`: what is enqueued runs at once.
        """
        from faultline.testing import Testing

        return Testing(self, url, database=database, inline=inline)

    @contextmanager
    def _moved(self, url: str) -> Iterator[None]:
        """Work on another database for the duration of a block."""
        names = ("url", "listen_url")
        before = {name: vars(self).pop(name) for name in names if name in vars(self)}
        self.close()
        self.url, self.listen_url = url, None
        try:
            yield
        finally:
            self.close()
            del self.url, self.listen_url
            vars(self).update(before)

    @cached_property
    def _settings(self) -> Settings:
        return Settings.from_environment()
