"""Celery on Redis: acknowledged late, so that an unacknowledged task is delivered again.

Nothing renews the visibility timeout: with one of seconds, a second worker would take the task
from a worker that is well. So B is started after the stall.
"""

from proofs.duel.peer import Peer
from proofs.peers.pins import CELERY

PEERS = [
    Peer(
        name="Celery, Redis",
        environment=CELERY,
        script="celery_worker.py",
        settings="acks_late, prefetch 1, visibility_timeout=1 s, unacked_restore_interval=1 s",
        recovery="by itself, once the visibility timeout is over; B started after the stall",
        redis=True,
        late_successor=True,
    )
]
