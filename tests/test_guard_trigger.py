"""The privilege TRIGGER, which GRANT ALL gives: whoever has it can put a trigger of his own in the
place of the guard's.

Method: it is granted in every form there is, before the guard and after it. Then it is used, by a
worker and in every form that leaves the table open; what the list says is followed to the letter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from psycopg import Connection

from faultline.errors import InvalidArgument
from tests.guarded import Login, charge, charges, guarded, logins, triggers, unfenced, user
from tests.stage import Stage

pytestmark = pytest.mark.both_servers

GRANTS = {  # to {me}; who is named, which tables
    "all": ("grant all on sale to {me}", {"me"}, "public.sale"),
    "trigger": ("grant trigger on sale to {me}", {"me"}, "public.sale"),
    "public": ("grant trigger on sale to public", {"public"}, "public.sale"),
    "a partition": ("grant all on sale_1 to {me}", {"me"}, "public.sale_1"),
    "two tables": (
        "grant all on sale_1, sale to {me}, public",
        {"me", "public"},
        "public.sale, public.sale_1",
    ),
    "handed on": (
        "grant trigger on sale to {me} with grant option; set session authorization {me};"
        "grant trigger on sale to public; reset session authorization",
        {"me", "public"},
        "public.sale",
    ),
}
every_grant = pytest.mark.parametrize("grant", GRANTS)


@pytest.fixture
def login(stage: Stage) -> Iterator[Login]:
    with logins(stage) as make:
        yield make


@pytest.fixture
def market(stage: Stage) -> Stage:
    stage.execute(
        "create table sale (n int) partition by list (n);"
        "create table sale_1 partition of sale for values in (1);"
        "grant select, insert, update, delete, truncate, references on sale, sale_1 to public"
    )
    return stage


@every_grant
def test_a_table_is_not_guarded_while_somebody_else_may_create_triggers_on_it(
    market: Stage, login: Login, grant: str
) -> None:
    name = user(login())
    statement, roles, tables = GRANTS[grant]
    market.execute(statement.format(me=name))
    with pytest.raises(InvalidArgument) as refused:
        market.verbs.guard("sale").run(market.conn)
    who, _, revoke = str(refused.value).partition("; first run: ")
    named = {name if role == "me" else role for role in roles}
    assert set(who.split(" can take the guard of public.sale away")[0].split(", ")) == named
    assert revoke.startswith(f"REVOKE TRIGGER ON {tables} FROM ")
    assert triggers(market) == []
    market.execute(revoke)
    assert market.verbs.guard("sale").run(market.conn) == 2


@every_grant
def test_who_gets_the_privilege_afterwards_is_listed_until_it_is_revoked(
    market: Stage, login: Login, grant: str
) -> None:
    name = user(login())
    statement, roles, _ = GRANTS[grant]
    market.verbs.guard("sale").run(market.conn)
    market.execute(statement.format(me=name))
    (guard,) = market.reading.guards(market.conn)
    assert set(guard["trigger_roles"]) == {name if role == "me" else role for role in roles}
    assert not guard["complete"]
    assert guard["open"] == 0
    market.execute(guard["revoke"])
    (guard,) = market.reading.guards(market.conn)
    assert (guard["trigger_roles"], guard["revoke"], guard["complete"]) == ([], None, True)


def test_odd_names_are_quoted_in_the_statement_that_revokes(stage: Stage) -> None:
    name = f'a"b {uuid4().hex}'.replace('"', '""')
    stage.execute('create table "My ""Charges" (n int)')
    stage.verbs.guard('"My ""Charges"').run(stage.conn)
    stage.execute(f'create role "{name}"; grant all on "My ""Charges" to "{name}"')
    try:
        (guard,) = stage.reading.guards(stage.conn)
        stage.execute(guard["revoke"])
        assert stage.reading.guards(stage.conn)[0]["complete"]
    finally:
        stage.execute(f'drop owned by "{name}"; drop role "{name}"')


BEFORE = "create or replace trigger faultline_guard before"
NOTHING = "create function nothing() returns trigger language plpgsql as 'begin return null; end'"
REPLACED = {
    "another function": f"{BEFORE} insert or update or delete or truncate on charge "
    "execute function nothing()",
    "another occasion": f"{BEFORE} truncate on charge "
    "execute function suppress_redundant_updates_trigger()",
    "for each row": f"{BEFORE} update on charge for each row "
    "execute function suppress_redundant_updates_trigger()",
    "with a role of its choice": f"{BEFORE} truncate on charge "
    "execute function suppress_redundant_updates_trigger({me})",
}


@pytest.mark.parametrize("how", REPLACED)
def test_a_trigger_put_in_the_place_of_the_guards_is_seen_and_guarding_again_mends_it(
    stage: Stage, login: Login, how: str
) -> None:
    till, intruder = guarded(stage), login("faultline_worker")
    till.execute(NOTHING)
    before = triggers(till)
    till.execute(f"grant all on charge to {user(intruder)}")
    intruder.execute(REPLACED[how].format(me=user(intruder)))
    intruder.commit()
    charge(intruder, (uuid4(), 1))  # which is why guard would have refused
    intruder.commit()
    (guard,) = till.reading.guards(till.conn)
    assert guard["target"] == "charge"
    assert (guard["tables"], guard["open"], guard["complete"]) == (1, 1, False)
    assert (guard["exempt_roles"], guard["trigger_roles"]) == ([], [user(intruder)])
    with pytest.raises(InvalidArgument, match=r"REVOKE TRIGGER ON public\.charge FROM"):
        till.verbs.guard("charge").run(till.conn)
    till.execute(guard["revoke"])
    assert not till.reading.guards(till.conn)[0]["complete"]  # it is still in its place
    till.verbs.guard("charge").run(till.conn)
    assert till.reading.guards(till.conn)[0]["complete"]
    assert triggers(till) == before
    unfenced(intruder, "delete from charge")
    assert len(charges(till)) == 1


OURS = "execute function faultline.check_guard()"
WEAKER = {  # by an operator, who may use our function
    "fewer occasions": f"{BEFORE} truncate on charge {OURS}",
    "never": f"{BEFORE} insert or update or delete or truncate on charge when (false) {OURS}",
    "one column": f"{BEFORE} insert or update of note or delete or truncate on charge {OURS}",
}


@pytest.mark.parametrize("how", WEAKER)
def test_a_trigger_of_our_function_that_is_asked_less_often_is_seen(stage: Stage, how: str) -> None:
    till = guarded(stage)
    till.execute(WEAKER[how])
    till.execute("alter table charge enable always trigger faultline_guard")
    (guard,) = till.reading.guards(till.conn)
    assert (guard["open"], guard["complete"]) == (1, False)
    till.verbs.guard("charge").run(till.conn)
    assert till.reading.guards(till.conn)[0]["complete"]


def test_what_was_replaced_in_a_tree_is_seen_with_the_tree_and_its_exempt_roles(
    market: Stage, login: Login
) -> None:
    web = login()
    market.verbs.guard("sale", [user(web)]).run(market.conn)
    other = "execute function suppress_redundant_updates_trigger()"
    for table in ("sale", "sale_1"):
        market.execute(f"{BEFORE} truncate on {table} {other}")
        (guard,) = market.reading.guards(market.conn)
        assert (guard["target"], guard["exempt_roles"]) == ("sale", [user(web)])
        assert not guard["complete"]
    assert guard["open"] == 1  # a new partition would still get the row trigger
    market.verbs.guard("sale").run(market.conn)
    assert market.reading.guards(market.conn)[0]["complete"]


def test_unguarding_takes_away_what_was_put_in_its_place(stage: Stage) -> None:
    till = guarded(stage)
    till.execute(NOTHING)
    till.execute(REPLACED["another function"])
    assert till.verbs.unguard("charge").run(till.conn) == 1
    assert till.reading.guards(till.conn) == []


def test_the_owners_own_privilege_is_nobody_elses(market: Stage, login: Login) -> None:
    owner: Connection[Any] = login("faultline_operator")
    for table in ("sale", "sale_1"):
        market.execute(f"alter table {table} owner to {user(owner)}")
        market.execute(f"grant all on {table} to {user(owner)}")
    assert market.verbs.guard("sale").run(owner) == 2
    owner.commit()
    assert market.reading.guards(market.conn)[0]["complete"]
