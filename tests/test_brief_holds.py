"""A verb that locks what many wait for is bounded, in whatever transaction it is called.

A session that leaves its transaction open after the verb is cut off within 5 s of the verb's end.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import Connection

from tests.stage import Stage, until

pytestmark = pytest.mark.both_servers
BRIEF_MS = 5_001

# The verb → its call in SQL; each locks something that others wait for, or may do so.
LOCKING = {
    "cancel": "cancel('{}')",
    "claim": "claim('A', '{}', 10)",
    "claim_one": "claim_one('A', '{}')",
    "know_tasks": "know_tasks('A', '{}', '{}')",
    "retry": "retry('{}')",
    "pause": "pause('default')",
    "reclaim": "reclaim()",
    "reconcile": "reconcile()",
    "promote": "promote()",
    "busy": "busy('{}', '{}')",
    "beat": "beat('worker', '{}')",
    "compact": "compact()",
    "apply_retention": "apply_retention()",
    "drop_partitions": "drop_partitions('30 days')",
    "rescue": "rescue()",
    "create_partitions": "create_partitions(7)",
    "spare_vacuum": "spare_vacuum()",
    "epoch_bump": "epoch_bump()",
}
LEASED = ("complete", "fail", "execute", "renew")
SENT = {
    "one message": "begin; select {call}",
    "a block": "begin; do $$ begin perform {call}; end $$",
}


def milliseconds(conn: Connection[Any], name: str) -> int | None:
    """A setting of this session; None if the server does not know it."""
    row = conn.execute("select setting::int from pg_settings where name = %s", (name,)).fetchone()
    return row[0] if row is not None else None


def is_bounded(conn: Connection[Any], at_most: int) -> bool:
    """Whether an idle session is cut off, and from PostgreSQL 17 on a busy one, too."""
    idle = milliseconds(conn, "idle_in_transaction_session_timeout")
    whole = milliseconds(conn, "transaction_timeout")
    assert idle is not None
    return 0 < idle <= at_most and (whole is None or 0 < whole <= at_most)


@pytest.mark.parametrize("verb", LOCKING)
def test_a_locking_verb_bounds_its_transaction_whatever_it_changed(stage: Stage, verb: str) -> None:
    stage.enqueue()  # for there to be a queue
    conn = stage.connect()
    conn.execute(f"begin; select faultline.{LOCKING[verb]}")  # one message
    assert is_bounded(conn, BRIEF_MS)
    if milliseconds(conn, "transaction_timeout") is None:
        assert milliseconds(conn, "statement_timeout") == 5_000
    conn.execute("rollback")
    assert milliseconds(conn, "idle_in_transaction_session_timeout") == 0
    assert milliseconds(conn, "statement_timeout") == 0


@pytest.mark.parametrize("verb", LEASED)
@pytest.mark.parametrize("how", SENT)
def test_a_verb_that_holds_a_lease_bounds_it_however_it_is_sent(
    stage: Stage, verb: str, how: str
) -> None:
    job_id, token = stage.running("A", lease_seconds=600)
    conn = stage.connect()
    call = f"faultline.{verb}(array['{job_id}']::uuid[], array[{token}]::bigint[])"
    conn.execute(SENT[how].format(call=call))
    assert is_bounded(conn, 600_001)


def test_an_open_compaction_holds_up_an_enqueue_for_5_seconds_only(stage: Stage) -> None:
    intruder = stage.connect(role="operator")
    intruder.execute("begin; select faultline.compact()")
    waiting = stage.background(stage.verbs.enqueue("work"), stage.connect()).until_blocked()
    assert waiting.answer() is not None
    alive = "select count(*) from pg_stat_activity where pid = %s"
    until(lambda: stage.value(alive, intruder.info.backend_pid) == 0, "the session was cut off")


def test_a_later_statement_of_an_open_compaction_is_cut_off_too(stage: Stage) -> None:
    intruder = stage.connect(role="operator")
    intruder.execute("begin; select faultline.compact()")
    with pytest.raises(psycopg.Error, match="timeout"):
        intruder.execute("select pg_sleep(600)")
    stage.conn.execute("set statement_timeout = '30s'")
    stage.enqueue()


def test_a_long_drop_of_months_is_not_cut_short_by_its_own_bound(stage: Stage) -> None:
    """Its own work takes longer than the bound, which counts from its end on."""
    stage.execute(
        "create or replace function {schema}.forget_before(horizon timestamptz, max_rows integer) "
        "returns boolean language plpgsql as $$ begin perform pg_sleep(2.6); return false; end $$"
    )
    assert stage.verbs.drop_partitions(365).run(stage.connect(role="operator")) == []


def test_a_thief_with_a_workers_password_can_take_the_bound_off(stage: Stage) -> None:
    """As docs/security.md says: it is for sessions that stall, and ends none that does not want to.

    Another session has to end it.
    """
    with stage.login("worker") as url:
        thief = psycopg.connect(url, autocommit=True)
        stage.connections.append(thief)
        thief.execute("begin; select faultline.beat('victim', '{}')")
        for name in ("idle_in_transaction_session_timeout", "transaction_timeout"):
            if milliseconds(thief, name) is not None:
                thief.execute(f"set local {name} = 0")
                assert milliseconds(thief, name) == 0
        pid = thief.info.backend_pid
        stage.value("select pg_terminate_backend(%s)", pid)
        gone = "select count(*) = 0 from pg_stat_activity where pid = %s"
        until(lambda: stage.value(gone, pid), "the session was ended by another one")
