"""`make bench-guard`: what a guard on a table costs, as a ratio to the same writes without it.

    small    BEGIN, (fence), INSERT of one row, COMMIT: sent in one round trip, default durability
    inside   the same in a loop inside the server, without the client and without the disk
    rows     one statement of 10,000 rows in a fenced transaction: INSERT, UPDATE, DELETE

The tables differ in nothing but the guard: none, guarded (a worker with its fence), guarded (an
exempt log-in), and for partitioned ones also partitions that came after the guard, which are
guarded by row until it is called again. Blocks of the kinds alternate, medians of all rounds. The
last line is one JSON object. Machines differ and are noisy: compare only figures of one run.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

from psycopg import Connection, sql

from faultline.config import Settings
from faultline.connect import connect
from faultline.launcher import Server
from faultline.migrate import migrate
from faultline.protocol import Protocol
from proofs.stopwatch import finish

ROUNDS = 15
TRANSACTIONS = 100  # in a block
ROWS = 10_000
STATEMENTS = {
    "insert": f"insert into {{}} select n, 'text' from generate_series(1, {ROWS}) n",
    "update": "update {} set t = 'other'",
    "delete": "delete from {}",
}
TABLES = """
create table plain (n int, t text);
create table plain_guarded (n int, t text);
create table parted (n int, t text) partition by hash (n);
create table parted_guarded (n int, t text) partition by hash (n);
create table parted_by_row (n int, t text) partition by hash (n)"""

Attempt = tuple[UUID, int]


class Bench:
    """A worker that holds a lease, an exempt log-in, and tables with and without a guard."""

    def __init__(self, worker: Connection[Any], exempt: Connection[Any], schema: str) -> None:
        self.worker = worker
        self.exempt = exempt
        self.verbs = Protocol(schema)
        verbs, user = self.verbs, exempt.info.user
        worker.execute(sql.SQL(TABLES))
        _partition(worker, "parted", "parted_guarded")
        for table in ("plain_guarded", "parted_guarded", "parted_by_row"):
            verbs.guard(table, [user]).run(worker)
        _partition(worker, "parted_by_row")
        verbs.enqueue("bench", lease_seconds=3600).run(worker)
        lanes = [lane.lane for lane in verbs.lanes(["default"]).run(worker)]
        (lease,) = verbs.claim("bench", lanes).run(worker)
        self.attempt: Attempt = (lease.job_id, lease.token)

    def small(self, kind: str) -> float:
        """Microseconds for a transaction that inserts one row."""
        conn = self.exempt if kind == "exempt" else self.worker
        table = "plain_guarded" if kind in ("guarded", "exempt") else "plain"
        insert = sql.SQL(f"insert into {table} values (%s, %s)")
        fence = self.verbs.fence(*self.attempt)
        started = time.perf_counter()
        for number in range(TRANSACTIONS):
            with conn.pipeline(), conn.transaction():
                if kind in ("fenced", "guarded"):
                    conn.execute(fence.statement, fence.parameters)
                conn.execute(insert, (number, "text"))
        seconds = time.perf_counter() - started
        self.exempt.execute(sql.SQL("truncate {}").format(sql.Identifier(table)))
        return seconds / TRANSACTIONS * 1e6

    def inside(self, kind: str) -> float:
        """The same, in a loop inside the server."""
        conn = self.exempt if kind == "exempt" else self.worker
        table = "plain_guarded" if kind in ("guarded", "exempt") else "plain"
        fenced = kind in ("fenced", "guarded")
        fence = f"perform {self.verbs.schema}.fence('{self.attempt[0]}', {self.attempt[1]});"
        body = f"{fence if fenced else ''} insert into {table} values (n, 'text'); commit;"
        loop = f"do $$ begin for n in 1..{TRANSACTIONS} loop {body} end loop; end $$"
        started = time.perf_counter()
        conn.execute(sql.SQL(loop))
        seconds = time.perf_counter() - started
        self.exempt.execute(sql.SQL("truncate {}").format(sql.Identifier(table)))
        return seconds / TRANSACTIONS * 1e6

    def rows(self, table: str, *, exempt: bool = False) -> dict[str, float]:
        """Milliseconds for each statement of many rows, in a fenced transaction."""
        conn = self.exempt if exempt else self.worker
        seen = {}
        with conn.transaction():
            if not exempt:
                self.verbs.fence(*self.attempt).run(conn)
            for name, statement in STATEMENTS.items():
                started = time.perf_counter()
                conn.execute(sql.SQL(statement).format(sql.Identifier(table)))
                seen[name] = (time.perf_counter() - started) * 1e3
        self.exempt.execute(sql.SQL("truncate {}").format(sql.Identifier(table)))
        return seen


def _partition(conn: Connection[Any], *tables: str) -> None:
    for table in tables:
        for part in range(4):
            conn.execute(
                sql.SQL(
                    f"create table {table}_{part} partition of {table} "
                    f"for values with (modulus 4, remainder {part})"
                )
            )


def small(measure: Callable[[str], float]) -> dict[str, float]:
    """The small transaction of every kind, and how it compares with the one without a guard."""
    seen: dict[str, list[float]] = {"unguarded": [], "fenced": [], "guarded": [], "exempt": []}
    for _ in range(ROUNDS):
        for kind, figures in seen.items():
            figures.append(measure(kind))
    us = {kind: statistics.median(figures) for kind, figures in seen.items()}
    found = {f"{kind}_us": round(median, 1) for kind, median in us.items()}
    return found | {
        f"{kind}_ratio": round(us[kind] / us["unguarded"], 2) for kind in ("guarded", "exempt")
    }


def rows(bench: Bench) -> dict[str, dict[str, float]]:
    """Each statement on each kind of table, as a ratio to the same kind without a guard."""
    kinds: dict[str, tuple[str, str, bool]] = {
        "guarded": ("plain_guarded", "plain", False),
        "exempt": ("plain_guarded", "plain", True),
        "partitions": ("parted_guarded", "parted", False),
        "partitions_by_row": ("parted_by_row", "parted", False),
    }
    seen: dict[tuple[str, bool], dict[str, list[float]]] = {}
    order = dict.fromkeys(
        pair
        for table, without, exempt in kinds.values()
        for pair in ((without, False), (table, exempt))
    )
    for _ in range(ROUNDS):
        for pair in order:
            for name, ms in bench.rows(pair[0], exempt=pair[1]).items():
                seen.setdefault(pair, {}).setdefault(name, []).append(ms)
    found = {}
    for kind, (table, without, exempt) in kinds.items():
        figures, base = seen[table, exempt], seen[without, False]
        found[kind] = {
            name: round(statistics.median(figures[name]) / statistics.median(base[name]), 2)
            for name in STATEMENTS
        }
    found["unguarded_ms"] = {
        name: round(statistics.median(seen["plain", False][name]), 1) for name in STATEMENTS
    }
    return found


def main() -> int:
    """Measure on an embedded server."""
    settings = Settings.from_environment()
    found: dict[str, object] = {}
    with Server.temporary(binaries=settings.binaries) as server:
        with connect(server.url, schema=None) as conn:
            migrate(conn, settings.schema)
            conn.execute("create role exempt superuser login password 'bench'")
        parts = urlsplit(server.url)
        address = parts.netloc.rpartition("@")[2]
        url = urlunsplit(parts._replace(netloc=f"exempt:bench@{address}"))
        with connect(server.url, schema=None) as worker, connect(url, schema=None) as exempt:
            bench = Bench(worker, exempt, settings.schema)
            found["small_transaction"] = small(bench.small)
            for conn in (worker, exempt):
                conn.execute("set synchronous_commit = off")
            found["inside_the_server"] = small(bench.inside)
            found[f"statement_of_{ROWS}_rows"] = rows(bench)
    for name, figures in found.items():
        print(f"{name}: {figures}", file=sys.stderr)
    finish("bench-guard", found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
