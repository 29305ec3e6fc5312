"""docs/security.md: its tables are what the database does, tried with log-ins that are stolen.

The thief has a log-in of a role and psycopg, nothing of ours. What is said to be possible is done,
too: a page that promises less than there is would be as wrong. Ways round the privileges themselves
are tried in test_bypass.py; tokens of the service in test_service_access.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import Connection
from psycopg.errors import CheckViolation, InsufficientPrivilege

from faultline.errors import IdempotencyConflict, NotPermitted, StaleLease
from faultline.script import ROLES
from tests.stage import Stage
from tests.test_roles import MAY

PAGE = (Path(__file__).parent.parent / "docs" / "security.md").read_text()
Thief = Callable[[str], Connection[Any]]


@pytest.fixture
def thief(stage: Stage) -> Iterator[Thief]:
    """A session of somebody who has stolen a password of this role."""
    logins = []

    def steal(role: str) -> Connection[Any]:
        login = stage.login(role)
        logins.append(login)
        conn = psycopg.connect(login.__enter__(), autocommit=True)
        stage.connections.append(conn)
        return conn

    yield steal
    for conn in stage.connections[1:]:
        conn.close()
    for login in logins:
        login.__exit__(None, None, None)


def refused(conn: Connection[Any], *statements: str) -> None:
    for statement in statements:
        with pytest.raises(InsufficientPrivilege):
            conn.execute(statement)


# ── the tables ───────────────────────────────────────────────────────────────────────────────────


def test_the_table_of_the_page_is_who_may_call_what() -> None:
    shown = {}
    for row in re.findall(r"^\| (`.*`) \|(.*)\|$", PAGE, re.MULTILINE):
        names, cells = re.findall(r"`(\w+)`", row[0]), [cell.strip() for cell in row[1].split("|")]
        if len(cells) == len(ROLES):
            who = "".join(
                letter for letter, cell in zip("wpor", cells, strict=True) if cell not in ("", "no")
            )
            shown.update(dict.fromkeys(names, who))
    assert shown == MAY


def test_the_page_says_something_of_every_role() -> None:
    section = PAGE[PAGE.index("## If a password is stolen") : PAGE.index("## TLS")]
    assert set(re.findall(r"^\| \*\*an? (\w+)\*\*", section, re.MULTILINE)) == set(ROLES)


# ── a worker's password ──────────────────────────────────────────────────────────────────────────


def test_a_thief_with_a_workers_password_works_as_one_and_sees_no_more(
    stage: Stage, thief: Thief
) -> None:
    stage.execute("create table charges (order_id int)")
    done, token = stage.running("A", payload={"card": "kept from it"})
    assert stage.verbs.complete([(done, token)], [{"paid": 7}]).run(stage.conn) == []
    waiting = stage.enqueue(payload={"card": "4242"}, queue="billing")
    conn = thief("worker")
    refused(
        conn,
        "select * from faultline.jobs",
        "select * from faultline.attempts",
        "select payload from faultline.job",
        "select faultline.pause('billing')",
        f"select faultline.requeue(array['{done}'::uuid], 'again')",
        "select faultline.epoch_bump()",
        "insert into charges values (1)",
    )
    assert stage.verbs.status(waiting).run(conn) is None
    assert stage.verbs.cancel([waiting]).run(conn) == []
    assert len(stage.verbs.complete([(done, token)], [{"paid": 0}]).run(conn)) == 1
    assert stage.job(done)["result"] == {"paid": 7}
    # What it can: a worker's work, on any queue, and badly.
    (lease,) = stage.claim("thief", 10, conn=conn)
    assert (lease.job_id, lease.payload) == (waiting, {"card": "4242"})
    assert stage.verbs.complete([(waiting, lease.token)], [{"a": "lie"}]).run(conn) == []
    assert stage.state(stage.verbs.enqueue("charge", {"order_id": 1}).run(conn)) == "queued"
    assert stage.violations() == []


def test_a_thief_who_knows_a_job_can_guess_its_token_and_one_who_knows_a_worker_can_end_its_leases(
    stage: Stage, thief: Thief
) -> None:
    known, token = stage.running("A")
    other = stage.running("B")
    conn = thief("worker")
    guesses = [
        guess for guess in range(1, 4) if not stage.verbs.complete([(known, guess)]).run(conn)
    ]
    assert guesses == [token]
    assert len(stage.verbs.reclaim_dead("B").run(conn)) == 1
    with pytest.raises(StaleLease):
        stage.verbs.complete_one(*other).run(stage.conn)
    assert stage.violations() == []


# ── a producer's ─────────────────────────────────────────────────────────────────────────────────


def test_a_thief_with_a_producers_password_can_enqueue_anything_and_see_nothing(
    stage: Stage, thief: Thief
) -> None:
    job_id = stage.enqueue(payload={"card": "4242"}, idempotency_key="order-7")
    running = stage.running("A")
    conn = thief("producer")
    refused(
        conn,
        "select * from faultline.jobs",
        "select * from faultline.refusals",
        "select faultline.pause('default')",
        "select faultline.reclaim_dead('A')",
    )
    with pytest.raises(NotPermitted):
        stage.verbs.complete([running]).run(conn)
    with pytest.raises(NotPermitted):
        stage.verbs.claim("thief", [1]).run(conn)
    assert stage.verbs.status(job_id).run(conn) is None
    assert stage.verbs.cancel([job_id, running[0]]).run(conn) == []
    with pytest.raises(IdempotencyConflict) as conflict:
        stage.verbs.enqueue("work", {}, idempotency_key="order-7").run(conn)
    assert conflict.value.job_id == job_id
    assert "4242" not in str(conflict.value)
    for _ in range(100):
        mine = stage.verbs.enqueue("anything", {"at": "all"}, queue="theirs").run(conn)
    assert [x.verdict for x in stage.verbs.cancel([mine]).run(conn)] == ["cancelled"]


# ── a reader's, an operator's ────────────────────────────────────────────────────────────────────


def test_a_thief_with_a_readers_password_sees_every_payload_and_changes_nothing(
    stage: Stage, thief: Thief
) -> None:
    job_id = stage.enqueue(payload={"card": "4242"})
    conn = thief("reader")
    shown = conn.execute("select payload from faultline.jobs where id = %s", (job_id,)).fetchone()
    assert shown == ({"card": "4242"},)
    refused(
        conn,
        "select faultline.enqueue('charge')",
        f"select faultline.cancel(array['{job_id}'::uuid])",
        "select faultline.set_retention(1)",
        "delete from faultline.ledger",
        "select faultline.reconcile()",
    )
    assert stage.state(job_id) == "queued"


def test_a_thief_with_an_operators_password_can_stop_everything_and_forge_no_success(
    stage: Stage, thief: Thief
) -> None:
    running, waiting = stage.running("A", queue="billing"), stage.enqueue()
    conn = thief("operator")
    refused(
        conn,
        "select faultline.claim('thief', array[1])",
        f"select faultline.complete(array['{running[0]}'::uuid], array[{running[1]}::bigint])",
        "select faultline.enqueue('charge')",
        "insert into faultline.attempt (job_id) values (gen_random_uuid())",
    )
    verdicts = {x.job_id: x.verdict for x in stage.verbs.cancel([waiting, running[0]]).run(conn)}
    assert verdicts == {waiting: "cancelled", running[0]: "requested"}
    stage.verbs.pause("billing").run(conn)
    stage.verbs.set_retention(2).run(conn)
    for _ in range(8191 // 16):
        stage.verbs.epoch_bump().run(conn)
    with pytest.raises(CheckViolation, match="below_two_to_the_53rd"):
        stage.verbs.epoch_bump().run(conn)
    assert stage.verbs.complete([running]).run(stage.conn) == []  # what is live goes on
    assert stage.violations() == []
