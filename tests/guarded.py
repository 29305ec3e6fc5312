"""A guarded table `charge`, and what the sessions of the tests do to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import Connection

from faultline.call import translated_errors
from faultline.errors import StaleLease, Unfenced
from tests.stage import Stage

Attempt = tuple[UUID, int]
Login = Callable[..., Connection[Any]]
ISOLATIONS = ("read committed", "repeatable read", "serializable")
LATE = (StaleLease, psycopg.errors.SerializationFailure)  # both roll everything back


def guarded(stage: Stage) -> Stage:
    """A table `charge` to which anybody has the rights, and the guard."""
    stage.execute(
        "create table charge (job_id uuid, token bigint, note text);"
        "grant select, insert, update, delete, truncate on charge to public"
    )
    assert stage.verbs.guard("charge").run(stage.conn) == 1
    return stage


def charge(conn: Connection[Any], attempt: Attempt, table: str = "charge") -> None:
    with translated_errors("faultline"):
        conn.execute(f"insert into {table} (job_id, token) values (%s, %s)", attempt)


def charges(stage: Stage, table: str = "charge") -> list[Attempt]:
    return stage.execute(f"select job_id, token from {table} order by token")


def commit(conn: Connection[Any]) -> None:
    with translated_errors("faultline"):
        conn.commit()


def unfenced(conn: Connection[Any], statement: str) -> Unfenced:
    """The refusal of this statement; fails if there is none."""
    with pytest.raises(Unfenced) as refused, translated_errors("faultline"):
        conn.execute(statement)
    if not conn.autocommit:
        conn.rollback()
    return refused.value


def triggers(stage: Stage) -> list[tuple[str, str, str]]:
    """Where ours are: the table, whether for the statement or the row, and whether it is on."""
    return stage.execute(
        "select tgrelid::regclass::text, case when tgtype & 1 = 1 then 'row' else 'statement' end, "
        "tgenabled::text from pg_trigger where tgfoid = '{schema}.check_guard'::regproc "
        "order by 1, 2 desc"
    )


@contextmanager
def logins(stage: Stage) -> Iterator[Login]:
    """Sessions of users of their own. Roles belong to the server: dropped in the end."""
    names: list[str] = []

    def make(*groups: str) -> Connection[Any]:
        names.append(f"u_{uuid4().hex}")
        stage.execute(f"create role {names[-1]} login password 'secret'")
        for group in groups:
            stage.execute(f"grant {group} to {names[-1]}")
        conn = psycopg.connect(stage.url, user=names[-1], password="secret")
        stage.connections.append(conn)
        return conn

    yield make
    for conn in stage.connections[1:]:
        conn.close()
    for name in names:
        stage.execute(f"drop owned by {name} cascade; drop role {name}")


@pytest.fixture
def till(stage: Stage) -> Stage:
    return guarded(stage)


@pytest.fixture
def login(stage: Stage) -> Iterator[Login]:
    with logins(stage) as make:
        yield make


def user(conn: Connection[Any]) -> str:
    return str(conn.info.user)
