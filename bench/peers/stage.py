"""One peer's turn in one round: a fresh database, and the same work for all.

    prepare → bulk enqueue → drain by one worker → bulk enqueue → drain by two → trickle

A drain is counted from the first line of the first handler, by the worker's clock, to the moment at
which the harness sees nothing left, which it asks every 20 ms: the same for all, ours included.
Starting a process is not counted; that a second one comes later is. Pickup is counted from the
commit of the enqueue, as the server has stamped it, to the first line of the handler: from the
return of the enqueue a client that is slow to hear of its commit would make its queue look quick.
The first enqueue of a process, which opens its connections, counts for nothing. Of a queue that
does not commit, on Redis, it is counted from the return.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from bench import arena
from bench.peers.peer import Peer
from bench.rows import percentile
from faultline.drills.workers import end_with_parent
from proofs.peers.environment import ROOT
from proofs.peers.redis import redis

SCRIPTS = Path(__file__).parent / "scripts"
POLL_SECONDS = 0.02
PATIENCE_SECONDS = 300.0
END_SECONDS = 10.0
PER_SECOND = 50
WARM_UP = 50  # enqueued, and picked up, before pickups count
FIRST = 1_000_000  # number of the first job whose pickup counts
AHEAD = 1  # of each trickle, see scripts/job.py
OPTIONS = {**arena.OPTIONS, "track_commit_timestamp": "on"}  # of the server
COMMITS = """
select extract(epoch from at)::float8
  from generate_series(%s::bigint, %s) x, pg_xact_commit_timestamp(x::text::xid) at
 where at is not null order by at"""


class Failed(Exception):
    """This turn did not come to its end; the message says where."""


@dataclass
class Turn:
    """What one peer needs for one round; made by `set_up`."""

    peer: Peer
    command: list[str]
    folder: Path
    left: Callable[[], bool]
    at_rest: Callable[[], None]  # the server
    commits: Callable[[], list[float]]  # since the last call, by time.time
    variables: dict[str, str]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)  # all that was started
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)  # at work now

    def play(self, jobs: int, probes: int) -> dict[str, float]:
        """Everything that is measured of this peer; rates a second, latencies in ms."""
        parts, found = self.peer.parts, {}
        self.script("prepare")
        if {"bulk", "one"} & set(parts):
            seconds = self.script("enqueue", jobs)
            if "bulk" in parts:
                found["bulk"] = jobs / seconds
            found["one"] = self.drain(jobs, 1)
        if "two" in parts:
            self.script("enqueue", jobs)
            found["two"] = self.drain(jobs, 2)
        if "pickup" in parts:
            for since, latencies in self.pickup(probes).items():
                found[f"p50_ms{since}"] = percentile(latencies, 0.5) * 1000
                found[f"p99_ms{since}"] = percentile(latencies, 0.99) * 1000
        return found

    def script(self, verb: str, *numbers: int) -> float:
        """Run a verb to its end; the seconds that it says it took, if it says so."""
        process = self.start(verb, *numbers)
        try:
            status = process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise Failed(f"{verb} took more than {PATIENCE_SECONDS:g} s") from error
        said = self.said(verb)
        if status != 0:
            raise Failed(f"{verb} failed: {said[-1] if said else 'it said nothing'}")
        for line in said:
            with suppress(ValueError, TypeError, KeyError):
                return float(json.loads(line)["seconds"])
        return 0.0

    def drain(self, jobs: int, workers: int) -> float:
        """Jobs a second of so many workers over what is queued now."""
        if not self.left():
            raise Failed("nothing was queued")
        self.at_rest()
        for file in self.folder.glob("first.*"):
            file.unlink()
        with self.working(workers):
            self.wait(lambda: not self.left(), "jobs are left")
            ended = time.time()
        began = [float(file.read_text()) for file in self.folder.glob("first.*")]
        if not began:
            raise Failed("no handler was run")
        return jobs / (ended - min(began))

    def pickup(self, count: int) -> dict[str, list[float]]:
        """Seconds from each enqueue's commit, call and return to its handler; one worker."""
        begun = self.folder / "begun"
        begun.write_bytes(b"")
        with self.working(1):
            self.script("trickle", 0, WARM_UP, PER_SECOND)
            self.wait(lambda: _lines(begun) >= AHEAD + WARM_UP, "probes are left")
            self.at_rest()
            self.commits()
            self.script("trickle", FIRST, count, PER_SECOND)
            every = AHEAD + WARM_UP + AHEAD + count
            self.wait(lambda: _lines(begun) >= every, "probes are left")
        began = {n: at for n, (at,) in _times(begun).items()}
        noted = _times(self.folder / f"returned.{FIRST}")
        committed = first_between(self.commits(), noted)
        return {
            "": [began[n] - committed.get(n, returned) for n, (_, returned) in noted.items()],
            "_from_call": [began[n] - called for n, (called, _) in noted.items()],
            "_from_return": [began[n] - returned for n, (_, returned) in noted.items()],
        }

    # ── processes ────────────────────────────────────────────────────────────────────────────────

    def start(self, verb: str, *numbers: int) -> subprocess.Popen[bytes]:
        """The peer's script with this verb; its output goes to a file."""
        with (self.folder / f"{verb}.log").open("wb") as log:
            process = subprocess.Popen(
                [*self.command, verb, *map(str, numbers)],
                env={**os.environ, **self.variables},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=end_with_parent,
            )
        self.processes.append(process)
        return process

    @contextmanager
    def working(self, workers: int) -> Iterator[None]:
        """So many workers, at once; ended with the block."""
        count = 1 if self.peer.own_processes else workers
        self.variables["BENCH_WORKERS"] = str(workers)
        self.workers = [self.start("work") for _ in range(count)]
        try:
            yield
        finally:
            for process in self.workers:
                end(process)
            self.workers = []

    def wait(self, condition: Callable[[], bool], otherwise: str) -> None:
        """Until it holds; a worker that has ended makes the turn fail."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if any(process.poll() is not None for process in self.workers):
                said = self.said("work")
                raise Failed(f"a worker ended: {said[-1] if said else 'it said nothing'}")
            if time.monotonic() > deadline:
                raise Failed(f"{otherwise} after {PATIENCE_SECONDS:g} s")
            time.sleep(POLL_SECONDS)

    def said(self, verb: str) -> list[str]:
        """What the last process with this verb wrote."""
        lines = (self.folder / f"{verb}.log").read_text(errors="replace").splitlines()
        return [line.strip()[:160] for line in lines if line.strip()]


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask the group to end; then see to it."""
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def first_between(
    moments: Sequence[float], between: Mapping[int, Sequence[float]]
) -> dict[int, float]:
    """The first of these moments, in order, from each call to its return: then the enqueue was
    committed, and nobody else has done anything for a while."""
    found = {}
    for n, (called, returned) in between.items():
        place = bisect_left(moments, called)
        if place < len(moments) and moments[place] <= returned:
            found[n] = moments[place]
    return found


def _lines(file: Path) -> int:
    return file.read_bytes().count(b"\n")


def _times(file: Path) -> dict[int, list[float]]:
    lines = (line.split() for line in file.read_text().splitlines())
    return {int(n): [float(at) for at in times] for n, *times in lines}


@contextmanager
def set_up(peer: Peer, cache: Path, server: str) -> Iterator[Turn]:
    """A database of its own, and a Redis where the peer needs one; all gone with the block."""
    name = f"bench_{secrets.token_hex(4)}"
    url = urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    try:
        with (
            tempfile.TemporaryDirectory(prefix="faultline-bench-") as scratch,
            redis(Path(scratch)) if peer.redis else nullcontext("") as redis_url,
            psycopg.connect(url, autocommit=True) as conn,
        ):
            turn = Turn(
                peer,
                peer.environment.command(cache, SCRIPTS / peer.script),
                Path(scratch),
                _left(peer, conn, redis_url),
                lambda: _rest(conn),
                Commits(conn),
                {
                    "BENCH_URL": url,
                    "BENCH_REDIS": redis_url,
                    "BENCH_FOLDER": scratch,
                    "BENCH_VARIANT": peer.variant,
                    "BENCH_WORKERS": "1",
                    "PYTHONPATH": str(ROOT) if peer.own_processes else "",
                    **dict(peer.environment_variables),
                },
            )
            try:
                yield turn
            finally:
                for process in turn.processes:
                    end(process)
    finally:
        with psycopg.connect(server, autocommit=True) as conn:
            conn.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))
            roles = conn.execute("select rolname from pg_roles where rolname ^@ %s", (name,))
            for (role,) in roles.fetchall():
                conn.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))


def _left(
    peer: Peer, conn: psycopg.Connection[tuple[object, ...]], redis_url: str
) -> Callable[[], bool]:
    if isinstance(peer.left, str):
        statement = peer.left
        return lambda: conn.execute(statement).fetchone() == (True,)
    from redis import Redis

    client, ask = Redis.from_url(redis_url), peer.left
    return lambda: ask(client)


class Commits:
    """When transactions of this server were committed, since the last time that was asked; none, on
    a server that does not stamp them."""

    def __init__(self, conn: psycopg.Connection[tuple[object, ...]]) -> None:
        self._conn = conn
        self._is_stamped = conn.execute("show track_commit_timestamp").fetchone() == ("on",)
        self._next = self._now()

    def __call__(self) -> list[float]:
        first, self._next = self._next, self._now()
        if not self._is_stamped:
            return []
        found = self._conn.execute(COMMITS, (first, self._next - 1)).fetchall()
        return [float(str(at)) for (at,) in found]

    def _now(self) -> int:
        row = self._conn.execute("select pg_snapshot_xmax(pg_current_snapshot())::text").fetchone()
        assert row is not None
        return int(str(row[0]))


def _rest(conn: psycopg.Connection[tuple[object, ...]]) -> None:
    conn.execute("vacuum analyze")
    conn.execute("checkpoint")
