"""`make guides`: what the migration guides show of other queues, run as it stands on the pages.

Each page has ```py blocks of the other queue and ```python blocks of ours. Here both are saved and
run: the other queue's worker really works, the bridge and the move really bring its jobs over, and
a worker of Faultline ends them. Every order has to be charged just once. The other queues come from
PyPI, into the environments of `proofs/peers`; who cannot be had is skipped, with the reason, and
then the exit status is 1: that page was not tried. The last line is one JSON object.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from faultline.config import Settings
from faultline.drills.workers import end_with_parent
from faultline.launcher import Server
from faultline.migrate import migrate
from proofs.peers import pins
from proofs.peers.environment import ROOT, Python, Unavailable
from proofs.peers.redis import any_server, redis
from proofs.stopwatch import finish

PAGES = ROOT / "docs" / "how-to"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# ([\w/]+\.py)\n")
SECONDS = 120.0
# The bridge needs both queues in one process.
CELERY = Python((*pins.CELERY.requirements, "psycopg-pool>=3.2"))
TWICE = """
from before.bridge import charge
ids = {charge.apply_async((4,), task_id="again").get(timeout=60) for _ in range(2)}
assert len(ids) == 1, ids
"""


@dataclass
class Desk:
    """Where one page is worked through: a folder, a database, and the other queue's Python."""

    page: Path
    folder: Path
    url: str
    python: Path
    variables: dict[str, str]

    def blocks(self, language: str) -> list[str]:
        """Those that are not files."""
        found = BLOCK.findall(self.page.read_text())
        return [text for tag, text in found if tag == language and not NAMED.match(text)]

    def lay_out(self) -> None:
        """Save the files of the page, and make its tables."""
        for _, text in BLOCK.findall(self.page.read_text()):
            if named := NAMED.match(text):
                path = self.folder / named[1]
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
        with psycopg.connect(self.url, autocommit=True) as conn:
            migrate(conn, "faultline")
        for text in self.blocks("sql"):
            self.ask(text)

    def ask(self, statement: str) -> list[Any]:
        """On the page's database, as a superuser."""
        with psycopg.connect(self.url, autocommit=True) as conn:
            cursor = conn.execute(sql.SQL(statement))
            return cursor.fetchall() if cursor.description else []

    def charged(self) -> list[int]:
        """Which orders, as often as they were."""
        return [row[0] for row in self.ask("select order_id from charges order by 1")]

    @property
    def environment(self) -> dict[str, str]:
        """For every process of the page."""
        paths = os.pathsep.join((str(self.folder), str(ROOT / "src")))
        here = {"DATABASE_URL": self.url, "FAULTLINE_DATABASE_URL": self.url, "PYTHONPATH": paths}
        return {**os.environ, **here, **self.variables}

    def run(self, *command: str, python: Path | None = None) -> None:
        """To its end, which has to be a good one."""
        done = subprocess.run(
            [str(python or self.python), *command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)[:80]}: {done.stderr[-2000:]}"

    def work_off(self, jobs: int) -> None:
        """By a worker of Faultline."""
        worker = ("-m", "faultline", "worker", "shop:app", "--max-jobs", str(jobs))
        self.run(*worker, python=Path(sys.executable))

    @contextmanager
    def beside(self, *command: str) -> Iterator[None]:
        """A process of the other queue that stays meanwhile."""
        with (self.folder / "worker.log").open("wb") as log:
            process = subprocess.Popen(
                [str(self.python), *command],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=end_with_parent,
            )
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(SECONDS)
            finally:
                process.kill()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for it, for a while."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            log = self.folder / "worker.log"
            said = log.read_text()[-2000:] if log.exists() else ""
            assert time.monotonic() < deadline, f"never happened: {what}\n{said}"
            time.sleep(0.05)


def from_celery(desk: Desk) -> None:
    """The tasks as they were, then the bridge, with a message that comes twice."""
    worker = ("worker", "--pool", "threads", "--concurrency", "2", "--without-mingle")
    with desk.beside("-m", "celery", "-A", "before.tasks", *worker):
        for text in desk.blocks("py"):
            desk.run("-c", text)
        assert desk.charged() == [1, 3]
    with desk.beside("-m", "celery", "-A", "before.bridge", *worker):
        desk.run("-c", TWICE)
    desk.work_off(1)
    assert desk.charged() == [1, 3, 4]


def from_procrastinate(desk: Desk) -> None:
    """The tasks as they were, then all that waits moved in one commit, twice."""
    command = ("-m", "procrastinate", "--app", "before.tasks.app")
    desk.run(*command, "schema", "--apply")
    (defer,) = desk.blocks("py")
    desk.run("-c", defer)
    with desk.beside(*command, "worker"):
        desk.until(lambda: desk.charged() == [1, 3, 4], "Procrastinate has charged")
    desk.run("-c", defer)
    (move,) = (text for text in desk.blocks("text") if "procrastinate_jobs" in text)
    assert len(desk.ask(move)) == 5  # three that are due, and two for later
    assert desk.ask(move) == []
    states = desk.ask("select state, count(*) from faultline.jobs group by 1 order by 1")
    assert states == [("queued", 3), ("scheduled", 2)], states
    desk.work_off(3)
    assert desk.charged() == [1, 1, 3, 3, 4, 4]
    left = "select from procrastinate_jobs where status not in ('succeeded', 'cancelled')"
    assert desk.ask(left) == []


GUIDES: dict[str, tuple[Python, Callable[[Desk], None]]] = {
    "from-celery": (CELERY, from_celery),
    "from-procrastinate": (pins.PROCRASTINATE, from_procrastinate),
}


def follow(name: str, cache: Path, url: str) -> str:
    """Work through one page; what became of it."""
    peer, guide = GUIDES[name]
    try:
        peer.make(cache)
        python = Path(peer.command(cache, Path())[0])
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="guide-")))
            variables = {}
            if "REDIS_URL" in (PAGES / f"{name}.md").read_text():
                variables["REDIS_URL"] = stack.enter_context(redis(folder, any_server()))
            database = name.replace("-", "_")
            with psycopg.connect(url, autocommit=True) as conn:
                conn.execute(sql.SQL("create database {}").format(sql.Identifier(database)))
            there = url.rpartition("/")[0] + f"/{database}"
            desk = Desk(PAGES / f"{name}.md", folder, there, python, variables)
            desk.lay_out()
            guide(desk)
        return f"works, with {peer.version(cache)}"
    except Unavailable as missing:
        return f"skipped: {str(missing).removeprefix('skipped: ')}"


def main() -> int:
    """Both pages, on a server of their own."""
    settings = Settings.from_environment()
    with Server.temporary(binaries=settings.binaries) as server:
        found = {name: follow(name, settings.home / "peers", server.url) for name in GUIDES}
    for name, said in found.items():
        print(f"{name:>20}: {said}", file=sys.stderr)
    finish("guides", {"guides": found})
    return int(any(said.startswith("skipped") for said in found.values()))


if __name__ == "__main__":
    sys.exit(main())
