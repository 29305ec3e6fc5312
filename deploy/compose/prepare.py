"""After `migrate`: a login of its own for each component, with no more rights than it needs, and
the tables of the application. Run again, it sets the passwords that the environment has by then.

    python prepare.py tables.sql

The password of a login is in LOGIN_PASSWORD (WORKER_PASSWORD …); it reaches the server only as a
SCRAM verifier, so that no log has it. A password or token that is there and empty, also of somebody
who waits for this, is refused: a line of .env that was not filled in is no choice.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psycopg
from psycopg import sql

LOGINS = {
    "api": ("faultline_reader", "faultline_producer", "faultline_operator", "pg_read_all_stats"),
    "inspector": ("faultline_reader", "pg_read_all_stats"),
    "reconciler": ("faultline_worker",),
    "worker": ("faultline_worker",),
}


def main(files: list[str]) -> None:
    """All of it in one transaction, if no password or token is empty."""
    secrets = {name for name in os.environ if name.endswith(("_PASSWORD", "_TOKEN"))}
    if empty := sorted(name for name in secrets if not os.environ[name]):
        sys.exit(f"empty: {', '.join(empty)}; fill them in in .env, or leave them out of it")
    with psycopg.connect(os.environ["FAULTLINE_DATABASE_URL"]) as conn:
        for login, groups in LOGINS.items():
            make_login(conn, login, groups, os.environ[f"{login.upper()}_PASSWORD"])
        for file in files:
            conn.execute(Path(file).read_bytes())
    print(f"logins: {', '.join(LOGINS)}")


def make_login(
    conn: psycopg.Connection, login: str, groups: tuple[str, ...], password: str
) -> None:
    """The login, made if it is not there, with this password and exactly these groups."""
    name = sql.Identifier(login)
    if conn.execute("select from pg_roles where rolname = %s", (login,)).fetchone() is None:
        conn.execute(sql.SQL("create role {}").format(name))
    verifier = conn.pgconn.encrypt_password(password.encode(), login.encode(), b"scram-sha-256")
    conn.execute(
        sql.SQL("alter role {} login password {}").format(name, sql.Literal(verifier.decode()))
    )
    member_of = "select roleid::regrole::text from pg_auth_members where member = %s::regrole"
    for (group,) in conn.execute(member_of, (login,)).fetchall():
        conn.execute(sql.SQL("revoke {} from {}").format(sql.Identifier(group), name))
    for group in groups:
        conn.execute(sql.SQL("grant {} to {}").format(sql.Identifier(group), name))


if __name__ == "__main__":
    main(sys.argv[1:])
