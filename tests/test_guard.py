"""The guard on a user's own table: without a fence nothing is written, whatever the statement.

Method: a guarded table, on which everybody has all rights; sessions write to it in every way there
is. The superuser plays the worker, whom a guard does not know either. Orders of two sessions are in
test_guard_interleavings.py, partitions in test_guard_partitions.py, ways round it in
test_guard_bypass.py.
"""

from __future__ import annotations

import psycopg
import pytest

from faultline.errors import StaleLease, Unfenced
from faultline.migrate import migrate
from tests.guarded import ISOLATIONS, LATE, charge, charges, commit, guarded, unfenced
from tests.stage import Stage

pytestmark = pytest.mark.both_servers
every_isolation = pytest.mark.parametrize("isolation", ISOLATIONS)

ONE = "'00000000-0000-7000-8000-000000000001'::uuid"
TWO = "'00000000-0000-7000-8000-000000000002'::uuid"
WRITES = {
    "insert": ("INSERT", f"insert into charge values ({TWO}, 9)"),
    "insert nothing": ("INSERT", "insert into charge select * from charge where false"),
    "on conflict": (
        "INSERT",
        f"insert into charge values ({ONE}, 1) on conflict (job_id) do update set token = 9",
    ),
    "update": ("UPDATE", "update charge set token = 9"),
    "update nothing": ("UPDATE", "update charge set token = 9 where false"),
    "delete": ("DELETE", "delete from charge"),
    "truncate": ("TRUNCATE", "truncate charge"),
    "truncate cascade": ("TRUNCATE", "truncate shop cascade"),
    "merge": (
        "UPDATE",
        "merge into charge c using (select 1) s on true when matched then update set token = 9",
    ),
    "writable cte": ("DELETE", "with gone as (delete from charge returning *) select * from gone"),
    "view": ("UPDATE", "update charge_view set token = 9"),
    "foreign key": ("DELETE", "delete from shop"),
    "rule": ("INSERT", "insert into charge_rule values (9)"),
    "function": ("DELETE", "select clear_charges()"),
    "do": ("DELETE", "do $$ begin delete from charge; end $$"),
}
every_write = pytest.mark.parametrize("write", WRITES)


@pytest.fixture
def shop(stage: Stage) -> Stage:
    """One charge, with all that may write to it in passing."""
    stage.execute(
        f"create table shop (id uuid primary key); insert into shop values ({ONE}), ({TWO});"
        "create table charge (job_id uuid primary key references shop on delete cascade, "
        "token bigint);"
        f"insert into charge values ({ONE}, 1);"
        "create view charge_view as select * from charge;"
        "create table charge_rule (token bigint);"
        "create rule r as on insert to charge_rule do instead insert into charge "
        f"values ({TWO}, new.token);"
        "create function clear_charges() returns void language sql security definer "
        "as 'delete from charge'"
    )
    assert stage.verbs.guard("charge").run(stage.conn) == 1
    return stage


@every_write
def test_without_a_fence_nothing_is_written(shop: Stage, write: str) -> None:
    operation, statement = WRITES[write]
    before = charges(shop)
    refused = unfenced(shop.connect(), statement)
    assert (refused.table, refused.operation) == ("public.charge", operation)
    assert charges(shop) == before


def test_without_a_fence_nothing_is_copied_into_the_table(shop: Stage) -> None:
    conn = shop.connect()
    with (
        pytest.raises(psycopg.Error) as refused,
        conn.cursor() as cursor,
        cursor.copy("copy charge from stdin") as copy,
    ):
        copy.write_row((TWO.split("'")[1], 9))
    assert refused.value.sqlstate == "LF006"
    assert len(charges(shop)) == 1


@every_write
def test_with_a_fence_the_same_is_written(shop: Stage, write: str) -> None:
    before = charges(shop)
    a = shop.connect(isolation="read committed")
    shop.verbs.fence(*shop.running("A")).run(a)
    a.execute(WRITES[write][1])
    commit(a)
    assert (charges(shop) == before) is write.endswith("nothing")
    assert shop.value("select count(*) from {schema}.fence_tx") == 0


def test_the_error_names_the_table_and_says_how_to_open_a_fence(shop: Stage) -> None:
    shop.execute('create schema "The Bank"; create table "The Bank"."Order" (id int)')
    shop.verbs.guard('"The Bank"."Order"').run(shop.conn)
    with pytest.raises(psycopg.Error) as refused:
        shop.execute('insert into "The Bank"."Order" values (1)')
    assert refused.value.sqlstate == "LF006"
    said = refused.value.diag.message_primary or ""
    for part in ('"The Bank"."Order"', "INSERT", "ctx.transaction()", "ctx.fence(connection)",
                 "select faultline.fence(job_id, token)"):  # fmt: skip
        assert part in said
    assert "exempt_roles of faultline.guard" in (refused.value.diag.message_hint or "")
    ours = unfenced(shop.connect(), 'truncate "The Bank"."Order"')
    assert (ours.table, ours.operation) == ('"The Bank"."Order"', "TRUNCATE")


def test_a_fence_opened_after_the_write_is_too_late(shop: Stage) -> None:
    attempt = shop.running("A")
    a = shop.connect(isolation="read committed")
    with pytest.raises(Unfenced):
        charge(a, attempt)
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        shop.verbs.fence(*attempt).run(a)


@pytest.fixture
def till(stage: Stage) -> Stage:
    return guarded(stage)


@every_isolation
def test_a_fence_of_another_transaction_does_not_count(till: Stage, isolation: str) -> None:
    attempt = till.running("A")
    a = till.connect(isolation=isolation)
    till.verbs.fence(*attempt).run(a)
    commit(a)  # the same session, but the next transaction
    with pytest.raises(Unfenced):
        charge(a, attempt)
    a.rollback()
    till.verbs.fence(*attempt).run(a)  # open while another session writes
    with pytest.raises(Unfenced):
        charge(till.connect(), attempt)
    assert charges(till) == []


def test_a_fence_left_behind_by_a_transaction_that_was_not_checked_does_not_count(
    till: Stage,
) -> None:
    attempt = till.running("A")
    till.execute(
        "alter table {schema}.fence_tx disable trigger user; "
        "insert into {schema}.fence_tx (job_id, fencing_token) "
        f"values ('{attempt[0]}', {attempt[1]});"
        "alter table {schema}.fence_tx enable always trigger a_fence_is_checked_at_commit"
    )
    with pytest.raises(Unfenced):
        charge(till.connect(), attempt)


@every_isolation
def test_a_fence_that_a_savepoint_took_back_does_not_count(till: Stage, isolation: str) -> None:
    attempt = till.running("A")
    a = till.connect(isolation=isolation)
    a.execute("select 1")
    with a.transaction(force_rollback=True):
        till.verbs.fence(*attempt).run(a)
    with pytest.raises(Unfenced):
        charge(a, attempt)
    a.rollback()
    assert charges(till) == []


@every_isolation
def test_fence_and_writes_in_savepoints_are_checked_at_the_commit(
    till: Stage, isolation: str
) -> None:
    attempt = till.running("A")
    a = till.connect(isolation=isolation)

    def write() -> None:
        a.execute("select 1")  # from here on transaction() is a savepoint
        with a.transaction():
            till.verbs.fence(*attempt).run(a)
        with a.transaction():
            charge(a, attempt)
            with a.transaction(force_rollback=True):
                charge(a, attempt)

    write()
    commit(a)
    assert charges(till) == [attempt]
    write()
    till.take_over(attempt[0], "B")
    with pytest.raises(LATE):
        commit(a)
    assert charges(till) == [attempt]


@every_isolation
@pytest.mark.parametrize("ending", ["complete_one", "fail"])
def test_what_is_written_with_the_ending_of_the_attempt_commits_with_it(
    till: Stage, ending: str, isolation: str
) -> None:
    attempt = till.running("A")
    a = till.connect(isolation=isolation)
    till.verbs.fence(*attempt).run(a)
    charge(a, attempt)
    if ending == "fail":
        assert till.verbs.fail([attempt]).run(a) == []
    else:
        till.verbs.complete_one(*attempt).run(a)
    commit(a)
    assert charges(till) == [attempt]


def test_a_deferred_trigger_of_the_users_writes_only_before_the_fence_is_checked(
    till: Stage,
) -> None:
    till.execute(
        "create table sale (token bigint);"
        "create function book() returns trigger language plpgsql as "
        "'begin insert into charge (token) values (new.token); return null; end';"
        "create constraint trigger book after insert on sale deferrable initially deferred "
        "for each row execute function book()"
    )
    attempt = till.running("A")
    a = till.connect(isolation="read committed")
    till.verbs.fence(*attempt).run(a)
    a.execute("insert into sale values (1)")
    with pytest.raises(Unfenced):
        commit(a)
    assert till.execute("select from sale") == []
    till.verbs.fence(*attempt).run(a)
    a.execute("insert into sale values (2); set constraints book immediate")
    commit(a)
    assert till.execute("select token from charge") == [(2,)]


def test_a_lease_that_dies_before_the_commit_is_not_kept_alive_by_a_frozen_clock(
    till: Stage,
) -> None:
    attempt = till.running("A")
    a = till.connect(isolation="read committed")
    till.verbs.fence(*attempt).run(a)
    charge(a, attempt)  # now() stands still since the fence
    till.execute("update {schema}.lease set expires_at = clock_timestamp()")
    with pytest.raises(StaleLease, match="lease_expired"):
        commit(a)
    assert charges(till) == []


def test_a_transaction_over_two_jobs_needs_both_leases_at_the_commit(till: Stage) -> None:
    mine, lost = till.running("A"), till.running("A")
    a = till.connect(isolation="read committed")
    for attempt in (mine, lost):
        till.verbs.fence(*attempt).run(a)
        charge(a, attempt)
    till.take_over(lost[0], "B")
    with pytest.raises(StaleLease) as refused:
        commit(a)
    assert refused.value.job_id == lost[0]
    assert charges(till) == []


def test_a_migrate_has_the_fences_of_an_older_installation_checked_always(till: Stage) -> None:
    """Otherwise whoever may set session_replication_role would commit unchecked."""
    enabled = "select tgenabled::text from pg_trigger where tgname = 'a_fence_is_checked_at_commit'"
    assert till.value(enabled) == "A"
    till.execute("alter table {schema}.fence_tx enable trigger a_fence_is_checked_at_commit")
    till.execute("comment on schema {schema} is 'older'")
    migrate(till.conn, "faultline")
    assert till.value(enabled) == "A"
    unfenced(till.conn, "delete from charge")


def test_no_table_is_read_through_to_find_the_fence(till: Stage) -> None:
    """Dead rows pile up in fence_tx while a snapshot is held: without its index the guard would
    walk them all, for each statement."""
    attempt = till.running("A")
    till.execute("vacuum analyze {schema}.fence_tx")  # from now on it looks small to the planner
    a = till.connect(isolation="read committed")
    scans = (
        "select seq_scan, idx_scan from pg_stat_xact_user_tables "
        "where relid = 'faultline.fence_tx'::regclass"
    )
    till.verbs.fence(*attempt).run(a)
    before = a.execute(scans).fetchone()
    charge(a, attempt)
    after = a.execute(scans).fetchone()
    assert before is not None
    assert after is not None
    assert (after[0] - before[0], after[1] - before[1]) == (0, 1)
