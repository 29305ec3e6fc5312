"""`faultline migrate`: bring the installation to this version, say whether it is, or print the SQL.

What is done, and what is refused, is in `faultline.migrate`; this only chooses and prints.
"""

from __future__ import annotations

from typing import Annotated

import typer

from faultline.cli.database import open_database
from faultline.config import Settings
from faultline.errors import SchemaMismatch


def migrate(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit status 1 unless up to date.")
    ] = False,
    as_sql: Annotated[
        bool, typer.Option("--sql", help="Print the script instead; needs no database.")
    ] = False,
    no_roles: Annotated[
        bool,
        typer.Option("--no-roles", help="Make no roles; whoever migrates owns and uses it all."),
    ] = False,
) -> None:
    """Install Faultline in the database, or bring it to this version.

    In one transaction, and as often as you like: workers go on working meanwhile. The database is
    FAULTLINE_DATABASE_URL or the embedded server, the schema FAULTLINE_SCHEMA or faultline.

    \b
    Example:
      faultline migrate
      faultline migrate --check || echo "not up to date"
      faultline migrate --sql > faultline.sql && psql -v ON_ERROR_STOP=1 -f faultline.sql
    """
    if check and as_sql:
        raise typer.BadParameter("--check and --sql exclude each other")
    settings = Settings.from_environment()
    if as_sql:
        typer.echo(_as_sql(settings.schema, roles=not no_roles))
    elif check:
        typer.echo(_check(settings))
    else:
        typer.echo(bring_up_to_date(settings, roles=not no_roles))


def _as_sql(schema: str, *, roles: bool) -> str:
    from faultline.script import fingerprint, script

    head = f"-- {fingerprint(schema)}\n-- Run it with: psql -v ON_ERROR_STOP=1 -f <this file>"
    return "\n\n".join([head, "begin;", *script(schema, roles=roles), "commit;"])


def _check(settings: Settings) -> str:
    from faultline.connect import schema_missing
    from faultline.migrate import inspect, is_current
    from faultline.script import SCHEMA_VERSION, fingerprint

    with open_database(settings) as conn:
        if not is_current(conn, settings.schema):
            if not inspect(conn, settings.schema):  # newer, or not ours: it says so itself
                raise schema_missing(settings.schema)
            raise SchemaMismatch(
                f"schema {settings.schema!r} of this database is not exactly "
                f"{fingerprint(settings.schema)}: run `faultline migrate`"
            )
    return f"schema {settings.schema}: at version {SCHEMA_VERSION}"


def _say_that_it_waits() -> None:
    typer.echo("somebody holds what has to be changed; trying again for a minute …", err=True)


def bring_up_to_date(settings: Settings, *, roles: bool = True) -> str:
    """Migrate; answers with a sentence about what that took."""
    from faultline.migrate import is_current, migrate
    from faultline.script import SCHEMA_VERSION

    with open_database(settings) as conn:
        was_current = is_current(conn, settings.schema)
        applied = migrate(conn, settings.schema, roles=roles, on_wait=_say_that_it_waits)
    replaced = f"functions, views{' and roles' if roles else ''} replaced"
    if applied:
        return f"schema {settings.schema}: applied {', '.join(applied)}; {replaced}"
    if was_current:
        return f"schema {settings.schema}: already at version {SCHEMA_VERSION}"
    return f"schema {settings.schema}: tables already at version {SCHEMA_VERSION}; {replaced}"
