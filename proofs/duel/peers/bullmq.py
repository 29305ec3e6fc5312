"""BullMQ on Redis: a lock that the worker renews, and a check for stalled jobs."""

from proofs.duel.peer import Peer
from proofs.peers.pins import BULLMQ

PEERS = [
    Peer(
        name="BullMQ, Redis",
        environment=BULLMQ,
        script="bullmq_worker.mjs",
        settings="lockDuration, stalledInterval = 1 s; lockRenewalFailed cancels; heeds signal",
        recovery="by itself, by its check for stalled jobs",
        redis=True,
    )
]
