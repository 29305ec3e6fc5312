"""Where it is played: an installation of its own, which goes again with everything beside it.

On a database of the user's that is a schema with a name that nobody else has: his installation, its
jobs and its workers never meet the demo, and neither do two demos.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from psycopg import sql

from faultline.config import Settings
from faultline.connect import connect
from faultline.demo.shop import SETUP
from faultline.launcher import Server
from faultline.migrate import migrate
from faultline.script import ROLES


class Ground(NamedTuple):
    """A database, and the schema of an installation that is only the demo's."""

    url: str
    schema: str


@contextmanager
def database(settings: Settings) -> Iterator[str]:
    """The user's database, or an embedded server that ends with this block."""
    if settings.database_url is not None:
        yield settings.database_url
        return
    with Server.temporary(binaries=settings.binaries, options={"max_connections": "400"}) as server:
        yield server.url


@contextmanager
def installation(settings: Settings) -> Iterator[Ground]:
    """Faultline in a schema of its own; that, its roles and what stands beside it go again."""
    with database(settings) as url:
        ground = Ground(url, f"faultline_demo_{secrets.token_hex(6)}")
        try:
            _install(ground)
            yield ground
        finally:
            if settings.database_url is not None:  # else the whole server goes
                _clear_up(ground)


@contextmanager
def shop(settings: Settings) -> Iterator[Ground]:
    """An installation, and the shop's own table beside it."""
    with installation(settings) as ground:
        with connect(ground.url, schema=None) as conn:
            conn.execute(SETUP.format(schema=ground.schema))
        yield ground


def _install(ground: Ground) -> None:
    """With roles only for a superuser, whom migrate does not let own the functions."""
    with connect(ground.url, schema=None) as conn:
        asked = conn.execute("select rolsuper from pg_roles where rolname = current_user")
        migrate(conn, ground.schema, roles=asked.fetchone() == (True,))


def _clear_up(ground: Ground) -> None:
    """All of it, or whatever is there already."""
    with connect(ground.url, schema=None) as conn, conn.transaction():
        beside = conn.execute(_SCHEMAS, (ground.schema, f"{ground.schema}_")).fetchall()
        for (schema,) in beside:
            conn.execute(sql.SQL("drop schema {} cascade").format(sql.Identifier(schema)))
        names = [f"{ground.schema}_{role}" for role in (*ROLES, "owner")]
        for (role,) in conn.execute(_ROLES, (names,)).fetchall():
            conn.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))


_SCHEMAS = "select nspname from pg_namespace where nspname = %s or starts_with(nspname, %s)"
_ROLES = "select rolname from pg_roles where rolname = any (%s)"
