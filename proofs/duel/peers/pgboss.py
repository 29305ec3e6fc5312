"""pg-boss: heartbeats, with the shortest interval that it takes; plain, and transactional."""

from proofs.duel.peer import Peer
from proofs.peers.pins import PGBOSS


def _pgboss(name: str, variant: str, settings: str) -> Peer:
    return Peer(
        name=name,
        environment=PGBOSS,
        script="pgboss_worker.mjs",
        settings=f"heartbeatSeconds=10 (its minimum), refresh and monitor 1 s; {settings}",
        recovery="by itself, once the heartbeat is too old",
        finished="select exists (select from pgboss.job where name = 'charge' "
        "and state = 'completed')",
        variant=variant,
        patience_seconds=60.0,
    )


PEERS = [
    _pgboss("pg-boss", "plain", "heeds job.signal"),
    _pgboss("pg-boss, transactional", "transactional", "transactional: true, heeds job.signal"),
]
