"""Chancy: its leader returns the jobs of workers that are not seen any more (plugin Recovery).

Its default executor runs a job in a process of its own and can interrupt even a blocking handler.
"""

from proofs.duel.environment import Python
from proofs.duel.peer import Peer

PEERS = [
    Peer(
        name="Chancy",
        environment=Python(("chancy[cli]==0.26.0", "psycopg[binary]==3.3.8")),
        script="chancy_worker.py",
        settings="heartbeat 1 s, timeout 3 s; Recovery 1 s; Leadership 1 s, timeout 2 s",
        recovery="by itself, by plugins Leadership and Recovery",
        finished="select exists (select from chancy_jobs where state = 'succeeded')",
    )
]
