"""A fence in another PostgreSQL, for the transaction that writes there.

    with psycopg.connect(elsewhere) as conn:
        fence(conn, ctx)                            # first; await afence(conn, ctx) with asyncio
        conn.execute("insert into shipments …")
                                                    # committed here

The highest token of each job is kept in the table `faultline_seen` of that database
(`create_table`, once). `fence` raises it, or raises StaleLease if it is higher already, and keeps
its row locked until the transaction ends: an earlier attempt waits and is refused, a later one
waits and then goes on. In REPEATABLE READ and SERIALIZABLE a transaction that began too early gets
PostgreSQL's own serialization failure instead.

Not in a savepoint that may be rolled back: that would give the lock, and the token, back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from faultline.errors import InvalidArgument, StaleLease

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection

    from faultline.context import Context

_TABLE = """
create table if not exists faultline_seen (
    job_id uuid primary key,
    token bigint not null,
    seen_at timestamptz not null default statement_timestamp()
)
"""
# The row is locked also when the condition does not hold, so the second statement finds it.
_RAISE = """
insert into faultline_seen as seen (job_id, token) values (%s, %s)
    on conflict (job_id) do update set token = excluded.token, seen_at = excluded.seen_at
    where seen.token <= excluded.token
returning seen.token
"""
_LOOK = "select token from faultline_seen where job_id = %s"


def create_table(connection: Connection[Any]) -> None:
    """Make `faultline_seen`, unless it is there; the caller commits."""
    connection.execute(_TABLE)


async def acreate_table(connection: AsyncConnection[Any]) -> None:
    """As `create_table`, for asyncio."""
    await connection.execute(_TABLE)


def fence(connection: Connection[Any], ctx: Context) -> None:
    """Nobody with a lower token of this job commits after this transaction; or StaleLease."""
    _insist_on_a_transaction(connection)
    with connection.cursor(row_factory=tuple_row) as cursor:
        if cursor.execute(_RAISE, (ctx.job_id, ctx.token)).fetchone() is None:
            raise _stale(ctx, cursor.execute(_LOOK, (ctx.job_id,)).fetchone())


async def afence(connection: AsyncConnection[Any], ctx: Context) -> None:
    """As `fence`, for asyncio."""
    _insist_on_a_transaction(connection)
    async with connection.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(_RAISE, (ctx.job_id, ctx.token))
        if await cursor.fetchone() is None:
            await cursor.execute(_LOOK, (ctx.job_id,))
            raise _stale(ctx, await cursor.fetchone())


def _insist_on_a_transaction(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    idle = connection.info.transaction_status == TransactionStatus.IDLE
    if connection.autocommit and idle:
        raise InvalidArgument(
            "a fence lasts as long as its transaction, and this connection commits each statement "
            "by itself: call it inside `with connection.transaction()`, before what you write"
        )


def _stale(ctx: Context, row: tuple[Any, ...] | None) -> StaleLease:
    return StaleLease(ctx.job_id, ctx.token, row[0] if row else None, "token_mismatch", "postgres")
