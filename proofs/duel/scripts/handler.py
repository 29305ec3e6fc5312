"""What every Python peer's handler does: begin, stop at a point, write a row that no queue owns.

Runs in the peer's own environment, so it needs psycopg and nothing of Faultline. The duel tells it
by DUEL_ variables who it is and where the database is (a URL holds a password, a command line is
public).
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

URL = os.environ["DUEL_URL"]
REDIS = os.environ["DUEL_REDIS"]
RUN = int(os.environ["DUEL_RUN"])
WORKER = os.environ["DUEL_WORKER"]
POINT = os.environ["DUEL_POINT"]
VARIANT = os.environ["DUEL_VARIANT"]
FOLDER = Path(os.environ["DUEL_FOLDER"])
WORK_SECONDS = 0.5  # what a handler stopped early still does before its write
INSERT = "insert into effect (run, job, worker, pid) values (%s, %s, %s, %s)"


def row(job: object) -> tuple[int, str, str, int]:
    """The values of INSERT."""
    return RUN, str(job), WORKER, os.getpid()


def note(what: str) -> None:
    """Tell the duel, on a connection of its own and with the database's time."""
    with psycopg.connect(URL, autocommit=True) as conn:
        conn.execute(
            "insert into event (worker, pid, what) values (%s, %s, %s)",
            (WORKER, os.getpid(), what),
        )


def begin() -> None:
    """The handler begins; in half of the duels it is stopped here, with work left to do."""
    note("began")
    if _stops("early"):
        deadline = time.monotonic() + WORK_SECONDS
        while time.monotonic() < deadline:
            time.sleep(0.02)


def at_the_write() -> None:
    """In the other half it is stopped here; its next step is the INSERT."""
    _stops("write")


def _stops(point: str) -> bool:
    """A makes a file and polls for another; whoever else comes just passes."""
    if WORKER != "A" or point != POINT:
        return False
    (FOLDER / "inside.part").write_text(str(os.getpid()))
    (FOLDER / "inside.part").rename(FOLDER / "inside")
    while not (FOLDER / "release").exists():
        time.sleep(0.02)
    return True


@contextmanager
def noting_errors() -> Iterator[None]:
    """Whatever a peer raises inside a handler, to cancel or to refuse it, is told to the duel."""
    try:
        yield
    except BaseException as error:
        note(f"stopped: {type(error).__name__}")
        raise


def handle(job: object) -> None:
    """A blocking handler that writes on a connection of its own."""
    with noting_errors():
        begin()
        with psycopg.connect(URL, autocommit=True) as conn:
            at_the_write()
            conn.execute(INSERT, row(job))
        note("wrote")
