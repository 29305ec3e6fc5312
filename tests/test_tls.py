"""TLS to the database, as docs/security.md advises: a real server with a certificate of its own.

The certificate is for `localhost` and made here, by an authority of this test. The embedded server
is built without TLS, so this needs a system's PostgreSQL.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlencode

import psycopg
import pytest

from faultline import App
from faultline.errors import DatabaseUnavailable
from faultline.launcher import Server
from faultline.migrate import migrate
from tests.conftest import OPTIONS, debian_binaries
from tests.playground import TABLES
from tests.stage import Stage, until
from tests.workers import Process

x509 = pytest.importorskip("cryptography.x509")
PAGE = (Path(__file__).parent.parent / "docs" / "security.md").read_text()


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A self-signed certificate for localhost, and its key."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / f"{name}.crt", folder / f"{name}.key"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """With TLS, and its authority in tmp_path/server.crt."""
    binaries = debian_binaries()
    if binaries is None:
        pytest.skip("there is no PostgreSQL with TLS: the embedded one has none")
    with Server.temporary(binaries=binaries, options=OPTIONS) as server:
        owner = server.data.stat()
        for path in certificate(tmp_path, "server"):
            installed = server.data / path.name
            installed.write_bytes(path.read_bytes())
            installed.chmod(0o600)
            os.chown(installed, owner.st_uid, owner.st_gid)
        with psycopg.connect(server.url, autocommit=True) as conn:
            conn.execute("alter system set ssl_cert_file = 'server.crt'")
            conn.execute("alter system set ssl_key_file = 'server.key'")
            conn.execute("alter system set ssl = on")
            conn.execute("select pg_reload_conf()")
            until(lambda: conn.execute("show ssl").fetchone() == ("on",), "TLS is on")
            migrate(conn, "faultline")
            conn.execute(TABLES)
        yield server


def url(server: Server, host: str, authority: Path) -> str:
    """With the parameters that the page advises."""
    (advised,) = re.findall(r"^postgresql://\S+\?(\S+)$", PAGE, re.MULTILINE)
    parameters = dict(pair.split("=") for pair in advised.split("&"))
    assert parameters == {
        "sslmode": "verify-full",
        "sslrootcert": parameters["sslrootcert"],
        "channel_binding": "require",
    }
    address = server.url.replace("127.0.0.1", host)
    return f"{address}?{urlencode({**parameters, 'sslrootcert': str(authority)})}"


def test_a_worker_works_over_a_connection_that_is_verified(server: Server, tmp_path: Path) -> None:
    secure = url(server, "localhost", tmp_path / "server.crt")
    with App(secure) as app, Process(secure) as worker:
        job = app.enqueue("add", {"a": 1, "b": 2})
        assert job.result(timeout=60) == 3
        worker.until("job_completed", job_id=job.id)
        with Stage(server.url) as stage:
            sessions = stage.execute(
                "select ssl, count(*) from pg_stat_ssl join pg_stat_activity using (pid) "
                "where application_name ^@ 'faultline' group by 1"
            )
    assert [ssl for ssl, _ in sessions] == [True]
    assert sessions[0][1] >= 3


def test_another_name_another_authority_and_a_server_without_tls_are_refused(
    server: Server, tmp_path: Path, server_url: str
) -> None:
    stranger, _ = certificate(tmp_path, "stranger")
    authority = tmp_path / "server.crt"
    for host, trusted in (("127.0.0.1", authority), ("localhost", stranger)):
        with pytest.raises(DatabaseUnavailable, match=r"certificate"):
            App(url(server, host, trusted)).enqueue("add")
    plain = f"{server_url.replace('127.0.0.1', 'localhost')}?sslmode=verify-full"
    with pytest.raises(DatabaseUnavailable, match="SSL"):
        App(f"{plain}&sslrootcert={authority}").enqueue("add")
