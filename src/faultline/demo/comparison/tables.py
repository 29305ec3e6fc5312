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
create schema {home};
create table {home}.execution (run text, job int, pid int);
create table {home}.effect (run text, job int, pid int);
create table {home}.call (
    run text, job int, pid int not null, is_answered boolean not null default false,
    primary key (run, job)
);
"""
CLEAR_UP = "drop schema if exists {home} cascade"
EFFECT = "insert into {home}.effect values (%s, %s, %s)"


def at_home(statement: str, schema: str) -> str:
    """The statement, for the tables beside the installation of Faultline in this schema."""
    return statement.replace("{home}", f"{schema}_comparison")


@contextmanager
def harness(url: str) -> Iterator[Connection]:
    """A connection of the harness's own."""
    with psycopg.connect(url, autocommit=True, application_name=APPLICATION) as conn:
        yield conn


# ── in the handler ───────────────────────────────────────────────────────────────────────────────


def begin(conn: Connection, schema: str, run: str, job: int, pid: int) -> None:
    """A handler has been started."""
    conn.execute(
        at_home("insert into {home}.execution values (%s, %s, %s)", schema), (run, job, pid)
    )


def call(conn: Connection, schema: str, run: str, job: int, pid: int) -> None:
    """Here a fault is due: wait for it, unless another attempt has called before."""
    called = conn.execute(
        at_home("insert into {home}.call values (%s, %s, %s) on conflict do nothing", schema),
        (run, job, pid),
    )
    if called.rowcount == 0:
        return
    since = time.monotonic()
    while time.monotonic() - since < PATIENCE_SECONDS:
        answered = conn.execute(
            at_home("select is_answered from {home}.call where (run, job) = (%s, %s)", schema),
            (run, job),
        ).fetchone()
        if answered is None or answered[0]:
            return
        time.sleep(LOOK_SECONDS)


# ── in the driver ────────────────────────────────────────────────────────────────────────────────


def calls(conn: Connection, schema: str, run: str) -> list[tuple[int, int]]:
    """(job, process) of the calls that nobody has answered."""
    asked = at_home(
        "select job, pid from {home}.call where run = %s and not is_answered order by job", schema
    )
    return conn.execute(asked, (run,)).fetchall()


def answer(conn: Connection, schema: str, run: str, job: int) -> None:
    """The fault has happened; the handler, if there still is one, goes on."""
    conn.execute(
        at_home("update {home}.call set is_answered = true where (run, job) = (%s, %s)", schema),
        (run, job),
    )


def forget(conn: Connection, schema: str, run: str, pid: int) -> None:
    """This process died of another job's fault: the next attempt calls again."""
    conn.execute(
        at_home("delete from {home}.call where (run, pid) = (%s, %s) and not is_answered", schema),
        (run, pid),
    )


@dataclass(frozen=True)
class Counted:
    """What the handlers of one run did: how often each job was begun, and took effect."""

    executions: dict[int, int]
    effects: dict[int, int]


def count(conn: Connection, schema: str, run: str) -> Counted:
    """Everything that was committed."""

    def per_job(table: str) -> dict[int, int]:
        return dict(
            conn.execute(
                f"select job, count(*) from {schema}_comparison.{table} where run = %s group by 1",
                (run,),
            ).fetchall()
        )

    return Counted(per_job("execution"), per_job("effect"))
