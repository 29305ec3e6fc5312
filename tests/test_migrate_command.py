"""`faultline migrate`, run as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from faultline.launcher import find
from faultline.migrate import is_current, migrate
from faultline.script import SCHEMA_VERSION, migrations
from tests.command import faultline, refusal
from tests.installation import catalogue, run_one_job


def test_it_says_what_it_applied_and_then_that_nothing_was_left_to_do(
    empty_database: str, tmp_path: Path
) -> None:
    database = {"FAULTLINE_DATABASE_URL": empty_database, "FAULTLINE_SCHEMA": "faultline_c"}
    said = refusal("migrate", "--check", home=tmp_path, **database)
    assert "faultline_c" in said
    assert "run `faultline migrate`" in said
    names = ", ".join(migration.name for migration in migrations())
    applied = f"schema faultline_c: applied {names}; functions, views and roles replaced\n"
    assert faultline("migrate", home=tmp_path, **database) == applied
    again = faultline("migrate", home=tmp_path, **database)
    assert again == f"schema faultline_c: already at version {SCHEMA_VERSION}\n"
    checked = faultline("migrate", "--check", home=tmp_path, **database)
    assert checked.endswith(f"at version {SCHEMA_VERSION}\n")
    with psycopg.connect(empty_database, autocommit=True) as conn:
        conn.execute("comment on schema faultline_c is 'faultline-queue 0.0.9'")
        refusal("migrate", "--check", home=tmp_path, **database)
        said = faultline("migrate", home=tmp_path, **database)
        assert f"tables already at version {SCHEMA_VERSION}; functions" in said
        run_one_job(conn, "faultline_c")


@pytest.mark.both_servers
def test_the_printed_script_makes_the_same_installation_as_migrate(
    empty_database: str, tmp_path: Path
) -> None:
    """Both in one database, one after the other, and the schema's name is the same."""
    text = tmp_path / "faultline.sql"
    text.write_text(faultline("migrate", "--sql", home=tmp_path), "utf-8")
    with psycopg.connect(empty_database, autocommit=True) as conn:
        migrate(conn, "faultline")
        made = catalogue(conn, "faultline")
        conn.execute("drop schema faultline cascade")
        psql = [find(None).program("psql"), "-X", "-v", "ON_ERROR_STOP=1", "-d", empty_database]
        done = subprocess.run([*psql, "-f", text], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        printed = catalogue(conn, "faultline")
        times = [made.pop("migrations"), printed.pop("migrations")]
        assert printed == made
        assert len(times[0]) == len(times[1]) == SCHEMA_VERSION
        assert is_current(conn, "faultline")
        run_one_job(conn, "faultline")


def test_without_a_database_it_says_what_to_set_or_start(tmp_path: Path) -> None:
    said = refusal("migrate", home=tmp_path)
    assert "FAULTLINE_DATABASE_URL" in said
    assert "faultline db start" in said


@pytest.mark.parametrize("name", ["No-Such", "pg_catalog"])
def test_a_bad_schema_name_is_one_sentence(name: str, tmp_path: Path) -> None:
    assert name in refusal("migrate", "--sql", home=tmp_path, FAULTLINE_SCHEMA=name)


def test_check_and_sql_together_are_wrong_usage(tmp_path: Path) -> None:
    assert "--check" in faultline("migrate", "--check", "--sql", home=tmp_path, status=2)


def test_help_does_not_wait_for_a_database_driver() -> None:
    probe = "import sys, faultline.cli; sys.exit('psycopg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0
