"""Guards on partitioned tables, and on tables with children: no way in through a part.

Method: each table of a tree is written to by its own name and through its parents, on partitions
that were there before the guard, were attached later, detached, attached again.
"""

from __future__ import annotations

from typing import Any

import pytest

from faultline.call import translated_errors
from faultline.errors import InvalidArgument, Unfenced
from tests.guarded import commit, triggers, unfenced
from tests.stage import Stage

pytestmark = pytest.mark.both_servers

# sale ─┬─ sale_1
#       └─ sale_2 (by shop) ─┬─ sale_2a
#                            └─ sale_2b
TREE = """
create table sale (job_id uuid, token bigint, month int, shop int) partition by list (month);
create table sale_1 partition of sale for values in (1);
create table sale_2 partition of sale for values in (2) partition by list (shop);
create table sale_2a partition of sale_2 for values in (1);
create table sale_2b partition of sale_2 for values in (2)"""
ROWS = {  # where a row may be sent, and one that it takes
    "sale": (1, 1),
    "sale_1": (1, 1),
    "sale_2": (2, 1),
    "sale_2a": (2, 1),
    "sale_2b": (2, 2),
}
NEW = {  # each with where to write to afterwards
    "created": ("create table sale_3 partition of sale for values in (3)", "sale_3", (3, 1)),
    "attached": (
        "create table sale_3 (like sale); alter table sale attach partition sale_3 "
        "for values in (3)",
        "sale_3",
        (3, 1),
    ),
    "as default": ("create table sale_d partition of sale default", "sale_d", (9, 1)),
    "below": ("create table sale_2c partition of sale_2 for values in (3)", "sale_2c", (2, 3)),
    "with parts of its own": (
        "create table sale_3 (like sale) partition by list (shop);"
        "create table sale_3a partition of sale_3 for values in (1);"
        "alter table sale attach partition sale_3 for values in (3)",
        "sale_3a",
        (3, 1),
    ),
    "below what came later": (
        "create table sale_3 partition of sale for values in (3) partition by list (shop);"
        "create table sale_3a partition of sale_3 for values in (1)",
        "sale_3a",
        (3, 1),
    ),
}
every_new = pytest.mark.parametrize("new", NEW)


@pytest.fixture
def market(stage: Stage) -> Stage:
    stage.execute(TREE)
    stage.verbs.guard("sale").run(stage.conn)
    return stage


def insert(table: str, row: tuple[int, int]) -> str:
    return f"insert into {table} values (gen_random_uuid(), 1, {row[0]}, {row[1]})"


def guard_of(stage: Stage, target: str = "sale") -> dict[str, Any]:
    return next(g for g in stage.reading.guards(stage.conn) if g["target"] == target)


def with_fence(stage: Stage, statement: str) -> None:
    conn = stage.connect(isolation="read committed")
    stage.verbs.fence(*stage.running("A")).run(conn)
    conn.execute(statement)
    commit(conn)


@pytest.mark.parametrize("table", ROWS)
def test_no_partition_is_written_by_its_own_name_without_a_fence(market: Stage, table: str) -> None:
    with_fence(market, insert(table, ROWS[table]))
    for statement, operation in (
        (insert(table, ROWS[table]), "INSERT"),
        (f"update {table} set token = 2", "UPDATE"),
        (f"delete from {table}", "DELETE"),
        (f"truncate {table}", "TRUNCATE"),
    ):
        refused = unfenced(market.conn, statement)
        assert (refused.table, refused.operation) == (f"public.{table}", operation)
    assert market.execute("select token from sale") == [(1,)]


def test_each_table_asks_once_a_statement_and_the_row_triggers_are_off(market: Stage) -> None:
    assert triggers(market) == [
        ("sale", "statement", "A"),
        ("sale", "row", "A"),  # never fires: it is the one that is copied
        ("sale_1", "statement", "A"),
        ("sale_1", "row", "D"),
        ("sale_2", "statement", "A"),
        ("sale_2", "row", "A"),  # the same
        ("sale_2a", "statement", "A"),
        ("sale_2a", "row", "D"),
        ("sale_2b", "statement", "A"),
        ("sale_2b", "row", "D"),
    ]
    conn = market.connect(isolation="read committed")
    market.verbs.fence(*market.running("A")).run(conn)
    conn.execute("set track_functions = 'pl'")
    conn.execute("insert into sale select null, 1, 2, 1 + n % 2 from generate_series(1, 100) n")
    asked = "select calls from pg_stat_xact_user_functions where funcname = 'check_guard'"
    assert conn.execute(asked).fetchall() == [(1,)]
    assert guard_of(market) == {
        "target": "sale", "exempt_roles": [], "tables": 5, "by_statement": 5, "by_row": 0,
        "open": 0, "open_parents": [], "trigger_roles": [], "revoke": None, "complete": True,
    }  # fmt: skip


@every_new
def test_a_partition_that_comes_later_is_guarded_from_its_first_moment(
    market: Stage, new: str
) -> None:
    made, table, row = NEW[new]
    market.execute(made)
    unfenced(market.conn, insert(table, row))
    unfenced(market.conn, insert("sale", row))
    with_fence(market, insert(table, row))
    for statement in (f"update {table} set token = 2", f"delete from {table}"):
        unfenced(market.conn, statement)
    for statement in ("delete from sale", "truncate sale"):
        unfenced(market.conn, statement)
    assert market.execute("select token from sale") == [(1,)]
    seen = guard_of(market)
    assert seen["by_row"] == seen["tables"] - 5 > 0
    assert (seen["open"], seen["complete"]) == (0, False)


def test_rows_that_carry_the_token_of_a_live_lease_open_nothing(market: Stage) -> None:
    """A trigger that trusted the columns of the row would let a stale UPDATE pass that leaves them
    alone, and every DELETE."""
    market.execute("create table sale_3 partition of sale for values in (3)")
    stale = market.running("A")
    job_id, token = market.take_over(stale[0], "B")
    with_fence(market, f"insert into sale values ('{job_id}', {token}, 3, 1)")
    assert market.execute("select job_id, token from sale") == [(job_id, token)]
    for table in ("sale_3", "sale"):
        unfenced(market.conn, f"update {table} set shop = 2")
        unfenced(market.conn, f"delete from {table}")


@every_new
def test_guarding_again_makes_a_later_partition_like_the_others(market: Stage, new: str) -> None:
    made, table, row = NEW[new]
    market.execute(made)
    market.execute(f"truncate {table}")  # what no trigger of the parent can see; the view says so
    tables = market.verbs.guard("sale").run(market.conn)
    assert tables > 5
    unfenced(market.conn, f"truncate {table}")
    with_fence(market, insert(table, row))
    seen = guard_of(market)
    assert (seen["tables"], seen["by_statement"], seen["complete"]) == (tables, tables, True)
    rows = [on for name, level, on in triggers(market) if (name, level) == (table, "row")]
    assert rows == ["D"]


def test_a_row_that_moves_to_another_partition_needs_a_fence_too(market: Stage) -> None:
    with_fence(market, insert("sale_1", (1, 1)))
    market.execute("create table sale_3 partition of sale for values in (3)")
    unfenced(market.conn, "update sale set month = 3")
    with_fence(market, "update sale set month = 3")
    assert market.execute("select month from sale_3") == [(3,)]
    unfenced(market.conn, "update sale_3 set shop = 2")


def test_a_detached_partition_stays_guarded_until_it_is_unguarded(market: Stage) -> None:
    market.execute("alter table sale detach partition sale_1")
    unfenced(market.conn, insert("sale_1", (1, 1)))
    assert {guard["target"] for guard in market.reading.guards(market.conn)} == {"sale", "sale_1"}
    market.execute("alter table sale attach partition sale_1 for values in (1)")
    assert guard_of(market)["by_row"] == 1  # and by the statement: both are asked
    unfenced(market.conn, "truncate sale_1")
    market.verbs.guard("sale").run(market.conn)
    assert guard_of(market)["complete"]
    market.execute("alter table sale detach partition sale_1")
    assert market.verbs.unguard("sale_1").run(market.conn) == 1
    market.execute(insert("sale_1", (1, 1)))
    unfenced(market.conn, insert("sale", (2, 1)))


def test_a_detached_tree_takes_its_guard_along(market: Stage) -> None:
    market.execute("alter table sale detach partition sale_2")
    for table in ("sale_2", "sale_2a", "sale_2b"):
        unfenced(market.conn, insert(table, ROWS[table]))
    market.execute("create table sale_2c partition of sale_2 for values in (3)")
    seen = guard_of(market, "sale_2")
    assert (seen["tables"], seen["open"], seen["complete"]) == (4, 1, False)  # its template is gone
    market.verbs.guard("sale_2").run(market.conn)
    unfenced(market.conn, insert("sale_2c", (2, 3)))
    assert guard_of(market, "sale_2")["complete"]


def test_unguarding_frees_every_part(market: Stage) -> None:
    market.execute("create table sale_3 partition of sale for values in (3)")
    assert market.verbs.unguard("sale").run(market.conn) == 5
    assert triggers(market) == []
    assert market.verbs.unguard("sale").run(market.conn) == 0
    for table, row in ROWS.items():
        market.execute(insert(table, row))


@pytest.mark.parametrize("verb", ["guard", "unguard"])
def test_a_part_is_not_guarded_or_freed_by_itself(market: Stage, verb: str) -> None:
    before = triggers(market)
    for part in ("sale_1", "sale_2"):
        with pytest.raises(InvalidArgument, match=rf"public.{part} is a part of public.sale: "):
            getattr(market.verbs, verb)(part).run(market.conn)
    assert triggers(market) == before


def test_a_guarded_tree_that_becomes_part_of_another_is_reported_until_that_is_guarded(
    market: Stage,
) -> None:
    market.execute(
        "create table world (like sale) partition by range (shop);"
        "alter table world attach partition sale for values from (0) to (100)"
    )
    market.execute(insert("world", (1, 1)))  # past the guard, through a table that has none
    seen = guard_of(market)
    assert (seen["open_parents"], seen["complete"]) == (["world"], False)
    assert market.verbs.guard("world").run(market.conn) == 6
    unfenced(market.conn, insert("world", (1, 1)))
    market.execute("create table sale_3 partition of sale for values in (3)")
    unfenced(market.conn, insert("sale_3", (3, 1)))
    market.verbs.guard("world").run(market.conn)
    assert [g["target"] for g in market.reading.guards(market.conn) if g["complete"]] == ["world"]
    assert market.verbs.unguard("world").run(market.conn) == 7
    assert triggers(market) == []


def test_a_partition_in_another_database_cannot_be_guarded(stage: Stage) -> None:
    stage.execute(
        TREE + ";create extension postgres_fdw;"
        "create server elsewhere foreign data wrapper postgres_fdw;"
        "create foreign table sale_9 partition of sale for values in (9) server elsewhere"
    )
    with pytest.raises(InvalidArgument, match=r"public\.sale_9 is a foreign table"):
        stage.verbs.guard("sale").run(stage.conn)
    assert triggers(stage) == []


CHILDREN = """
create table event (token bigint);
create table event_a () inherits (event);
create table event_b () inherits (event_a)"""


def test_children_are_guarded_with_their_parent_and_later_ones_when_it_is_guarded_again(
    stage: Stage,
) -> None:
    stage.execute(CHILDREN)
    stage.verbs.guard("event").run(stage.conn)
    for table in ("event", "event_a", "event_b"):
        unfenced(stage.conn, f"insert into {table} values (1)")
        unfenced(stage.conn, f"truncate {table}")
    stage.execute("create table event_c () inherits (event_b); insert into event_c values (1)")
    seen = guard_of(stage, "event")
    assert (seen["tables"], seen["open"], seen["complete"]) == (4, 1, False)
    unfenced(stage.conn, "update event set token = 2")  # through the parent it is guarded
    assert stage.verbs.guard("event").run(stage.conn) == 4
    unfenced(stage.conn, "insert into event_c values (1)")
    assert guard_of(stage, "event")["complete"]
    with pytest.raises(InvalidArgument, match="is a part of"):
        stage.verbs.guard("event_a").run(stage.conn)
    assert stage.verbs.unguard("event").run(stage.conn) == 4


BROKEN = {
    "switched off": "alter table sale_1 disable trigger user",
    "not always": "alter table sale_1 enable trigger faultline_guard",
    "taken away": "drop trigger faultline_guard on sale_1",
    "at the top": "alter table only sale disable trigger faultline_guard",
    "the copies": "alter table only sale_2 disable trigger faultline_guard_row",
    "all, as pg_restore --disable-triggers does": "alter table sale disable trigger all;"
    "alter table sale enable trigger all",
}


@pytest.mark.parametrize("how", BROKEN)
def test_what_an_owner_has_taken_apart_is_seen_and_guarding_again_mends_it(
    market: Stage, how: str
) -> None:
    before = triggers(market)
    market.execute(BROKEN[how])
    assert not guard_of(market)["complete"]
    market.verbs.guard("sale").run(market.conn)
    assert guard_of(market)["complete"]
    assert triggers(market) == before


def test_guarding_again_does_not_let_anybody_through_meanwhile(market: Stage) -> None:
    """The triggers are replaced in one transaction, under a lock that stops writers."""
    owner = market.connect(isolation="read committed")
    market.verbs.guard("sale").run(owner)
    late = market.background(insert("sale_1", (1, 1)), market.connect())
    late.until_blocked()
    owner.commit()
    with pytest.raises(Unfenced), translated_errors("faultline"):
        late.answer()
