"""Checks of the work itself: who does it, what is stuck, and whether the invariants hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from faultline.beats import is_silent
from faultline.cli.display import plural, text
from faultline.cli.doctor.finding import Finding, Probe
from faultline.log import duration

_CLOCK_SECONDS = 5.0
_NAMED = 3
_JOBS_NAMED = 5
_COUNTED = 10_000  # of a task, by the view unknown_tasks
_MANY_PRIORITIES = 100


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


def unknown_tasks(probe: Probe) -> Finding:
    """Whether jobs wait for a task that no live worker has."""
    found = [row for row in probe.reading.unknown_tasks(probe.conn) if not row["is_known"]]
    if not found:
        return Finding("unknown_tasks", "ok", "no job waits for a task that no worker has")
    alive = [w for w in probe.reading.workers(probe.conn) if not is_silent(w)]
    known = sorted({task for worker in alive for task in worker["tasks"] or ()})
    found.sort(key=lambda row: (-row["jobs"], row["task"]))
    named = "; ".join(_unknown(row, known) for row in found[:_JOBS_NAMED])
    return Finding(
        "unknown_tasks",
        "warn",
        f"no worker has the task of these jobs: {named}"
        + ("; …" if len(found) > _JOBS_NAMED else ""),
        "start a worker that has it, with @app.task(name=…) if it was renamed; "
        "or faultline jobs cancel --state scheduled --task NAME",
    )


def _unknown(row: Mapping[str, Any], known: Sequence[str]) -> str:
    """The task, how many jobs wait for it, and the known task whose name is nearest."""
    more = " or more" if row["jobs"] >= _COUNTED else ""
    near = get_close_matches(row["task"], known, n=1)
    meant = f", did you mean {near[0]}?" if near else ""
    return f"{text(row['task'])} ({plural(row['jobs'], 'job')}{more}{meant})"


def lanes(probe: Probe) -> Finding:
    """Whether jobs of very many priorities wait in a queue: each costs every claim a look."""
    waiting = probe.reading.waiting(probe.conn)
    wide = [row for row in waiting if row["priorities"] > _MANY_PRIORITIES]
    if not wide:
        few = f"no queue has waiting jobs of more than {_MANY_PRIORITIES} priorities"
        return Finding("lanes", "ok", few)
    worst = max(wide, key=lambda row: int(row["priorities"]))
    more = f", and {plural(len(wide) - 1, 'queue')} more" if len(wide) > 1 else ""
    return Finding(
        "lanes",
        "warn",
        f"jobs of {worst['priorities']:,} priorities wait in {text(worst['queue'])}{more}: each "
        "claim looks at each priority that has a waiting job",
        "enqueue with a few priorities, not with a number of each job; 1,000 is the most",
    )


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


def undeliverable(probe: Probe) -> Finding:
    """Whether jobs are parked because no claim can answer with their payload."""
    found = probe.reading.undeliverable(probe.conn, _JOBS_NAMED + 1)
    if not found:
        return Finding("undeliverable", "ok", "each payload can be given to a worker")
    ids = ", ".join(str(row["job_id"]) for row in found[:_JOBS_NAMED])
    return Finding(
        "undeliverable",
        "warn",
        f"more than 64 MiB of payload, which no claim gives to a worker: {ids}"
        + (", …" if len(found) > _JOBS_NAMED else ""),
        "faultline jobs cancel ID; store the data elsewhere, and enqueue a reference to it",
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
