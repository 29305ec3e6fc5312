"""Procrastinate: jobs of a stalled worker are retried by a periodic task that the user writes."""

from proofs.duel.peer import Peer
from proofs.peers.pins import PROCRASTINATE

PEERS = [
    Peer(
        name="Procrastinate",
        environment=PROCRASTINATE,
        script="procrastinate_worker.py",
        settings="update_heartbeat_interval=0.5, get_stalled_jobs(seconds_since_heartbeat=2)",
        recovery="the periodic task of its how-to on stalled jobs, each second",
        finished="select exists (select from procrastinate_jobs "
        "where task_name = 'charge' and status = 'succeeded')",
    )
]
