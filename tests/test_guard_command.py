"""`faultline guard`, run as a user runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import CommandLine
from tests.guarded import triggers, unfenced
from tests.stage import Stage


@pytest.fixture
def faultline(stage: Stage, tmp_path: Path) -> CommandLine:
    stage.execute(
        "create schema billing; create table billing.charges (n int) partition by list (n);"
        "create table billing.charges_1 partition of billing.charges for values in (1);"
        "create table refunds (n int)"
    )
    return CommandLine(stage.url, tmp_path)


def test_a_table_is_guarded_listed_and_freed(stage: Stage, faultline: CommandLine) -> None:
    assert faultline("guard", "list", status=3) == ""
    assert faultline.said == "no table is guarded\n"
    assert faultline.json("guard", "list", status=3) == []
    assert faultline("guard", "add", "refunds") == "guarded: refunds (1 table)\n"
    said = faultline("guard", "add", "billing.charges", "--exempt", "postgres")
    assert said == "guarded: billing.charges (2 tables)\n"
    unfenced(stage.conn, "insert into refunds values (1)")
    stage.execute("insert into billing.charges_1 values (1)")
    head, charges, refunds = faultline("guard", "list").splitlines()
    assert head.split() == [*("table", "exempt", "tables", "by", "statement"), "by", "row", "open"]
    assert charges.split() == ["billing.charges", "ok", "postgres", "2", "2", "0", "0"]
    assert refunds.split() == ["refunds", "ok", "1", "1", "0", "0"]
    assert faultline.json("guard", "list")[1] == {
        "target": "refunds", "exempt_roles": [], "tables": 1, "by_statement": 1, "by_row": 0,
        "open": 0, "open_parents": [], "trigger_roles": [], "revoke": None, "complete": True,
    }  # fmt: skip
    said = faultline("guard", "remove", "billing.charges")
    assert said == "not guarded any more: billing.charges (2 tables)\n"
    faultline("guard", "remove", "billing.charges", status=3)
    assert faultline.said == "billing.charges is not guarded\n"
    assert [table for table, _, _ in triggers(stage)] == ["refunds"]


def test_who_looks_at_the_list_is_told_what_to_do(stage: Stage, faultline: CommandLine) -> None:
    faultline("guard", "add", "billing.charges", "--exempt", "postgres")
    stage.execute("create table billing.charges_2 partition of billing.charges for values in (2)")
    assert "incomplete" in faultline("guard", "list")
    assert faultline.said == (
        "billing.charges has gaps: run `faultline guard add billing.charges` again\n"
    )
    assert "(3 tables)" in faultline("guard", "add", "billing.charges")
    (guard,) = faultline.json("guard", "list")
    assert (guard["complete"], guard["exempt_roles"]) == (True, ["postgres"])
    faultline("guard", "add", "billing.charges", "--no-exempt")
    assert faultline.json("guard", "list")[0]["exempt_roles"] == []
    stage.execute(
        "create table everything (n int) partition by range (n);"
        "alter table everything attach partition billing.charges for values from (1) to (9)"
    )
    faultline("guard", "list")
    assert "can be written through everything, past its guard" in faultline.said
    assert "`faultline guard add everything`" in faultline.said


def test_who_may_create_triggers_is_listed_with_the_statement_that_takes_it_away(
    stage: Stage, faultline: CommandLine
) -> None:
    statement = "REVOKE TRIGGER ON refunds FROM public"
    stage.execute("grant all on refunds to public")
    faultline("guard", "add", "refunds", status=1)
    assert statement.replace("refunds", "public.refunds") in faultline.said
    assert faultline.said.count("\n") == 1
    stage.execute(statement)
    faultline("guard", "add", "refunds")
    stage.execute("grant trigger on refunds to public")
    assert "incomplete" in faultline("guard", "list")
    assert faultline.said == (
        f"public can take the guard of refunds away: run `{statement}`, "
        "then `faultline guard add refunds` again\n"
    )
    faultline("guard", "add", "refunds", status=1)
    stage.execute(statement)
    assert faultline.json("guard", "list")[0]["complete"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing_there"], 'relation "nothing_there" does not exist'),
        (["faultline.lease"], "lease is none of your tables"),
        (["billing.charges_1"], "billing.charges_1 is a part of billing.charges: "),
        (["refunds", "--exempt", "nobody"], "there is no role 'nobody'"),
    ],
)
def test_what_cannot_be_guarded_is_one_sentence(
    stage: Stage, faultline: CommandLine, arguments: list[str], said: str
) -> None:
    faultline("guard", "add", *arguments, status=1)
    assert faultline.said.startswith("faultline: ")
    assert said in faultline.said
    assert faultline.said.count("\n") == 1
    assert triggers(stage) == []


def test_two_options_that_contradict_each_other_are_wrong_usage(
    stage: Stage, faultline: CommandLine
) -> None:
    faultline("guard", "add", "refunds", "--exempt", "postgres", "--no-exempt", status=2)
    assert "contradict each other" in faultline.said
    assert triggers(stage) == []


def test_a_table_in_use_is_not_waited_for_without_end(stage: Stage, faultline: CommandLine) -> None:
    """A long transaction must not make a guard queue up everybody who comes after it."""
    busy = stage.connect(isolation="read committed")
    busy.execute("insert into refunds values (1)")
    faultline("guard", "add", "refunds", status=1)
    assert "guard needs a lock that another session holds" in faultline.said
    assert triggers(stage) == []
    busy.rollback()
    faultline("guard", "add", "refunds")


def test_a_user_without_the_role_is_told_which_to_ask_for(
    stage: Stage, faultline: CommandLine
) -> None:
    with stage.login("worker") as url:
        faultline.environment["FAULTLINE_DATABASE_URL"] = url
        faultline("guard", "add", "refunds", status=1)
        assert "faultline_operator" in faultline.said
