"""Chancy: its leader returns the jobs of workers that are not seen any more (plugin Recovery).

Its default executor runs a job in a process of its own and can interrupt even a blocking handler.
"""

from proofs.duel.peer import Peer
from proofs.peers.pins import CHANCY

PEERS = [
    Peer(
        name="Chancy",
        environment=CHANCY,
        script="chancy_worker.py",
        settings="heartbeat 1 s, timeout 3 s; Recovery 1 s; Leadership 1 s, timeout 2 s",
        recovery="by itself, by plugins Leadership and Recovery",
        finished="select exists (select from chancy_jobs where state = 'succeeded')",
    )
]
