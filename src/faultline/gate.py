"""The write gate, for a user's own transaction: call it last, then commit.

    with psycopg.connect(...) as conn, conn.transaction():
        conn.execute("insert into charges …")
        assert_fence(conn, job_id, token)

Not inside a savepoint that may be rolled back: that would give the lock back. The driver is
imported on first use, so that `import faultline` stays quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from faultline.caller import insist_on_transaction
from faultline.config import DEFAULT_SCHEMA

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection


def assert_fence(
    connection: Connection[Any], job_id: UUID, token: int, *, schema: str = DEFAULT_SCHEMA
) -> None:
    """Raise StaleLease unless the lease is alive; else nobody reclaims it before the commit."""
    from faultline.protocol import Protocol

    insist_on_transaction(connection)
    Protocol(schema).assert_fence(job_id, token).run(connection)


async def aassert_fence(
    connection: AsyncConnection[Any], job_id: UUID, token: int, *, schema: str = DEFAULT_SCHEMA
) -> None:
    """As `assert_fence`, for asyncio."""
    from faultline.protocol import Protocol

    insist_on_transaction(connection)
    await Protocol(schema).assert_fence(job_id, token).arun(connection)
