"""The tables that neither queue owns: what ran, what it did, and where a fault is due.

At the point where its fault is due a handler calls, and waits until the driver has answered: so the
fault hits this process, at this point. Only the first attempt of a job to get there calls.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

Connection = psycopg.Connection[Any]
APPLICATION = "faultline_comparison_harness"  # not a worker's: outlives its disconnection
PATIENCE_SECONDS = 30.0
LOOK_SECONDS = 0.01

SETUP = """
drop schema if exists faultline_comparison cascade;
create schema faultline_comparison;
create table faultline_comparison.execution (run text, job int, pid int);
create table faultline_comparison.effect (run text, job int, pid int);
create table faultline_comparison.call (
    run text, job int, pid int not null, is_answered boolean not null default false,
    primary key (run, job)
);
"""
CLEAR_UP = "drop schema if exists faultline_comparison cascade"
EFFECT = "insert into faultline_comparison.effect values (%s, %s, %s)"


@contextmanager
def harness(url: str) -> Iterator[Connection]:
    """A connection of the harness's own."""
    with psycopg.connect(url, autocommit=True, application_name=APPLICATION) as conn:
        yield conn


# ── in the handler ───────────────────────────────────────────────────────────────────────────────


def begin(conn: Connection, run: str, job: int, pid: int) -> None:
    """A handler has been started."""
    conn.execute("insert into faultline_comparison.execution values (%s, %s, %s)", (run, job, pid))


def call(conn: Connection, run: str, job: int, pid: int) -> None:
    """Here a fault is due: wait for it, unless another attempt has called before."""
    called = conn.execute(
        "insert into faultline_comparison.call values (%s, %s, %s) on conflict do nothing",
        (run, job, pid),
    )
    if called.rowcount == 0:
        return
    since = time.monotonic()
    while time.monotonic() - since < PATIENCE_SECONDS:
        answered = conn.execute(
            "select is_answered from faultline_comparison.call where (run, job) = (%s, %s)",
            (run, job),
        ).fetchone()
        if answered is None or answered[0]:
            return
        time.sleep(LOOK_SECONDS)


# ── in the driver ────────────────────────────────────────────────────────────────────────────────


def calls(conn: Connection, run: str) -> list[tuple[int, int]]:
    """(job, process) of the calls that nobody has answered."""
    return conn.execute(
        "select job, pid from faultline_comparison.call where run = %s and not is_answered "
        "order by job",
        (run,),
    ).fetchall()


def answer(conn: Connection, run: str, job: int) -> None:
    """The fault has happened; the handler, if there still is one, goes on."""
    conn.execute(
        "update faultline_comparison.call set is_answered = true where (run, job) = (%s, %s)",
        (run, job),
    )


def forget(conn: Connection, run: str, pid: int) -> None:
    """This process died of another job's fault: the next attempt calls again."""
    conn.execute(
        "delete from faultline_comparison.call where (run, pid) = (%s, %s) and not is_answered",
        (run, pid),
    )


@dataclass(frozen=True)
class Counted:
    """What the handlers of one run did: how often each job was begun, and took effect."""

    executions: dict[int, int]
    effects: dict[int, int]


def count(conn: Connection, run: str) -> Counted:
    """Everything that was committed."""

    def per_job(table: str) -> dict[int, int]:
        return dict(
            conn.execute(
                f"select job, count(*) from faultline_comparison.{table} where run = %s group by 1",
                (run,),
            ).fetchall()
        )

    return Counted(per_job("execution"), per_job("effect"))
