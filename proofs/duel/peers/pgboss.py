"""pg-boss: heartbeats, with the shortest interval that it takes; plain, and transactional.

npm here has no rrule-temporal 2.2.8, which 12.38.0 asks for: 2.2.7 stands in. It reads recurrence
rules of schedules, and the duel has none.
"""

from proofs.duel.environment import Node
from proofs.duel.peer import Peer


def _pgboss(name: str, variant: str, settings: str) -> Peer:
    return Peer(
        name=name,
        environment=Node({"pg-boss": "12.38.0", "pg": "8.23.1"}, {"rrule-temporal": "2.2.7"}),
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
