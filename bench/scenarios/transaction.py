"""A handler's fenced transaction, against the same writes by hand.

Ours: a sync handler with `ctx.transaction()`, one INSERT and `tx.complete()`: claim, lease, thread,
fence and ledger included; in a worker with its defaults, and in one that runs one job at a time. By
hand: one psycopg connection that in each transaction does the same INSERT and marks one row as
done, by its key. The workers stay up through all blocks, so that neither side pays for a start;
each has a database of its own, and sleeps while the others are measured.
"""

from __future__ import annotations

import time
from urllib.parse import urlsplit

from psycopg import sql

from bench.arena import Arena, Ground
from bench.blocks import Say, alternated
from bench.plan import Plan
from bench.rows import Bar, Row, against, ratio, whole
from bench.workers import Worker
from faultline.connect import connect

TRANSACTIONS = 2_000  # in a block, of a second or two
TURNS = 3  # of them in a round, so that no single moment decides

TABLES = """
create schema bench;
create table bench.charges (order_id integer, at timestamptz default clock_timestamp());
create table bench.todo (id integer primary key, state text not null);
grant usage on schema bench to {worker};
grant insert on bench.charges to {worker}"""


def run(ground: Ground, plan: Plan, say: Say) -> list[Row]:
    """Alternating blocks of as many transactions."""
    count = plan.number(TRANSACTIONS)
    with ground.arena() as usual, ground.arena() as single:
        workers = {usual: prepared(usual), single: prepared(single, "--concurrency", "1")}
        for arena, worker in workers.items():
            fenced(arena, worker, count // 10 + 1)  # warm
        by_hand(single, count // 10 + 1)
        kinds = {
            "usual": lambda: fenced(usual, workers[usual], count),
            "by hand": lambda: by_hand(single, count),
            "single": lambda: fenced(single, workers[single], count),
        }
        seen = alternated(TURNS * plan.rounds, kinds, say, "transactions/s")
    facts = {"transactions": count, **{kind: whole(figures) for kind, figures in seen.items()}}
    what = "ctx.transaction() with one INSERT and tx.complete()"
    return [
        Row(
            "transaction",
            told,
            ratio(seen[kind], seen["by hand"]),
            "of the same by hand",
            bar,
            facts,
            against(seen[kind], seen["by hand"], "transactions/s"),
        )
        for kind, told, bar in (
            ("usual", what, Bar(least=0.7)),
            ("single", f"{what}, one job at a time", None),
        )
    ]


def prepared(arena: Arena, *options: str) -> Worker:
    """The tables, and a worker that may write to them."""
    user = urlsplit(arena.worker_url).username
    assert user is not None
    arena.conn.execute(sql.SQL(TABLES).format(worker=sql.Identifier(user)))
    return arena.worker(*options)


def fenced(arena: Arena, worker: Worker, count: int) -> float:
    """Transactions a second of the worker, from its first claim to the last ending."""
    arena.wait_until_asleep(worker)
    arena.settle()
    since = arena.now()
    arena.enqueue(count, "charge", payload="jsonb_build_object('order', n)")
    arena.wait_until_done(worker)
    return arena.rate(since, count)


def by_hand(arena: Arena, count: int) -> float:
    """Transactions a second of a loop on one connection."""
    arena.conn.execute("truncate bench.todo")
    arena.conn.execute(
        "insert into bench.todo select n, 'waiting' from generate_series(1, %s) n", (count,)
    )
    arena.settle()
    with connect(arena.url, schema=None) as conn:
        started = time.perf_counter()
        for number in range(1, count + 1):
            with conn.transaction():
                conn.execute("insert into bench.charges (order_id) values (%s)", (number,))
                conn.execute("update bench.todo set state = 'done' where id = %s", (number,))
        return count / (time.perf_counter() - started)
