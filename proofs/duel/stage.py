"""One duel on stage: the database and its two tables, two real workers, the stop and the resume.

    prepare → A begins → (B is ready) → SIGSTOP A → B takes over and finishes → SIGCONT A → linger

Every process is the leader of a group of its own and none outlives the block: the groups are
killed at its end, and the workers die with this process. Signals go to those groups only. A group
is stopped whole, as a paused machine would be, since some peers run a handler in a child.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from uuid import uuid4

import psycopg
from psycopg.rows import class_row

from faultline.drills.workers import end_with_parent
from proofs.duel.judge import Effect, Event, Outcome
from proofs.duel.peer import Peer
from proofs.peers.environment import ROOT
from proofs.peers.redis import redis

TABLES = """
create table effect (
    run int, job text, worker text, pid int, at timestamptz default clock_timestamp()
);
create table event (
    worker text, pid int, what text, at timestamptz default clock_timestamp()
);
"""
START_SECONDS = 60.0
SETTLE_SECONDS = 1.5  # from a worker's call of its peer's run function until it serves


class NotShown(Exception):
    """This duel did not come to its end; the message says where it stopped."""


@dataclass
class Stage:
    """What one duel needs; made by `set_up`."""

    peer: Peer
    command: list[str]
    folder: Path
    conn: psycopg.Connection[tuple[object, ...]]
    variables: dict[str, str]
    workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def prepare(self) -> None:
        """The peer's tables, and one job."""
        process = self.start("prepare", "prepare")
        try:
            status = process.wait(START_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise NotShown(f"prepare took more than {START_SECONDS:g} s") from error
        if status != 0:
            raise NotShown(f"prepare failed: {self.last_line('prepare')}")

    def start(self, name: str, verb: str = "work") -> subprocess.Popen[bytes]:
        """Start the peer's script under this name; it writes to NAME.log."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self.workers[name] = subprocess.Popen(
                [*self.command, verb],
                env={**os.environ, **self.variables, "DUEL_WORKER": name},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=end_with_parent,
            )
        return self.workers[name]

    def stop(self) -> None:
        """SIGSTOP to A's whole group; returns once the process with the handler is stopped."""
        os.killpg(self.workers["A"].pid, signal.SIGSTOP)
        handler = int((self.folder / "inside").read_text())
        self.wait(lambda: _is_stopped(handler), 5.0, "A could not be stopped")
        self.note("stalled")

    def resume(self) -> int:
        """Let A go on right into its write; answers with where its log ended."""
        (self.folder / "release").touch()
        logged = (self.folder / "A.log").stat().st_size
        self.note("resumed")
        os.killpg(self.workers["A"].pid, signal.SIGCONT)
        return logged

    def note(self, what: str) -> None:
        """The duel's own line among those of the workers."""
        self.conn.execute("insert into event (worker, pid, what) values ('duel', 0, %s)", (what,))

    def events(self) -> list[Event]:
        """All that was noted, in order."""
        with self.conn.cursor(row_factory=class_row(Event)) as cursor:
            return cursor.execute("select worker, pid, what, at from event order by at").fetchall()

    def noted(self, worker: str, *names: str) -> bool:
        """Whether this worker has noted one of these."""
        return any(e.worker == worker and e.what.startswith(names) for e in self.events())

    def wait(self, condition: Callable[[], bool], seconds: float, otherwise: str) -> None:
        """Until it holds; a worker that dies meanwhile ends the duel."""
        deadline = time.monotonic() + seconds
        while not condition():
            for name, process in self.workers.items():
                if name != "prepare" and process.poll() is not None:
                    raise NotShown(
                        f"{name} ended with {process.returncode}: {self.last_line(name)}"
                    )
            if time.monotonic() > deadline:
                raise NotShown(otherwise)
            time.sleep(0.02)

    def finished(self) -> bool:
        """Whether the peer itself says that the job has succeeded."""
        answer = self.conn.execute(self.peer.finished or "select true").fetchone()
        return answer == (True,)

    def last_line(self, name: str) -> str:
        """The end of what a process wrote, for a reason."""
        lines = (self.folder / f"{name}.log").read_text(errors="replace").split("\n")
        return ([line.strip() for line in lines if line.strip()] or ["it wrote nothing"])[-1][:160]

    def outcome(self, logged: int) -> Outcome:
        """What is to be judged."""
        with self.conn.cursor(row_factory=class_row(Effect)) as cursor:
            effects = cursor.execute("select worker, pid, at from effect order by at").fetchall()
        (self.folder / "events.json").write_text(
            json.dumps([asdict(event) for event in self.events()], default=str, indent=1)
        )
        log = (self.folder / "A.log").read_bytes()[logged:].decode(errors="replace")
        return Outcome(self.variables["DUEL_POINT"], self.events(), effects, log.splitlines())

    def clear(self) -> None:
        """End every group that was started here, also a stopped one."""
        for process in self.workers.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def fight(stage: Stage) -> Outcome:
    """Play the duel to its end. Raises NotShown where it stopped short."""
    peer, late = stage.peer, "A did not come to its write within 20 s"
    stage.prepare()
    stage.start("A")
    stage.wait((stage.folder / "inside").exists, START_SECONDS, "A did not begin the job")
    if not peer.late_successor:
        stage.start("B")
        stage.wait(lambda: stage.noted("B", "ready"), START_SECONDS, "B did not start")
        time.sleep(SETTLE_SECONDS)
    stage.stop()
    if peer.expire:
        stage.conn.execute(peer.expire)
    if peer.late_successor:
        stage.start("B")
    patience = f"B did not take the job over within {peer.patience_seconds:g} s"
    stage.wait(lambda: stage.noted("B", "wrote"), peer.patience_seconds, patience)
    stage.wait(stage.finished, 20.0, "B's success was not recorded within 20 s")
    time.sleep(0.0 if peer.finished else 1.0)
    stage.note("finished")
    logged = stage.resume()
    stage.wait(lambda: stage.noted("A", "wrote", "stopped"), 20.0, late)
    time.sleep(peer.linger_seconds)
    return stage.outcome(logged)


@contextmanager
def set_up(
    peer: Peer, command: list[str], server: str, run: int, point: str, folder: Path
) -> Iterator[Stage]:
    """A fresh database, and a fresh Redis where the peer needs one; all ended with the block."""
    folder.mkdir(parents=True)
    name = f"duel_{folder.name}_{uuid4().hex[:8]}"
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(f'create database "{name}"')
    url = _database(server, name)
    with redis(folder) if peer.redis else nullcontext("") as redis_url:
        variables = {
            "DUEL_URL": url,
            "DUEL_REDIS": redis_url,
            "DUEL_RUN": str(run),
            "DUEL_POINT": point,
            "DUEL_VARIANT": peer.variant,
            "DUEL_FOLDER": str(folder),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute(TABLES)
            stage = Stage(peer, command, folder, conn, variables)
            try:
                yield stage
            finally:
                stage.clear()


def _database(server: str, name: str) -> str:
    """The server's URL with another database, as a URL, which every driver reads."""
    base, _, query = server.partition("?")
    return f"{base.rpartition('/')[0]}/{name}" + (f"?{query}" if query else "")


def _is_stopped(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state in ("T", "t")
