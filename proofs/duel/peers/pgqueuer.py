"""PGQueuer: a picked job whose heartbeat is too old is picked again by whoever dequeues next.

On asyncpg: with its psycopg driver successes were recorded up to a second late here, and with a
timeout of one second a worker then picked a job again that it had just finished.
"""

from proofs.duel.peer import Peer
from proofs.peers.pins import PGQUEUER

PEERS = [
    Peer(
        name="PGQueuer",
        environment=PGQUEUER,
        script="pgqueuer_worker.py",
        settings="asyncpg; heartbeat_timeout=2 s, dequeue_timeout=0.5 s, batch_size=1",
        recovery="by itself, once the heartbeat is too old",
        finished="select exists (select from pgqueuer_log where status = 'successful')",
    )
]
