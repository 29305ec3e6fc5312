"""Who may guard a table, who may be exempt from the guard, and what cannot be guarded."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from psycopg import Connection
from psycopg.errors import InsufficientPrivilege

from faultline.errors import InvalidArgument, NotPermitted
from tests.guarded import Login, charge, charges, commit, login, till, triggers, unfenced, user
from tests.stage import Stage

__all__ = ["login", "till"]
pytestmark = pytest.mark.both_servers


@pytest.fixture
def worker(login: Login) -> Connection[Any]:
    return login("faultline_worker")


# ── who is exempt ─────────────────────────────────────────────────────────────────────────────────


def test_an_exempt_log_in_writes_without_a_fence_and_without_any_right_in_our_schema(
    till: Stage, login: Login
) -> None:
    web, other = login(), login()
    till.verbs.guard("charge", [user(web)]).run(till.conn)
    charge(web, (uuid4(), 1))
    web.execute("truncate charge")
    charge(web, (uuid4(), 2))
    commit(web)
    assert len(charges(till)) == 1
    refused = unfenced(other, "delete from charge")
    assert refused.operation == "DELETE"


def test_the_exempt_roles_are_replaced_kept_or_taken_away_as_the_caller_says(
    till: Stage, login: Login
) -> None:
    web, admin = login(), login()

    def exempt() -> set[str]:
        (guard,) = till.reading.guards(till.conn)
        return set(guard["exempt_roles"])

    till.verbs.guard("charge", [user(web), user(admin), user(web)]).run(till.conn)
    assert exempt() == {user(web), user(admin)}
    till.verbs.guard("charge").run(till.conn)  # as for new partitions
    assert exempt() == {user(web), user(admin)}
    till.verbs.guard("charge", [user(admin)]).run(till.conn)
    unfenced(web, "delete from charge")
    admin.execute("delete from charge")
    admin.commit()
    till.verbs.guard("charge", []).run(till.conn)
    unfenced(till.conn, "delete from charge")
    assert exempt() == set()


def test_a_role_that_was_dropped_is_not_exempt_again_under_the_next_of_its_name(
    till: Stage,
) -> None:
    name = f"gone_{uuid4().hex}"
    till.execute(f"create role {name} login")
    till.verbs.guard("charge", [name]).run(till.conn)
    till.execute(f"drop role {name}")
    till.verbs.guard("charge").run(till.conn)
    assert till.reading.guards(till.conn)[0]["exempt_roles"] == []


def test_odd_names_of_roles_and_tables_are_taken_as_they_are(till: Stage) -> None:
    names = [f"o'{uuid4().hex}", f'a"b\\000c {uuid4().hex}', f"été-{uuid4().hex}"]
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    till.execute('create table "a ""b"" %%s" (n int)'.replace("%%", "%"))
    for name in quoted:
        till.execute(f"create role {name} login")
    try:
        till.verbs.guard('"a ""b"" %s"', names).run(till.conn)
        guard = next(g for g in till.reading.guards(till.conn) if "a" in g["target"][:2])
        assert sorted(guard["exempt_roles"]) == sorted(names)
        for name in quoted:
            till.conn.execute(f"set session authorization {name}")
            with pytest.raises(InsufficientPrivilege):  # the table's own rights, not the guard
                till.execute('insert into "a ""b"" %s" values (1)')
            till.conn.execute("reset session authorization")
    finally:
        for name in quoted:
            till.execute(f"drop role {name}")


@pytest.mark.parametrize(
    ("role", "said"),
    [
        ("nobody_of_this_name", "there is no role 'nobody_of_this_name'"),
        ("faultline_producer", "role faultline_producer cannot log in: exempt the users"),
        (None, "there is no role NULL"),
    ],
)
def test_a_role_that_could_never_write_cannot_be_exempt(
    till: Stage, role: str | None, said: str
) -> None:
    before = triggers(till)
    with pytest.raises(InvalidArgument, match=said):
        till.verbs.guard("charge", [role]).run(till.conn)  # type: ignore[list-item]
    assert triggers(till) == before


def test_one_name_in_place_of_a_list_is_refused(till: Stage) -> None:
    with pytest.raises(InvalidArgument, match=r"a list of names: give \['web_shop'\]"):
        till.verbs.guard("charge", "web_shop")


def test_the_workers_cannot_be_exempt(till: Stage, worker: Connection[Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"it is in faultline_worker: .* name of its own"):
        till.verbs.guard("charge", [user(worker)]).run(till.conn)
    till.verbs.guard("charge", ["postgres"]).run(till.conn)  # is in every role, and runs no jobs


# ── who may guard ────────────────────────────────────────────────────────────────────────────────


def test_only_the_owner_of_a_table_guards_it_and_takes_the_guard_away(
    till: Stage, login: Login
) -> None:
    owner, stranger = login("faultline_operator"), login("faultline_operator")
    till.execute(f"alter table charge owner to {user(owner)}")
    for call in (till.verbs.guard("charge", [user(stranger)]), till.verbs.unguard("charge")):
        said = rf"public.charge belongs to {user(owner)}: only its owner"
        with pytest.raises(InvalidArgument, match=said):
            call.run(stranger)
        stranger.rollback()
    assert till.verbs.guard("charge", [user(stranger)]).run(owner) == 1
    owner.commit()
    charge(stranger, (uuid4(), 1))
    stranger.commit()
    assert till.verbs.unguard("charge").run(owner) == 1
    owner.commit()
    with pytest.raises(NotPermitted, match="faultline_operator"):
        till.verbs.guard("charge").run(login("faultline_worker"))


def test_a_partition_that_somebody_else_owns_is_not_passed_over(till: Stage, login: Login) -> None:
    owner, other = login("faultline_operator"), login()
    till.execute(
        "create table sale (n int) partition by list (n);"
        "create table sale_1 partition of sale for values in (1);"
        f"alter table sale owner to {user(owner)}; alter table sale_1 owner to {user(other)}"
    )
    with pytest.raises(InvalidArgument, match=f"sale_1 belongs to {user(other)}"):
        till.verbs.guard("sale").run(owner)


TARGETS = {
    "create view v as select 1": ("v", "v is a view: only tables can be guarded"),
    "create materialized view m as select 1": ("m", "m is a materialized view"),
    "create sequence s": ("s", "s is no table"),
    "create type t as (n int)": ("t", "t is no table"),
    "create table i (n int primary key)": ("i_pkey", "i_pkey is no table"),
    "create extension postgres_fdw; create server x foreign data wrapper postgres_fdw;"
    "create foreign table f (n int) server x": ("f", "f is a foreign table"),
    "select 1": ("faultline.lease", "lease is none of your tables"),
    "select 2": ("pg_class", "pg_class is none of your tables"),
    "select 3": ("nothing_of_this_name", "nothing_of_this_name. does not exist"),
    "select 4": ("nobody.nothing", "does not exist"),
    "select 5": ("4000000000", "there is no such table"),
    "select 6": ("not a name", "invalid name syntax"),
    "select 7": ("a.b.c", "cross-database references are not implemented"),
    "select 8": ("a.b.c.d", "too many dotted names"),
}


@pytest.mark.parametrize("made", TARGETS)
def test_what_cannot_be_guarded_is_refused_in_a_sentence(stage: Stage, made: str) -> None:
    stage.execute(made)
    name, said = TARGETS[made]
    for call in (stage.verbs.guard(name), stage.verbs.unguard(name)):
        with pytest.raises(InvalidArgument, match=said):
            call.run(stage.conn)
    with pytest.raises(InvalidArgument, match="there is no such table"):
        stage.verbs.guard(None).run(stage.conn)  # type: ignore[arg-type]
    assert triggers(stage) == []
