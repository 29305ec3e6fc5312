"""Many at once: leases that all run out in mid-execution, and fifty people who retry one job."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from uuid import UUID

from faultline.drills.scenario import Kind
from faultline.drills.scene import Scene
from faultline.retry import Backoff

CROWD = 50
LATER = Backoff(base=600, cap=600)


def play_timeout_burst(scene: Scene) -> None:
    """A worker with several jobs in its hands stalls; all their leases expire under it."""
    jobs = [scene.enqueue(hold=["begin"]) for _ in range(scene.random.randint(8, 14))]
    by_pid: dict[int, list[UUID]] = defaultdict(list)
    for job_id in jobs:
        by_pid[scene.reached(job_id, "begin").pid].append(job_id)
    pid = max(by_pid, key=lambda each: len(by_pid[each]))
    scene.stop(pid, *by_pid[pid])
    for job_id in jobs:
        scene.go(job_id, "begin")
    for job_id in jobs:
        scene.until_state(job_id, "succeeded")
    scene.resume(pid)
    for job_id in by_pid[pid]:
        scene.until_refused(job_id)


def play_retry_storm(scene: Scene) -> None:
    """A job fails; a crowd retries it at once; its worker is hit; the crowd retries it again."""
    final = scene.random.random() < 0.5
    options: dict[str, Any] = {"max_attempts": 1} if final else {"retry": LATER}
    victim = scene.enqueue("stumble", hold=["begin"], **options)
    scene.bystanders(3, 6)
    scene.until_state(victim, "failed" if final else "scheduled")
    verbs = scene.arena.verbs
    call = verbs.requeue([victim], "drill") if final else verbs.retry([victim])
    answers = scene.arena.crowd(CROWD).run(call)
    if (accepted := sum(bool(answer) for answer in answers)) != 1:
        scene.violations.append(f"{accepted} of {CROWD} retries of one job were accepted")
    arrival = scene.reached(victim, "begin")
    stalls = scene.random.random() < 0.5
    (scene.stop if stalls else scene.kill)(arrival.pid, victim)
    scene.stale_is_refused = stalls
    scene.arena.crowd(CROWD).run(verbs.retry([victim]))
    scene.arena.crowd(CROWD).run(verbs.requeue([victim], "drill"))
    scene.until_state(victim, "succeeded")
    scene.go(victim, "begin")
    if stalls:
        scene.resume(arrival.pid)
        scene.until_refused(victim)


TIMEOUT_BURST = Kind(
    "timeout_burst",
    "SIGSTOP of a worker with many jobs in its hands: all their leases run out at once",
    play_timeout_burst,
    full=220,
    quick=8,
    stale_is_refused=True,
)
RETRY_STORM = Kind(
    "retry_storm",
    f"{CROWD} concurrent retries of one job, twice, while its worker is stopped or killed",
    play_retry_storm,
    full=220,
    quick=8,
)
