"""Databases that are not there, not ours or too old: one sentence each, and never the password.

Each is tried as Python does it and as the command does it. A server older than 15 is played by a
socket that speaks the first part of PostgreSQL's protocol, to the real driver.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from faultline.connect import aconnect, connect
from faultline.errors import DatabaseUnavailable, FaultlineError, ServerTooOld
from tests.command import refusal

PASSWORD = "s3cr3t"  # in every URL here, and in no answer


def said_by_python(url: str, kind: type[FaultlineError]) -> str:
    """What `connect` and `aconnect` say, which is the same; the traceback keeps the secret too."""
    with pytest.raises(kind) as caught:
        connect(url)
    with pytest.raises(kind) as caught_async:
        asyncio.run(aconnect(url))
    said = str(caught.value)
    assert str(caught_async.value) == said
    assert "\n" not in said
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))
    return said


def said_by_the_command(url: str, home: Path) -> str:
    said = refusal("migrate", home=home, FAULTLINE_DATABASE_URL=url)
    assert PASSWORD not in said
    return said


def with_login(url: str, login: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{login}@{parts.hostname}:{parts.port}"))


@pytest.fixture
def closed_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_port_where_nobody_listens(closed_port: int, tmp_path: Path) -> None:
    url = f"postgresql://dev:{PASSWORD}@127.0.0.1:{closed_port}/db"
    for said in (said_by_python(url, DatabaseUnavailable), said_by_the_command(url, tmp_path)):
        assert f"no connection to PostgreSQL at 127.0.0.1:{closed_port}" in said
        assert "Connection refused" in said
        assert "FAULTLINE_DATABASE_URL" in said
        assert "faultline db start" in said


@pytest.mark.both_servers
def test_a_wrong_password(server_url: str, tmp_path: Path) -> None:
    url = with_login(server_url, f"postgres:{PASSWORD}")
    for said in (said_by_python(url, DatabaseUnavailable), said_by_the_command(url, tmp_path)):
        assert "refused user 'postgres'" in said
        assert "password authentication failed" in said
        assert "check user, password and database name" in said


def test_a_user_that_does_not_exist(server_url: str, tmp_path: Path) -> None:
    url = with_login(server_url, f"nobody_here:{PASSWORD}")
    assert "refused user 'nobody_here'" in said_by_python(url, DatabaseUnavailable)
    assert "refused user 'nobody_here'" in said_by_the_command(url, tmp_path)


@pytest.mark.both_servers
def test_a_database_that_does_not_exist(server_url: str, tmp_path: Path) -> None:
    url = urlunsplit(urlsplit(server_url)._replace(path="/not_there"))
    for said in (said_by_python(url, DatabaseUnavailable), said_by_the_command(url, tmp_path)):
        assert 'database "not_there" does not exist' in said
        assert "FAULTLINE_DATABASE_URL" in said
        assert str(urlsplit(url).password) not in said


@pytest.mark.parametrize(
    "url",
    [
        f"postgres//dev:{PASSWORD}@host/db",
        f"postgresql://dev:{PASSWORD}%zz@host/db",
        f"postgresql://dev:{PASSWORD}@host/db?colour=red",
        f"postgresql://dev:p@{PASSWORD}@host/db",
        f"postgresql://dev:p/{PASSWORD}@host/db",
        f"host=db password='{PASSWORD}",
        f"jdbc:postgresql://host/db?password={PASSWORD}",
    ],
)
def test_a_url_that_cannot_be_read_is_not_repeated(url: str, tmp_path: Path) -> None:
    for said in (said_by_python(url, DatabaseUnavailable), said_by_the_command(url, tmp_path)):
        assert "the database URL cannot be read" in said
        assert "postgresql://user:password@host:5432/database" in said


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def _greet(client: socket.socket, version: str) -> None:
    """No encryption, no password, my version, ready; then wait until the client leaves."""
    with client, client.makefile("rb") as received:
        while True:
            (length,) = struct.unpack("!i", received.read(4))
            (code,) = struct.unpack("!i", received.read(length - 4)[:4])
            if code >> 16 != 1234:  # neither SSLRequest nor GSSENCRequest
                break
            client.sendall(b"N")
        facts = {"server_version": version, "client_encoding": "UTF8"}
        told = [_message(b"S", f"{k}\0{v}\0".encode()) for k, v in facts.items()]
        client.sendall(b"".join([_message(b"R", struct.pack("!i", 0)), *told]))
        client.sendall(_message(b"Z", b"I"))
        received.read()


@pytest.fixture
def old_server() -> Iterator[str]:
    """A PostgreSQL 14.9, as far as a client gets to know before its first statement."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):  # the listener is closed
                while True:
                    client, _ = listener.accept()
                    threading.Thread(target=_greet, args=(client, "14.9"), daemon=True).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"postgresql://dev:{PASSWORD}@127.0.0.1:{listener.getsockname()[1]}/db"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(60)
    assert not thread.is_alive()


def test_a_server_older_than_15(old_server: str, tmp_path: Path) -> None:
    for said in (
        said_by_python(old_server, ServerTooOld),
        said_by_the_command(old_server, tmp_path),
    ):
        assert "the server is PostgreSQL 14; Faultline needs 15 or newer" in said
        assert "faultline db start" in said
