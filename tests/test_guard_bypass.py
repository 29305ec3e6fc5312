"""Attempts to write past a guard, really made.

A log-in that is in the role worker, and has every right on the guarded table but TRIGGER, plays the
intruder. It tries to take the guard away, to be somebody else, to forge a fence, and to commit
unchecked. What TRIGGER would let it do is in test_guard_trigger.py.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import Connection
from psycopg.errors import InsufficientPrivilege

from faultline.call import translated_errors
from faultline.errors import StaleLease, Unfenced
from faultline.launcher import Server
from faultline.migrate import migrate
from tests.guarded import (
    Login,
    charge,
    charges,
    commit,
    guarded,
    login,
    logins,
    till,
    triggers,
    unfenced,
    user,
)
from tests.stage import Stage

__all__ = ["login", "till"]
pytestmark = pytest.mark.both_servers


@pytest.fixture
def intruder(login: Login) -> Connection[Any]:
    return login("faultline_worker")


# ── take the guard away ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "statement",
    [
        "alter table charge disable trigger all",
        "alter table charge disable trigger faultline_guard",
        "alter table charge enable replica trigger faultline_guard",
        "drop trigger faultline_guard on charge",
        "alter trigger faultline_guard on charge rename to harmless",
        "create or replace trigger faultline_guard before truncate on charge "
        "execute function suppress_redundant_updates_trigger()",
        "create rule past as on insert to charge do instead nothing",
        "alter table charge rename to other",
        "create table child () inherits (charge)",
        "set session_replication_role = replica",
        "grant trigger on charge to current_user",
        "grant all on charge to public",
        "select faultline.unguard('charge')",
        "select faultline.guard('charge', array[current_user])",
        "select faultline.check_guard()",
        "alter function faultline.check_guard() reset all",
        "create or replace function faultline.check_guard() returns trigger language plpgsql "
        "as 'begin return null; end'",
        "drop function faultline.check_guard() cascade",
        "insert into faultline.fence_tx (job_id, fencing_token) values (gen_random_uuid(), 1)",
        "update faultline.fence_tx set txid = pg_current_xact_id()",
        "update pg_trigger set tgenabled = 'D' where tgname = 'faultline_guard'",
        "set session authorization faultline_owner",
        "set role faultline_owner",
        "set constraints faultline.a_fence_is_checked_at_commit immediate",
    ],
)
def test_a_worker_cannot_take_the_guard_away(
    till: Stage, intruder: Connection[Any], statement: str
) -> None:
    before = triggers(till)
    try:
        intruder.execute(statement)
    except InsufficientPrivilege:
        intruder.rollback()
    else:
        # Of a grant that it cannot give PostgreSQL only warns.
        assert statement.startswith(("set constraints", "grant")), statement
    assert till.reading.guards(till.conn)[0]["complete"]
    with pytest.raises(Unfenced):
        charge(intruder, (uuid4(), 1))
    intruder.rollback()
    assert triggers(till) == before
    assert charges(till) == []


def test_whoever_may_set_the_replication_role_is_guarded_and_checked_all_the_same(
    till: Stage, intruder: Connection[Any]
) -> None:
    till.execute(f"grant set on parameter session_replication_role to {user(intruder)}")
    stale = till.running("A")
    intruder.execute("set session_replication_role = replica")
    with pytest.raises(Unfenced):
        charge(intruder, stale)
    intruder.rollback()
    intruder.execute("set session_replication_role = replica")
    till.verbs.fence(*stale).run(intruder)
    charge(intruder, stale)
    till.take_over(stale[0], "B")
    with pytest.raises(StaleLease):
        commit(intruder)
    assert charges(till) == []


def test_whoever_may_set_the_replication_role_writes_to_no_later_partition_either(
    till: Stage, intruder: Connection[Any]
) -> None:
    till.execute(
        f"grant set on parameter session_replication_role to {user(intruder)};"
        "create table sale (job_id uuid, token bigint) partition by list (token)"
    )
    till.verbs.guard("sale").run(till.conn)
    till.execute(
        "create table sale_1 partition of sale for values in (1);"
        "grant insert on sale, sale_1 to public"
    )
    intruder.execute("set session_replication_role = replica")
    intruder.commit()
    for table in ("sale", "sale_1"):
        with pytest.raises(Unfenced):
            charge(intruder, (uuid4(), 1), table)
        intruder.rollback()


# ── be somebody else ─────────────────────────────────────────────────────────────────────────────


def test_a_worker_that_is_a_member_of_an_exempt_role_is_not_exempt(
    till: Stage, login: Login
) -> None:
    web = login()
    worker = login("faultline_worker", user(web))
    till.verbs.guard("charge", [user(web)]).run(till.conn)
    assert till.value("select pg_has_role(%s, %s, 'member')", user(worker), user(web))
    with pytest.raises(Unfenced):
        charge(worker, (uuid4(), 1))
    worker.rollback()
    worker.execute(f"set role {user(web)}")
    with pytest.raises(Unfenced):
        charge(worker, (uuid4(), 1))
    worker.rollback()
    assert charges(till) == []


def test_a_member_of_an_exempt_role_that_is_no_worker_is_not_exempt_either(
    till: Stage, login: Login
) -> None:
    web = login()
    other = login(user(web))
    till.verbs.guard("charge", [user(web)]).run(till.conn)
    unfenced(other, "delete from charge")
    other.execute(f"set role {user(web)}")
    unfenced(other, "delete from charge")


def test_an_exempt_log_in_that_has_become_a_worker_is_not_exempt_any_more(
    till: Stage, login: Login
) -> None:
    web, group = login(), login()
    till.verbs.guard("charge", [user(web)]).run(till.conn)
    web.execute("delete from charge")
    web.commit()
    till.execute(f"grant faultline_worker to {user(group)}")
    for granted in ("faultline_worker", user(group)):  # by itself, and through another role
        till.execute(f"grant {granted} to {user(web)}")
        unfenced(web, "delete from charge")
        attempt = till.running("A")
        till.verbs.fence(*attempt).run(web)  # like any worker
        charge(web, attempt)
        commit(web)
        till.execute(f"revoke {granted} from {user(web)}")
        web.execute("delete from charge")
        web.commit()


def test_a_worker_under_the_name_of_a_dropped_exempt_role_is_not_exempt(till: Stage) -> None:
    with logins(till) as login:
        name = user(login())
        till.verbs.guard("charge", [name]).run(till.conn)
        till.connections.pop().close()
        till.execute(f"drop role {name}; create role {name} login in role faultline_worker")
        intruder = till.connect()
        intruder.execute(f"set session authorization {name}")
        unfenced(intruder, "delete from charge")


def test_a_function_that_runs_as_an_exempt_role_is_not_exempt(till: Stage, login: Login) -> None:
    web = login()
    worker = login("faultline_worker")
    till.verbs.guard("charge", [user(web)]).run(till.conn)
    till.execute(
        "create function clear() returns void language sql security definer "
        f"as 'delete from charge'; alter function clear() owner to {user(web)}"
    )
    unfenced(worker, "select clear()")
    web.execute("select clear()")


# ── forge a fence ────────────────────────────────────────────────────────────────────────────────


def test_no_fence_opens_without_the_token_of_a_live_lease(
    till: Stage, intruder: Connection[Any]
) -> None:
    job_id, token = till.running("A")
    ended = till.running("A")
    till.verbs.complete([ended]).run(till.conn)
    queued = till.enqueue()
    for forged in (
        *((job_id, token + 1), (job_id, token - 1), (job_id, 2**63 - 1), (job_id, -1)),
        *((job_id, None), (None, token), (None, None)),
        *(ended, (queued, 0), (queued, 1), (uuid4(), token)),
    ):
        with pytest.raises(psycopg.Error) as refused:
            intruder.execute("select faultline.fence(%s::uuid, %s::bigint)", forged)
        assert refused.value.sqlstate == ("LF003" if None in forged else "LF001")
        intruder.rollback()
    with pytest.raises(Unfenced):
        charge(intruder, (job_id, token))
    intruder.rollback()
    assert charges(till) == []


def test_settings_names_and_tables_of_the_workers_own_make_no_fence(
    till: Stage, intruder: Connection[Any]
) -> None:
    till.execute(f"create schema mine authorization {user(intruder)}")
    shadows = (
        "create {kind} fence_tx (txid xid8 default pg_current_xact_id(), job_id uuid, "
        "fencing_token bigint)"
    )
    intruder.execute(
        f"{shadows.format(kind='temp table')};"
        f"{shadows.format(kind='table').replace('fence_tx', 'mine.fence_tx')};"
        "insert into pg_temp.fence_tx (job_id) values (null);"
        "insert into mine.fence_tx (job_id) values (null);"
        "create function mine.session_user() returns name language sql return 'postgres'::name;"
        "create function mine.pg_current_xact_id_if_assigned() returns xid8 language sql "
        "return '3'::xid8;"
        "create function mine.same(xid8, xid8) returns bool language sql return true;"
        "create operator mine.= (leftarg = xid8, rightarg = xid8, function = mine.same);"
        "set search_path = mine, pg_temp, public, pg_catalog;"
        "set faultline.bounded_until = 'infinity'"
    )
    with pytest.raises(Unfenced):
        charge(intruder, (uuid4(), 1), "public.charge")
    intruder.rollback()
    assert charges(till) == []


def test_the_fence_of_one_job_does_not_outlive_it(till: Stage, intruder: Connection[Any]) -> None:
    """The fence of a job that it holds lets a worker write anything, but only while it holds it."""
    mine, other = till.running("A"), till.running("B")
    till.verbs.fence(*mine).run(intruder)
    charge(intruder, other)
    till.take_over(mine[0], "C")
    with pytest.raises(StaleLease):
        commit(intruder)
    assert charges(till) == []


# ── commit unchecked ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "trick",
    [
        "set constraints all deferred",
        "set constraints all immediate",
        "set constraints faultline.a_fence_is_checked_at_commit immediate",
        "savepoint s; rollback to s",
        "savepoint s; set constraints all immediate; rollback to s",
        "set local lock_timeout = 1",
        "set local synchronous_commit = off",
    ],
)
def test_a_stale_fence_does_not_commit_whatever_is_set_before(
    till: Stage, intruder: Connection[Any], trick: str
) -> None:
    stale = till.running("A")
    till.verbs.fence(*stale).run(intruder)
    charge(intruder, stale)
    till.take_over(stale[0], "B")
    with pytest.raises(StaleLease), translated_errors("faultline"):
        intruder.execute(f"{trick}; commit")
    intruder.rollback()
    assert charges(till) == []


def test_a_worker_cannot_pass_by_reclaiming_its_own_lease(
    till: Stage, intruder: Connection[Any]
) -> None:
    stale = till.running("A")
    till.verbs.fence(*stale).run(intruder)
    charge(intruder, stale)
    till.expire(stale[0])
    assert len(till.verbs.reclaim().run(intruder)) == 1
    with pytest.raises(StaleLease):
        commit(intruder)
    assert charges(till) == []


# ── prepared transactions ────────────────────────────────────────────────────────────────────────


def test_a_transaction_is_checked_when_it_is_prepared_and_holds_the_lease_from_then_on() -> None:
    options = {"fsync": "off", "max_prepared_transactions": "2"}
    with Server.temporary(options=options) as server:
        with psycopg.connect(server.url, autocommit=True) as conn:
            migrate(conn, "faultline")
        with Stage(server.url) as stage:
            till = guarded(stage)
            stale, mine = till.running("A"), till.running("A")
            a = till.connect(isolation="read committed")
            till.verbs.fence(*stale).run(a)
            charge(a, stale)
            till.take_over(stale[0], "B")
            with pytest.raises(StaleLease), translated_errors("faultline"):
                a.execute("prepare transaction 'late'")
            a.rollback()
            till.verbs.fence(*mine).run(a)
            charge(a, mine)
            a.execute("prepare transaction 'in time'")
            assert till.verbs.reclaim_dead("A").run(till.conn) == []
            till.execute("commit prepared 'in time'")
            assert charges(till) == [mine]
            assert len(till.verbs.reclaim_dead("A").run(till.conn)) == 1
