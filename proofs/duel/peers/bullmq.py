"""BullMQ on Redis: a lock that the worker renews, and a check for stalled jobs."""

from proofs.duel.environment import Node
from proofs.duel.peer import Peer

PEERS = [
    Peer(
        name="BullMQ, Redis",
        environment=Node({"bullmq": "6.7.0", "ioredis": "6.0.0", "pg": "8.23.1"}),
        script="bullmq_worker.mjs",
        settings="lockDuration, stalledInterval = 1 s; lockRenewalFailed cancels; heeds signal",
        recovery="by itself, by its check for stalled jobs",
        redis=True,
    )
]
