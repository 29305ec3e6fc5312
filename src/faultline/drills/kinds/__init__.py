"""The kinds of faults, one module for each family; `KINDS` is the catalogue."""

from __future__ import annotations

from faultline.drills.kinds import (
    bursts,
    crash,
    failover,
    neighbours,
    network,
    processes,
    sessions,
    submission,
    takeover,
)
from faultline.drills.scenario import Kind

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        crash.CRASH,
        crash.PARTIAL_WRITE,
        takeover.TAKEOVER,
        bursts.TIMEOUT_BURST,
        bursts.RETRY_STORM,
        submission.DUPLICATE_SUBMISSION,
        sessions.BACKEND_TERMINATED,
        sessions.SERVER_RESTARTED,
        network.PARTITION,
        network.RESET,
        network.LOST_COMMIT,
        processes.CLOCK,
        processes.BLOCKED_LOOP,
        processes.POISON,
        processes.DEAD_CHILD,
        neighbours.POISON_PAYLOAD,
        neighbours.ZONE_LOST,
        failover.FAILOVER,
    )
}
