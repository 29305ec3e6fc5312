"""Real servers for the tests: one embedded PostgreSQL 18 for the whole run, and a second one (by
default a 15) where there is one.

The run's first process starts them; xdist's workers are told their addresses. Each test gets a
database of its own, copied from a migrated template, and a `Stage` to play on.
FAULTLINE_TEST_SERVERS (JSON, name → URL) uses servers that are running already, and
FAULTLINE_TEST_TEMPLATE a migrated database that they have already.

All that is written is in memory where there is room: a database is copied ten times faster there.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from faultline.launcher import Server
from faultline.migrate import migrate
from tests.stage import Stage

# Durability is not under test here: killing a process loses nothing that was written.
OPTIONS = {
    "fsync": "off",
    "max_connections": "600",  # one server for all that run at once; a duel alone takes a hundred
    "shared_buffers": "128MB",
    "autovacuum": "off",
    "deadlock_timeout": "200ms",
}
Administrator = Callable[[str], psycopg.Connection[Any]]

# A shell that runs this in the background makes it ignore Ctrl-C, and with it the processes whose
# Ctrl-C is tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
MEMORY = Path("/dev/shm")
ROOM = 4 << 30  # bytes; a whole run keeps less than half of it
_scratch = pytest.StashKey[Path]()
_servers = pytest.StashKey[list[Server]]()
_urls = pytest.StashKey[dict[str, str]]()
_template = pytest.StashKey[str]()
_guest_of = pytest.StashKey[list[str]]()  # servers of others, on which this run made its template


def debian_binaries() -> Path | None:
    """The second server version: FAULTLINE_TEST_PG_BIN, or Debian's PostgreSQL 15."""
    if named := os.environ.get("FAULTLINE_TEST_PG_BIN"):
        return Path(named)
    debian = Path("/usr/lib/postgresql/15/bin")
    return debian if shutil.which("postgres", path=debian) else None


def pytest_configure(config: pytest.Config) -> None:
    """Start the servers, unless this is a worker of a run that has them."""
    config.addinivalue_line("markers", "both_servers: also run on the second PostgreSQL version")
    if hasattr(config, "workerinput"):
        config.stash[_urls], config.stash[_template] = json.loads(config.workerinput["faultline"])
        return
    config.stash[_template] = f"template_{uuid.uuid4().hex}"
    config.stash[_urls] = {"18": "", "15": ""}
    if config.option.collectonly:
        return
    _use_memory(config)
    if given := os.environ.get("FAULTLINE_TEST_SERVERS"):
        config.stash[_urls] = json.loads(given)
    else:
        servers = _start_servers()
        config.stash[_servers] = list(servers.values())
        config.stash[_urls] = {name: server.url for name, server in servers.items()}
    if given := os.environ.get("FAULTLINE_TEST_TEMPLATE"):
        config.stash[_template] = given
        return
    if _servers not in config.stash:
        config.stash[_guest_of] = list(config.stash[_urls].values())
    for url in config.stash[_urls].values():
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute(f"create database {config.stash[_template]}")
        with psycopg.connect(database_url(url, config.stash[_template]), autocommit=True) as conn:
            migrate(conn, "faultline")
            conn.execute("update faultline.setting set lease_seconds_floor = 0.001")


def pytest_configure_node(node: object) -> None:
    """xdist: tell a worker where the servers are."""
    stash = node.config.stash
    node.workerinput["faultline"] = json.dumps([stash[_urls], stash[_template]])


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop what was started here; other servers are left as they were."""
    for url in config.stash.get(_guest_of, []):
        with suppress(psycopg.Error), psycopg.connect(url, autocommit=True) as conn:
            conn.execute(f"drop database {config.stash[_template]}")
    for server in config.stash.get(_servers, []):
        server.stop()
    if (scratch := config.stash.get(_scratch, None)) is not None:
        shutil.rmtree(scratch, ignore_errors=True)


def _use_memory(config: pytest.Config) -> None:
    """Temporary files of this run, and of the processes it starts, go there, if there is room."""
    for left in MEMORY.glob("faultline-suite-*"):  # by a run that was killed
        if not Path("/proc", left.name.rpartition("-")[2]).exists():
            shutil.rmtree(left, ignore_errors=True)
    if "TMPDIR" in os.environ or not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < ROOM:
        return
    config.stash[_scratch] = scratch = MEMORY / f"faultline-suite-{os.getpid()}"
    scratch.mkdir()
    scratch.chmod(0o1777)  # root's servers are run by somebody else
    os.environ["TMPDIR"] = str(scratch)
    tempfile.tempdir = None  # ask again


def _start_servers() -> dict[str, Server]:
    options = {**OPTIONS, "wal_level": "minimal", "max_wal_senders": "0"}
    servers = {"18": Server.temporary(options=options)}
    if (binaries := debian_binaries()) is not None:
        second = Server.temporary(binaries=binaries, options=options)
        major = str(second.binaries.major)
        servers[major if major not in servers else f"{major}, installed"] = second
    for server in servers.values():
        server.start()
    return servers


def database_url(url: str, name: str) -> str:
    """The same server, another database."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test marked both_servers runs on each server there is, any other on the newest."""
    if "server_url" in metafunc.fixturenames:
        urls = metafunc.config.stash[_urls]
        both = metafunc.definition.get_closest_marker("both_servers") is not None
        names = list(urls) if both else list(urls)[:1]
        metafunc.parametrize("server_url", names, indirect=True)


@pytest.fixture
def server_url(request: pytest.FixtureRequest) -> str:
    """The superuser's URL of a running server."""
    return request.config.stash[_urls][request.param]


@pytest.fixture(scope="session")
def newest_server_url(request: pytest.FixtureRequest) -> str:
    """The superuser's URL of the newest server, for a fixture that several tests share."""
    return next(iter(request.config.stash[_urls].values()))


@pytest.fixture(scope="session")
def administrator() -> Iterator[Administrator]:
    """One connection to each server for all tests of this process: it makes their databases."""
    with ExitStack() as connections:

        @cache
        def connect(url: str) -> psycopg.Connection[Any]:
            return connections.enter_context(psycopg.connect(url, autocommit=True))

        yield connect


@pytest.fixture
def empty_database(administrator: Administrator, server_url: str) -> Iterator[str]:
    """A database of this test's own, with nothing in it."""
    yield from _fresh_database(administrator, server_url, "template1")


@pytest.fixture
def database(
    administrator: Administrator, server_url: str, request: pytest.FixtureRequest
) -> Iterator[str]:
    """A database of this test's own, migrated."""
    yield from _fresh_database(administrator, server_url, request.config.stash[_template])


@pytest.fixture
def elsewhere(administrator: Administrator, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database that is not the jobs': on the second server, if there is one."""
    url = list(request.config.stash[_urls].values())[-1]
    yield from _fresh_database(administrator, url, "template1")


def _fresh_database(administrator: Administrator, url: str, template: str) -> Iterator[str]:
    name = f"t_{uuid.uuid4().hex}"
    # As files: 12 ms of work instead of 30 through the WAL.
    administrator(url).execute(f"create database {name} template {template} strategy file_copy")
    yield database_url(url, name)
    with suppress(psycopg.OperationalError):
        administrator(url).execute(f"drop database {name} with (force)")


@pytest.fixture
def stage(database: str) -> Iterator[Stage]:
    """The migrated database with a superuser's connection, and the verbs."""
    with Stage(database) as stage:
        yield stage
