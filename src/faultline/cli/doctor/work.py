"""Checks of the work itself: who does it, what is stuck, and whether the invariants hold."""

from __future__ import annotations

from faultline.beats import is_silent
from faultline.cli.display import plural, text
from faultline.cli.doctor.finding import Finding, Probe
from faultline.log import duration

_CLOCK_SECONDS = 5.0
_NAMED = 3


def workers(probe: Probe) -> Finding:
    """Whether somebody works, and everybody is heard of."""
    found = probe.reading.workers(probe.conn)
    silent = [worker for worker in found if is_silent(worker)]
    alive = len(found) - len(silent)
    queues = {queue["queue"]: queue["queued"] for queue in probe.reading.queues(probe.conn)}
    waiting = sum(queues.values())
    if not alive and waiting:
        return Finding(
            "workers",
            "warn",
            f"nobody works, and {plural(waiting, 'job')} wait{'s' if waiting == 1 else ''}",
            "start one: faultline worker module:app",
        )
    if silent:
        held = sum(worker["leases"] for worker in silent)
        names = text([worker["worker"] for worker in silent[:_NAMED]])
        return Finding(
            "workers",
            "warn",
            f"{alive} at work, {len(silent)} silent, holding {plural(held, 'job')}: {names}"
            + (", …" if len(silent) > _NAMED else ""),
            "look whether it runs; what it held is taken over when its lease ends",
        )
    served = {queue for worker in found for queue in worker["queues"]}
    if unserved := [queue for queue, queued in queues.items() if queued and queue not in served]:
        return Finding(
            "workers",
            "warn",
            f"{alive} at work, but nobody serves {text(unserved[:_NAMED])}, where jobs wait"
            + (", …" if len(unserved) > _NAMED else ""),
            "give a worker these --queues, or mend the name where the jobs are enqueued",
        )
    off = [w for w in found if abs(w["clock_difference_seconds"] or 0) > _CLOCK_SECONDS]
    if off:
        return Finding(
            "workers",
            "warn",
            f"the clock of {text(off[0]['worker'])} is off by "
            f"{duration(off[0]['clock_difference_seconds'])}; leases do not mind, its logs do",
            "keep its clock with NTP",
        )
    return Finding("workers", "ok", f"{alive} at work" if alive else "none, and nothing waits")


def quarantine(probe: Probe) -> Finding:
    """Whether jobs are parked until somebody decides about them."""
    parked = sum(queue["quarantined"] for queue in probe.reading.queues(probe.conn))
    if not parked:
        return Finding("quarantine", "ok", "empty")
    return Finding(
        "quarantine",
        "warn",
        f"{plural(parked, 'job')}: they ended their workers, or could not be placed",
        "faultline jobs list --state quarantined; then jobs requeue, or jobs cancel",
    )


def invariants(probe: Probe) -> Finding:
    """Whether any row breaks a promise; reads every table."""
    broken = probe.reading.violations(probe.conn)
    if not broken:
        return Finding("invariants", "ok", "none is violated")
    names = ", ".join(sorted({row["invariant"] for row in broken}))
    return Finding(
        "invariants",
        "problem",
        f"{plural(len(broken), 'violation')}: {names}",
        f"keep the database as it is, select * from {probe.schema}.violations, and tell us",
    )
