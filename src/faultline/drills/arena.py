"""An arena: a database of its own with real workers on it, where scenarios are played in turn.

What is done here to a worker or to the server is a `Fault`: recorded with its pid, and with the
database's time, after it has really happened.
"""

from __future__ import annotations

import json
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from psycopg import Connection, sql

from faultline.connect import connect
from faultline.drills import effects
from faultline.drills.app import HISTORY
from faultline.drills.crowd import Crowd
from faultline.drills.history import DatabaseClock, History, Operation
from faultline.drills.namespace import Namespace
from faultline.drills.points import Points
from faultline.drills.proxy import Proxy
from faultline.drills.submitters import Submitter
from faultline.drills.workers import WorkerProcess
from faultline.errors import DatabaseUnavailable
from faultline.launcher import Server
from faultline.migrate import migrate
from faultline.protocol import Protocol
from faultline.reading import Reading

APP = "faultline.drills.app:app"
_CLAIMED = b'"lease_acquired"'
PATIENCE_SECONDS = 120.0  # it is fulfilled in a second or two, unless the machine is overloaded
T = TypeVar("T")


# Of a server of an arena's own, which may be killed: it leaves nothing in the system's memory.
OPTIONS = {"max_connections": "100", "dynamic_shared_memory_type": "mmap"}


class WaitedInVain(Exception):
    """Something that had to happen did not; the sentence says what."""


class NotStaged(Exception):
    """A scenario could not be brought about; the sentence says why. It shows nothing."""


@contextmanager
def staging() -> Iterator[None]:
    """Say of what does not happen in here that the scenario could not be staged."""
    try:
        yield
    except WaitedInVain as error:
        raise NotStaged(str(error)) from None


def until(what: Callable[[], T | None], sentence: str, seconds: float | None = None) -> T:
    """Wait until this is true, and give it back."""
    seconds = PATIENCE_SECONDS if seconds is None else seconds
    end = time.monotonic() + seconds
    pause = 0.002
    while True:
        if found := what():
            return found
        if time.monotonic() > end:
            raise WaitedInVain(f"waited {seconds:g} s in vain until {sentence}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.03)


@dataclass(frozen=True, slots=True)
class Fault:
    """Something real that was done to a process, to a connection or to the server."""

    what: str  # SIGKILL, SIGSTOP, pg_terminate_backend, …
    pid: int
    at: str  # by the database's clock


class Arena:
    """The database, the workers, the points and the history.

    `server`: one of its own, which may be mistreated; `proxy`: what its workers reach that through.
    A guest is a worker with something special about it, who serves a queue of its own; ordinary
    workers, who are told so by `queues`, take over what it leaves.
    """

    server: Server | None = None
    proxy: Proxy | None = None
    namespace: Namespace | None = None
    edge_url: str | None = None  # of the database, from in there
    queues: Sequence[str] = ("default",)

    def __init__(self, url: str, schema: str = "faultline", worker_url: str | None = None) -> None:
        self.url = url
        self.schema = schema
        self.worker_url = worker_url or url
        self.verbs = Protocol(schema)
        self.reading = Reading(schema)
        self._folder = tempfile.TemporaryDirectory(prefix="faultline-drill-")
        self.folder = Path(self._folder.name)
        self.folder.chmod(0o777)  # a worker may run as somebody else
        self.points = Points(self.folder)
        self.workers: list[WorkerProcess] = []
        self.guests: dict[str, WorkerProcess] = {}
        self.belongings = ExitStack()  # what goes when the arena does, after its workers
        self.asked_for: set[str] = set()  # the jobs of all scenes so far
        self._read: dict[Path, int] = {}  # how much of each worker's log
        self._crowd: Crowd | None = None
        self._submitters: list[Submitter] = []
        self._count = 0
        self.conn = connect(url, schema=schema)
        self._clock = DatabaseClock(self.conn)
        self.history = History(self.folder / HISTORY, self.now)

    @property
    def history_path(self) -> Path:
        """Where the history is, for who reads it."""
        return self.folder / HISTORY

    def logged(self) -> list[Operation]:
        """The claims that workers have logged since this was last asked."""
        found: list[Operation] = []
        for path in self.folder.glob("worker-*.log"):
            with path.open("rb") as log:
                log.seek(self._read.get(path, 0))
                text = log.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            found += [_claim(json.loads(line)) for line in whole.splitlines() if _CLAIMED in line]
        return found

    # ── time ────────────────────────────────────────────────────────────────────────────────────

    def now(self) -> str:
        """The database's time."""
        return self._clock.now()

    # ── workers ─────────────────────────────────────────────────────────────────────────────────

    def start_worker(
        self,
        *arguments: str,
        url: str | None = None,
        prefix: Sequence[str] = (),
    ) -> WorkerProcess:
        """One more; it is ready a moment later."""
        self._count += 1
        name = f"drill-{self._count}"
        return WorkerProcess(
            APP,
            arguments,
            log=self.folder / f"worker-{self._count}.log",
            environment=self.environment(url, name),
            prefix=prefix,
            name=name,
        )

    def environment(self, url: str | None = None, name: str = "drill") -> dict[str, str]:
        """Return the variables by which a process of the arena finds its database."""
        return {
            "FAULTLINE_DATABASE_URL": _named(url or self.worker_url, name),
            "FAULTLINE_SCHEMA": self.schema,
        }

    def guest(self, queue: str, start: Callable[[], WorkerProcess]) -> WorkerProcess:
        """The one who serves this queue; kept for the scenarios to come, started anew if dead."""
        if queue not in self.guests or not self.guests[queue].is_alive():
            self.guests[queue] = start()
        until(self.guests[queue].is_ready, "a guest is ready")
        return self.guests[queue]

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Meanwhile no ordinary worker does anything, so that the next job is the guest's."""
        for worker in self.workers:
            worker.stop()
        try:
            yield
        finally:
            for worker in self.workers:
                worker.resume()

    def ensure(self, count: int) -> None:
        """So many workers are there and ready; dead ones are forgotten."""
        self.top_up(count)
        for worker in self.workers:
            until(worker.is_ready, "a worker is ready")

    def top_up(self, count: int) -> None:
        """Start what is missing, without waiting for it."""
        self.workers = [worker for worker in self.workers if worker.is_alive()]
        while len(self.workers) < count:
            self.workers.append(self.start_worker("--queues", ",".join(self.queues)))

    def worker_of(self, pid: int) -> WorkerProcess:
        """The worker that runs as this process."""
        return next(w for w in (*self.workers, *self.guests.values()) if w.pid == pid)

    def reconnect(self, url: str | None = None) -> None:
        """Once the server is back, or another one is in its place."""
        self.url = url or self.url
        self.conn.close()

        def connected() -> bool:
            with suppress(DatabaseUnavailable):
                self.conn = connect(self.url, schema=self.schema)
            return not self.conn.closed

        until(connected, "the server lets us in again")

    # ── faults ──────────────────────────────────────────────────────────────────────────────────

    def fault(self, what: str, pid: int, at: str | None = None) -> Fault:
        """Note that this has happened: just now, or at a time that was noted when it began."""
        fault = Fault(what, pid, at or self.now())
        self.history.add("fault", "ok", str(pid), why=what)
        return fault

    def kill(self, worker: WorkerProcess) -> Fault:
        """SIGKILL."""
        worker.kill()
        return self.fault("SIGKILL", worker.pid)

    def stop(self, worker: WorkerProcess) -> Fault:
        """SIGSTOP."""
        worker.stop()
        return self.fault("SIGSTOP", worker.pid)

    def submitters(self, count: int) -> list[Submitter]:
        """So many producers; those that were killed are replaced, one ahead of its need."""
        self._submitters = [each for each in self._submitters if each.is_alive()]
        while len(self._submitters) < count + 1:
            self._submitters.append(Submitter(self.environment()))
        return self._submitters[:count]

    def crowd(self, size: int) -> Crowd:
        """So many sessions that do something at once."""
        if self._crowd is None:
            self._crowd = Crowd(self.url, self.schema, size)
        return self._crowd

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in (*self.workers, *self.guests.values()):
            worker.end()
        for submitter in self._submitters:
            submitter.close()
        if self._crowd is not None:
            self._crowd.close()
        self.belongings.close()
        self.conn.close()
        if self.server is not None:
            self.server.stop()
        self.history.close()
        self._folder.cleanup()


def _claim(said: dict[str, Any]) -> Operation:
    return Operation("claim", "ok", said["job_id"], said["token"], at=said["at"])


def _named(url: str, name: str) -> str:
    """Sessions under this name."""
    parts = urlsplit(url)
    query = {**dict(parse_qsl(parts.query)), "application_name": name}
    return urlunsplit(parts._replace(query=urlencode(query)))


def prepare(url: str, name: str) -> tuple[str, str]:
    """A database with Faultline and the drill's tables in it: the owner's URL and the workers'.

    The workers' role may do what workers and producers may, and write effects: nothing else.
    """
    with connect(url, schema=None) as conn:
        conn.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    parts = urlsplit(url)
    owner = urlunsplit(parts._replace(path=f"/{name}"))
    with connect(owner, schema=None) as conn:
        migrate(conn, "faultline")
        conn.execute(effects.SETUP)
        Protocol().guard(f"{effects.SCHEMA}.guarded_effect").run(conn)
        password = _worker_role(conn, name)
    address = parts.netloc.rpartition("@")[2]
    return owner, urlunsplit(parts._replace(path=f"/{name}", netloc=f"{name}:{password}@{address}"))


def _worker_role(conn: Connection[Any], name: str) -> str:
    password = secrets.token_hex(16)
    conn.execute(
        sql.SQL(
            "create role {} login password {} in role faultline_worker, faultline_producer"
        ).format(sql.Identifier(name), sql.Literal(password))
    )
    return password
