"""What a run amounts to: duplicates and losses, and whether the run is worth anything.

Counted from the table that neither queue owns. A job is lost if it has no effect or its queue does
not say that it succeeded. A run is invalid if a planned fault did not happen, to a process, with
its effect seen; or if it did not drain.
"""

from __future__ import annotations

from typing import Any

from faultline.demo.comparison.driver import Injected, Run

CONFIRMED = {
    "SIGSTOP": "stopped, continued after its lease",
    "SIGKILL": "killed",
    "disconnect": "connections terminated",
}


def figures(run: Run) -> dict[str, Any]:
    """The figures of one contender under one schedule."""
    jobs = range(len(run.schedule))
    effects = run.counted.effects
    duplicates = sum(effects.values()) - len(effects)
    lost = [job for job in jobs if job not in effects or job not in run.findings.succeeded]
    return {
        "jobs": len(jobs),
        "faults": len(run.faults),
        "executions": sum(run.counted.executions.values()),
        "effects": sum(effects.values()),
        "duplicates": duplicates,
        "duplicate_rate": round(duplicates / len(jobs), 4),
        "duplicated_jobs": sorted(job for job, times in effects.items() if times > 1),
        "lost": len(lost),
        "lost_jobs": lost,
        "stale_refused": run.findings.stale_refused,
        "refused_by_operation": run.findings.refused_by_operation,
        "violations": run.findings.violations,
        "seconds": run.seconds,
        "injected": run.record(),
    }


def complaints(run: Run) -> list[str]:
    """Why this run proves nothing; empty if it does."""
    found = [] if run.complaint is None else [run.complaint]
    if not run.drained:
        found.append("not every job came to an end")
    happened = {fault.job: fault for fault in run.faults}
    for fault in run.schedule.faults:
        where = f"{fault.what} {fault.point} of job {fault.job}"
        hit = happened.get(fault.job)
        if hit is None or (hit.what, hit.point) != (fault.what, fault.point):
            found.append(f"{where} did not happen")
        elif not _is_confirmed(hit):
            found.append(f"{where} was not seen to happen ({hit.confirmed or 'nothing seen'})")
    return [f"{run.contender}: {complaint}" for complaint in found]


def _is_confirmed(hit: Injected) -> bool:
    return hit.pid > 0 and hit.confirmed.endswith(CONFIRMED[hit.what])
