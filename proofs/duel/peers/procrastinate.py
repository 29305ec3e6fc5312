"""Procrastinate: jobs of a stalled worker are retried by a periodic task that the user writes."""

from proofs.duel.environment import Python
from proofs.duel.peer import Peer

PEERS = [
    Peer(
        name="Procrastinate",
        environment=Python(("procrastinate==3.10.0", "psycopg[binary]==3.3.8")),
        script="procrastinate_worker.py",
        settings="update_heartbeat_interval=0.5, get_stalled_jobs(seconds_since_heartbeat=2)",
        recovery="the periodic task of its how-to on stalled jobs, each second",
        finished="select exists (select from procrastinate_jobs "
        "where task_name = 'charge' and status = 'succeeded')",
    )
]
