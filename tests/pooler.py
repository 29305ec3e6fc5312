"""Debian's PgBouncer in transaction mode, for the tests that need a pooler in between."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from tests.ports import answers, free_port
from tests.stage import DEADLINE_SECONDS, until

needs_pgbouncer = pytest.mark.skipif(
    shutil.which("pgbouncer") is None, reason="pgbouncer is not installed"
)


@contextmanager
def pgbouncer(url: str, settings: str = "") -> Iterator[str]:
    """The URL through the pooler, for the user of this URL; these settings have the last word."""
    parts = urlsplit(url)
    folder = Path(tempfile.mkdtemp(prefix="pooler-"))  # pytest's own is for root's eyes only
    folder.chmod(0o755)
    port = free_port()
    (folder / "users.txt").write_text(f'"{parts.username}" "{parts.password}"\n')
    (folder / "bouncer.ini").write_text(
        f"[databases]\n* = host=127.0.0.1 port={parts.port}\n[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = plain\nauth_file = {folder}/users.txt\npool_mode = transaction\n"
        "default_pool_size = 3\nmax_client_conn = 100\n"
        "ignore_startup_parameters = extra_float_digits\n"
        f"{settings}\n"
    )
    as_user = {"user": "nobody", "extra_groups": []} if os.getuid() == 0 else {}
    command = ["pgbouncer", "-q", str(folder / "bouncer.ini")]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, **as_user)
    try:
        until(lambda: answers(port), "the pooler answers")
        address = f"{parts.username}:{parts.password}@127.0.0.1:{port}"
        yield urlunsplit(parts._replace(netloc=address))
    finally:
        process.terminate()
        process.wait(DEADLINE_SECONDS)
        shutil.rmtree(folder)
