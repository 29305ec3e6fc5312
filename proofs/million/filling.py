"""Tables as they are after weeks of work, filled at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from psycopg import Connection

_FILL = Path(__file__).with_name("fill.sql").read_text("utf-8")


def fill(conn: Connection[Any], schema: str, jobs: int) -> None:
    """So many jobs in an empty installation; the connection is the owner's or a superuser's."""
    statements = _FILL.replace("{schema}", schema).replace("{jobs}", str(jobs))
    with conn.transaction():
        conn.execute(statements.encode())
