"""The pytest plugin, in projects of its own: real pytest runs that know nothing of this suite."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg

APP = """
    from faultline import App

    app = App()

    @app.task
    def add(a: int, b: int) -> int:
        return a + b
"""
TESTS = """
    import pytest
    from faultline import App
    from shop import add, app

    @pytest.mark.parametrize("number", range(3))
    def test_each_test_has_a_database_of_its_own(faultline_testing, number):
        testing = faultline_testing(app)
        assert testing.jobs() == []
        assert testing.run(add.enqueue(1, number)).result == 1 + number

    def test_all_apps_of_a_test_share_its_database(faultline_testing, faultline_url):
        testing = faultline_testing(app)
        job = App(faultline_url).enqueue("add", {"a": 1, "b": 2})
        assert testing.drain() == [(job.id, "succeeded")]

    def test_inline(faultline_testing):
        faultline_testing(app, inline=True)
        assert add.enqueue(1, 2).result(1) == 3
"""


def project(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        lines = text.splitlines()
        (folder / f"{name}.py").write_text("\n".join(line[4:] for line in lines) + "\n")
    return folder


def run(folder: Path, *arguments: str) -> str:
    """What pytest says at the end of a run in this folder."""
    command = [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *arguments], cwd=folder, capture_output=True, text=True, timeout=300
    )
    return done.stdout + done.stderr


def test_a_test_gets_a_database_of_its_own_and_leaves_none(tmp_path: Path, server_url: str) -> None:
    naming = """
    import pytest

    @pytest.fixture(autouse=True)
    def named(faultline_url):
        from faultline.testing.databases import _templates

        with open("names", "a") as file:
            print(faultline_url.rpartition("/")[2], *_templates.values(), file=file)
    """
    folder = project(tmp_path, shop=APP, test_shop=TESTS, conftest=naming)
    said = run(folder, "--faultline-url", server_url)
    assert "5 passed" in said, said
    names = set((folder / "names").read_text().split())
    assert len(names) == 6  # five databases and a template
    with psycopg.connect(server_url) as conn:
        assert not names & {row[0] for row in conn.execute("select datname from pg_database")}


def test_the_server_can_be_named_in_the_ini_file(tmp_path: Path, server_url: str) -> None:
    project(tmp_path, shop=APP, test_shop=TESTS)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nfaultline_url = {server_url}\n")
    said = run(tmp_path)
    assert "5 passed" in said, said


def test_without_a_server_each_xdist_worker_starts_one_and_ends_it(tmp_path: Path) -> None:
    servers = """
    import pytest

    @pytest.fixture(autouse=True)
    def named(faultline_server):
        from faultline.testing.databases import _embedded

        with open("homes", "a") as file:
            print(_embedded[0].home, file=file)
    """
    folder = project(tmp_path, shop=APP, test_shop=TESTS, conftest=servers)
    said = run(folder, "-n", "2")
    assert "5 passed" in said, said
    homes = set((folder / "homes").read_text().split())
    assert len(homes) == 2
    assert not [home for home in homes if Path(home).exists()]


def test_a_project_that_uses_no_fixture_loads_no_driver_and_starts_no_server(
    tmp_path: Path,
) -> None:
    plain = """
    import sys

    def test_nothing_was_loaded():
        assert "faultline.pytest_plugin" in sys.modules
        wanted = {"psycopg", "psycopg_pool", "faultline.testing", "faultline.launcher"}
        assert not wanted & sys.modules.keys()
    """
    said = run(project(tmp_path, test_plain=plain))
    assert "1 passed" in said, said
