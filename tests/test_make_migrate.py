"""Which database `make migrate` takes, run as a user runs it; only Docker's answers are played."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from faultline.launcher import Server
from faultline.script import SCHEMA_VERSION

ROOT = Path(__file__).parent.parent
# What `docker compose version`, `ps` and `run` do.
RUNS = 'case "$2" in ps) echo 0123456789ab;; run) echo "ran: $*";; esac'
NOTHING_RUNS = "exit 0"
NO_COMPOSE = "echo \"docker: 'compose' is not a docker command.\" >&2; exit 1"
NO_ENGINE = '[ "$2" = version ] || { echo "Cannot connect to the Docker daemon" >&2; exit 1; }'


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Of an embedded server of this test's own."""
    home = tmp_path / "home"
    yield home
    Server(home, ephemeral=False).stop(patience_seconds=5)


def make_migrate(home: Path, docker: str, **given: str) -> subprocess.CompletedProcess[str]:
    """Beside a `docker` that answers like this."""
    played = home.parent / "docker"
    played.write_text(f"#!/bin/sh\n{docker}\n")
    played.chmod(0o755)
    path = f"{home.parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [ROOT / "scripts" / "migrate.sh"],
        env={"PATH": path, "FAULTLINE_HOME": str(home), **given},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_database_that_is_named_wins_over_one_that_runs(
    home: Path, empty_database: str
) -> None:
    done = make_migrate(home, RUNS, FAULTLINE_DATABASE_URL=empty_database)
    assert done.returncode == 0, done.stderr
    assert "schema faultline: applied" in done.stdout
    assert done.stderr == "migrating the database of FAULTLINE_DATABASE_URL\n", "not its password"


def test_compose_yml_is_migrated_where_it_runs(home: Path) -> None:
    done = make_migrate(home, RUNS)
    assert (done.returncode, done.stdout) == (0, "ran: compose run --rm --no-deps migrate\n")
    assert done.stderr == "migrating the database of compose.yml, which runs here\n"


def test_when_docker_cannot_tell_nothing_is_migrated_and_it_says_why(home: Path) -> None:
    done = make_migrate(home, NO_ENGINE)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Cannot connect to the Docker daemon" in done.stderr
    assert "so nothing was migrated" in done.stderr
    assert not home.exists(), "no embedded server was made"


@pytest.mark.parametrize("docker", [NOTHING_RUNS, NO_COMPOSE])
def test_where_nothing_of_compose_yml_runs_it_is_the_embedded_server(
    home: Path, docker: str
) -> None:
    done = make_migrate(home, docker)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("migrating the embedded server's database\n")
    assert "schema faultline: applied" in done.stdout
    again = make_migrate(home, docker)
    assert f"schema faultline: already at version {SCHEMA_VERSION}" in again.stdout
