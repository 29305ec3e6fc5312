"""The peers: where each runs, how it was set, and how one sees that it is done.

Settings are the best that its documentation names for many short jobs; the scripts (scripts/) have
them. To add a peer, write a script with the four verbs of scripts/job.py and add a row here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from proofs.peers import pins
from proofs.peers.environment import Environment, Here

PARTS = ("bulk", "one", "two", "pickup")  # what is measured
Left = Callable[[Any], bool]


@dataclass(frozen=True)
class Peer:
    """One row of the table."""

    name: str
    environment: Environment
    script: str
    settings: str  # in the peer's own words
    left: str | Left  # whether jobs are left: SQL, or a question to a Redis client
    share: float = 1.0  # of the jobs, for a peer that would take minutes
    parts: tuple[str, ...] = PARTS
    variant: str = ""
    redis: bool = False
    own_processes: bool = False  # one command starts as many workers as wanted
    environment_variables: tuple[tuple[str, str], ...] = ()


def _bullmq_left(client: Any) -> bool:
    return bool(client.llen("bull:bench:wait") + client.llen("bull:bench:active"))


def _celery_left(client: Any) -> bool:
    return bool(client.llen("celery") + client.hlen("unacked"))


_FAULTLINE_LEFT = (
    "select exists (select from faultline.ready where lane = (select lane from faultline.lane "
    "where queue = 'default')) or exists (select from faultline.lease)"
)

PEERS = (
    Peer(
        name="Faultline",
        environment=Here(),
        script="faultline_bench.py",
        settings="faultline worker with its defaults, async handlers; enqueue_many by a producer",
        left=_FAULTLINE_LEFT,
        own_processes=True,
    ),
    Peer(
        name="Faultline, sync handlers",
        environment=Here(),
        script="faultline_bench.py",
        settings="the same with sync handlers, in threads",
        left=_FAULTLINE_LEFT,
        parts=("one",),
        variant="sync",
        own_processes=True,
    ),
    Peer(
        name="Graphile Worker",
        environment=pins.GRAPHILE,
        script="graphile.mjs",
        settings="concurrentJobs=24, maxPoolSize=25, localQueue.size=500, completeJobBatchDelay=0, "
        "NO_LOG_SUCCESS=1; addJobs",
        left="select exists (select from graphile_worker._private_jobs)",
        environment_variables=(("NO_LOG_SUCCESS", "1"),),
    ),
    Peer(
        name="pg-boss",
        environment=pins.PGBOSS,
        script="pgboss.mjs",
        settings="batchSize=500, burstWhenBatchFull, useListenNotify, "
        "pollingIntervalSeconds=0.5; insert",
        left="select exists (select from pgboss.job where name in ('noop', 'probe') "
        "and state < 'completed')",
    ),
    Peer(
        name="PGQueuer",
        environment=pins.PGQUEUER,
        script="pgqueuer_bench.py",
        settings="asyncpg, batch_size=500; enqueue of lists",
        left="select exists (select from pgqueuer)",
    ),
    Peer(
        name="Procrastinate",
        environment=pins.PROCRASTINATE,
        script="procrastinate_bench.py",
        settings="concurrency=20, async handlers; batch_defer_async",
        left="select exists (select from procrastinate_jobs where status in ('todo', 'doing'))",
        share=0.03,
    ),
    Peer(
        name="Chancy",
        environment=pins.CHANCY,
        script="chancy_bench.py",
        settings="AsyncExecutor, concurrency=100, eager_polling, polling_interval=1; push_many",
        left="select exists (select from chancy_jobs where state not in ('succeeded', 'failed'))",
        share=0.05,
    ),
    Peer(
        name="DBOS",
        environment=pins.DBOS,
        script="dbos_bench.py",
        settings="a workflow without steps, polling_interval_sec=0.1; no bulk API, one by one",
        left="select exists (select from dbos.workflow_status "
        "where status in ('ENQUEUED', 'PENDING'))",
        share=0.01,
    ),
    Peer(
        name="BullMQ, Redis",
        environment=pins.BULLMQ,
        script="bullmq.mjs",
        settings="concurrency=100; addBulk; Redis without persistence",
        left=_bullmq_left,
        share=0.5,
        redis=True,
    ),
    Peer(
        name="Celery, Redis",
        environment=pins.CELERY,
        script="celery_bench.py",
        settings="prefork with a child a core, prefetch 100, results ignored; group; "
        "Redis without persistence",
        left=_celery_left,
        share=0.05,
        redis=True,
    ),
)
