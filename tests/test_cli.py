"""The command line as a whole: help, Tab completion, and how quick it is to answer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from faultline.cli import app
from faultline.cli.order import ORDER
from tests.command import CommandLine

FAULTLINE = Path(sys.executable).with_name("faultline")


def commands(command: Any, *path: str) -> Iterator[tuple[str, ...]]:
    """Every command and group there is."""
    yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, *path, name)


ALL = list(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_explains_itself_with_an_example(
    path: tuple[str, ...], tmp_path: Path
) -> None:
    said = CommandLine("", tmp_path)(*path, "--help")
    assert "Example:\n" in said
    assert f"faultline {' '.join(path)}".strip() in said
    assert not list(tmp_path.iterdir()), "asking for help leaves nothing behind"


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_an_option_that_does_not_exist_is_wrong_usage(
    path: tuple[str, ...], tmp_path: Path
) -> None:
    if path == ("db", "psql"):
        pytest.skip("its options are psql's")
    CommandLine("", tmp_path)(*path, "--no-such-option", status=2)


def test_the_commands_stand_in_the_order_in_which_they_are_met(tmp_path: Path) -> None:
    listed = CommandLine("", tmp_path)("--help").partition("Commands:\n")[2]
    assert [line.split()[0] for line in listed.splitlines()] == list(ORDER)
    assert {path[0] for path in ALL if path} == set(ORDER)


def test_help_and_completion_do_not_wait_for_a_driver_or_a_table() -> None:
    heavy = "{'psycopg', 'rich', 'pydantic', 'sqlalchemy', 'asyncio'}"
    code = f"import sys, faultline.cli; sys.exit(' '.join({heavy} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def completed(*words: str) -> list[str]:
    """What bash is offered for the last word."""
    done = subprocess.run(
        [FAULTLINE],
        env={
            "PATH": os.environ["PATH"],
            "_FAULTLINE_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(("faultline", *words)),
            "COMP_CWORD": str(len(words)),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_tab_completes_commands_subcommands_options_and_states() -> None:
    assert completed("do") == ["doctor"]
    assert completed("jobs", "re") == ["retry", "requeue"]
    assert completed("enqueue", "--idem") == ["--idempotency-key"]
    assert completed("jobs", "list", "--state", "qu") == ["queued", "quarantined"]
    assert completed("worker", "app:app", "--log", "j") == ["json"]


def test_the_script_for_a_shell_can_be_printed() -> None:
    done = subprocess.run(
        [FAULTLINE],
        env={"PATH": os.environ["PATH"], "_FAULTLINE_COMPLETE": "source_bash"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "_FAULTLINE_COMPLETE=complete_bash" in done.stdout
    assert subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=False).returncode == 0


def test_what_the_database_says_is_one_sentence_and_never_a_traceback(
    database: str, tmp_path: Path
) -> None:
    """A session that is ended under a command, as by an administrator."""
    import psycopg

    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(f"alter database {conn.info.dbname} set statement_timeout = '1ms'")
    faultline = CommandLine(database, tmp_path)
    faultline("reconcile", "--once", status=1)
    assert faultline.said.startswith("faultline: ")
    assert faultline.said.count("\n") == 1
