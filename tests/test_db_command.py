"""`faultline db`, run as a user runs it: a process, its exit status and what it prints."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from faultline import __version__
from faultline.launcher import Server, find

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
IN_A_MOUNT_NAMESPACE = ["unshare", "--mount", "sh", "-ec"]


class Command:
    """`faultline` with a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        self.environment = kept | {"FAULTLINE_HOME": str(home)}
        if "PYTHONPATH" in os.environ:
            self.environment["PYTHONPATH"] = os.environ["PYTHONPATH"]

    def __call__(self, *arguments, status=0, prefix=(), **environment):
        done = subprocess.run(
            [*prefix, sys.executable, "-m", "faultline", *arguments],
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr if status == 1 else done.stdout


@pytest.fixture
def faultline(tmp_path):
    home = tmp_path / "home"
    yield Command(home)
    for ephemeral in (False, True):
        Server(home, ephemeral=ephemeral).stop(patience_seconds=5)


def is_one_sentence(said):
    return said.startswith("faultline: ") and said.count("\n") == 1


def can_mount():
    probe = [*IN_A_MOUNT_NAMESPACE, "mount -t tmpfs none /mnt"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def test_a_kept_server_outlives_the_command_and_its_data_outlives_a_stop(faultline):
    assert faultline("db", "start").startswith("started: PostgreSQL ")
    assert faultline("db", "start").startswith("already running: ")
    url = faultline("db", "url").strip()
    with psycopg.connect(url) as connection:
        connection.execute("create table kept as select 7 as n")
    facts = json.loads(faultline("db", "status", "--json"))
    assert facts["running"] is True
    assert facts["data"] == str(faultline.home / "postgres")
    assert os.getsid(facts["pid"]) != os.getsid(0)
    assert faultline("db", "stop") == "stopped: the kept server\n"
    assert faultline("db", "start").startswith("started: ")
    assert faultline("db", "url").strip() == url
    assert faultline("db", "psql", "-Atc", "select n from kept") == "7\n"


def test_a_home_without_a_server_says_so_and_a_stop_is_no_error(faultline):
    assert faultline("db", "stop") == "not running\n"
    assert "faultline db start" in faultline("db", "status", status=3)
    assert json.loads(faultline("db", "status", "--json", status=3))["running"] is False
    assert "faultline db start" in faultline("db", "url", status=1)
    assert not faultline.home.exists()


def test_ephemeral_data_is_gone_after_a_stop_and_after_a_crash(faultline):
    faultline("db", "start", "--ephemeral")
    faultline("db", "psql", "-c", "create table kept as select 7 as n")
    assert "stop it first" in faultline("db", "start", status=1)
    facts = json.loads(faultline("db", "status", "--json"))
    assert facts["ephemeral"] is True
    os.kill(facts["pid"], signal.SIGKILL)
    faultline("db", "start", "--ephemeral")
    assert faultline("db", "psql", "-Atc", "select to_regclass('kept') is null") == "t\n"
    assert faultline("db", "stop") == "stopped: the ephemeral server\n"
    assert not (faultline.home / "ephemeral").exists()


def test_an_ephemeral_server_that_died_is_discarded_by_the_next_start_of_a_kept_one(faultline):
    faultline("db", "start", "--ephemeral")
    os.kill(json.loads(faultline("db", "status", "--json"))["pid"], signal.SIGKILL)
    faultline("db", "start")
    assert not (faultline.home / "ephemeral").exists()
    assert (faultline.home / "postgres").exists()


def test_psql_goes_where_the_environment_says(faultline):
    faultline("db", "start", "--ephemeral")
    url = faultline("db", "url").strip().removesuffix("/postgres") + "/template1"
    database = ("db", "psql", "-Atc", "select current_database()")
    assert faultline(*database, FAULTLINE_DATABASE_URL=url) == "template1\n"
    assert faultline(*database) == "postgres\n"


def test_every_command_explains_itself_with_an_example_and_without_colours(faultline):
    commands = [("db", name) for name in ("start", "stop", "status", "url", "psql")]
    for command in [(), *commands]:
        said = faultline(*command, "--help")
        assert "Example:" in said
        assert "\x1b" not in said
    assert faultline("--version") == f"faultline {__version__}\n"
    faultline("db", "nonsense", status=2)


def test_the_command_line_is_imported_without_a_driver():
    code = "import sys, faultline.cli; sys.exit('psycopg' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_data_of_another_major_version_is_refused_with_both_versions_named(faultline):
    faultline("db", "start")
    faultline("db", "stop")
    (faultline.home / "postgres" / "PG_VERSION").write_text("14\n")
    said = faultline("db", "start", status=1)
    assert is_one_sentence(said)
    assert "PostgreSQL 14" in said
    assert f"PostgreSQL {find().major}" in said
    assert "FAULTLINE_PG_BIN" in said
    assert "FAULTLINE_HOME" in said


def test_a_directory_that_is_no_data_directory_is_left_alone(faultline):
    theirs = faultline.home / "postgres" / "thesis.txt"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("the only copy")
    assert "move it away" in faultline("db", "start", status=1)
    assert theirs.read_text() == "the only copy"


def test_a_directory_without_server_binaries_is_named(faultline, tmp_path):
    said = faultline("db", "start", status=1, FAULTLINE_PG_BIN=str(tmp_path))
    assert is_one_sentence(said)
    assert str(tmp_path) in said
    assert "faultline-queue[embedded]" in said


def test_a_home_that_cannot_be_made_is_one_sentence(faultline, tmp_path):
    (tmp_path / "file").write_text("")
    said = faultline("db", "start", status=1, FAULTLINE_HOME=str(tmp_path / "file" / "home"))
    assert is_one_sentence(said)
    assert "FAULTLINE_HOME" in said


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_home_that_cannot_be_written_is_one_sentence(faultline):
    faultline.home.mkdir(mode=0o500)
    said = faultline("db", "start", status=1)
    faultline.home.chmod(0o700)
    assert is_one_sentence(said)
    assert "FAULTLINE_HOME" in said


@needs_root
def test_a_full_disk_is_one_sentence_and_leaves_nothing_half_made(faultline, tmp_path):
    if not can_mount():
        pytest.skip("this container does not let root mount")
    small = tmp_path / "small"
    small.mkdir()
    mounted = f'mount -t tmpfs -o size=12m none {small}; "$@" || status=$?; ls -A {small}/home >&2'
    prefix = [*IN_A_MOUNT_NAMESPACE, f"{mounted}; exit $status", "sh"]
    said = faultline("db", "start", status=1, prefix=prefix, FAULTLINE_HOME=str(small / "home"))
    sentence, *left = said.splitlines()
    assert "disk" in sentence
    assert "full" in sentence
    assert left == ["lock", "password"]


@needs_root
def test_a_machine_without_any_postgresql_is_told_what_to_install(faultline, tmp_path):
    if not can_mount():
        pytest.skip("this container does not let root mount")
    hidden = [str(find().directory.parent), "/usr/lib/postgresql"]
    mounts = [f"mount -t tmpfs none {path}" for path in hidden if Path(path).is_dir()]
    script = " && ".join([*mounts, 'exec "$@"'])
    said = faultline("db", "start", status=1, prefix=[*IN_A_MOUNT_NAMESPACE, script, "sh"])
    assert is_one_sentence(said)
    assert "faultline-queue[embedded]" in said
    assert "FAULTLINE_PG_BIN" in said


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_control_c_while_another_process_starts_is_130_without_a_traceback(faultline):
    faultline.home.mkdir()
    with (faultline.home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        start = subprocess.Popen(
            [sys.executable, "-m", "faultline", "db", "start"],
            env=faultline.environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_until_it_opens(start.pid, faultline.home / "lock")
        start.send_signal(signal.SIGINT)
        _, said = start.communicate(timeout=60)
    assert start.returncode == 130
    assert said == ""


def wait_until_it_opens(pid, path):
    deadline = time.monotonic() + 60
    while str(path) not in [os.path.realpath(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()]:
        assert time.monotonic() < deadline, f"process {pid} never opened {path}"
        time.sleep(0.02)
