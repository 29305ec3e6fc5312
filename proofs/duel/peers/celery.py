"""Celery on Redis: acknowledged late, so that an unacknowledged task is delivered again.

Nothing renews the visibility timeout: with one of seconds, a second worker would take the task
from a worker that is well. So B is started after the stall.
"""

from proofs.duel.environment import Python
from proofs.duel.peer import Peer

PEERS = [
    Peer(
        name="Celery, Redis",
        environment=Python(("celery[redis]==5.7.0", "psycopg[binary]==3.3.8")),
        script="celery_worker.py",
        settings="acks_late, prefetch 1, visibility_timeout=1 s, unacked_restore_interval=1 s",
        recovery="by itself, once the visibility timeout is over; B started after the stall",
        redis=True,
        late_successor=True,
    )
]
