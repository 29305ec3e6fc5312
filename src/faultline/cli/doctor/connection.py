"""Checks of the way to the server: versions, clocks, a pooler in between, and LISTEN."""

from __future__ import annotations

import secrets
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from faultline import __version__
from faultline.cli.doctor.finding import Finding, Probe
from faultline.log import duration

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.rows import TupleRow

_ROUND_TRIP_SECONDS = 3.0
_CLOCK_SECONDS = 2.0
_IDS_AHEAD_SECONDS = 3600.0  # ids whose clock is off by more are not kept; see accepted_id
_IDS_BEHIND_SECONDS = 86400.0


def server(probe: Probe) -> Finding:
    """Which server this is, and which client."""
    from psycopg import pq

    info = probe.conn.info
    version, name = probe.row("select current_setting('server_version'), current_database()")
    return Finding(
        "server",
        "ok",
        f"PostgreSQL {str(version).split()[0]} at {info.host or 'a local socket'}:{info.port}, "
        f"database {name}; faultline {__version__}, libpq {pq.version() // 10_000}",
    )


def clock(probe: Probe) -> Finding:
    """How far this machine's clock is from the server's, which is the one that counts."""
    before = time.time()
    (theirs,) = probe.row("select clock_timestamp()")
    after = time.time()
    ours = datetime.fromtimestamp((before + after) / 2, UTC)
    ahead = (ours - theirs).total_seconds()
    way = "ahead of" if ahead > 0 else "behind"
    off = f"this machine is {duration(ahead)} {way} the server"
    if abs(ahead) <= max(_CLOCK_SECONDS, after - before):
        return Finding("clock", "ok", f"within {duration(_CLOCK_SECONDS)} of the server's")
    if ahead > _IDS_AHEAD_SECONDS or ahead < -_IDS_BEHIND_SECONDS:
        return Finding(
            "clock",
            "problem",
            f"{off}: ids made here are replaced, so that an enqueue which is sent twice runs twice",
            "set the clock, and keep it with NTP",
        )
    return Finding(
        "clock",
        "warn",
        f"{off}: leases do not mind, but a run_at computed here is off by as much",
        "set the clock, and keep it with NTP",
    )


def pooler(probe: Probe) -> Finding:
    """Whether somebody stands between us and the server."""
    if not _pooled(probe.conn):
        return Finding("pooler", "ok", "none: the connection is direct")
    return Finding("pooler", "ok", "there is one; no verb needs more than transaction mode")


def listen(probe: Probe) -> Finding:
    """Whether a notification really arrives, from one session to another."""
    from faultline.connect import connect

    given = probe.settings.listen_url
    where = "FAULTLINE_LISTEN_URL" if given else "this URL"
    channel = f"{probe.schema}_doctor_{secrets.token_hex(8)}"
    with connect(given or probe.url, schema=None) as ears:
        if _pooled(ears):
            return Finding(
                "listen",
                "warn",
                f"{where} goes through a pooler: workers poll, so that a job may wait for "
                "--poll-seconds before it starts",
                "set FAULTLINE_LISTEN_URL to a URL that leads to the server itself",
            )
        ears.execute(f"listen {channel}")
        with connect(probe.url, schema=None) as mouth:
            mouth.execute("select pg_notify(%s, 'hello')", (channel,))
        heard = list(ears.notifies(timeout=_ROUND_TRIP_SECONDS, stop_after=1))
    if heard:
        return Finding("listen", "ok", f"a notification arrives at {where}")
    return Finding(
        "listen",
        "problem",
        f"no notification arrived at {where} within {duration(_ROUND_TRIP_SECONDS)}",
        "make FAULTLINE_LISTEN_URL name the same database as FAULTLINE_DATABASE_URL, on the server "
        "itself",
    )


def _pooled(conn: Connection[TupleRow]) -> bool:
    """Whether the process that answers is not the one that was connected to."""
    return conn.execute("select pg_backend_pid()").fetchone() != (conn.info.backend_pid,)
