"""Many at once: leases that all run out in mid-execution, and fifty people who retry one job."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from uuid import UUID

from faultline.drills.kinds.takeover import wake
from faultline.drills.scenario import Kind
from faultline.drills.scene import PAYING, Scene
from faultline.retry import Backoff

CROWD = 50
WRITING = tuple(task for task in PAYING if task != "pay_in_steps")
LATER = Backoff(base=600, cap=600)


def play_timeout_burst(scene: Scene) -> None:
    """A worker with several jobs in its hands stalls; all their leases expire under it."""
    meets = scene.random.random() < 0.5  # it wakes up while its successors are at work
    hold = ["begin", "again"] if meets else ["begin"]
    # Those that still have something to write when their successor is done.
    tasks = PAYING if meets else WRITING
    jobs = [
        scene.enqueue(scene.random.choice(tasks), hold=hold)
        for _ in range(scene.random.randint(8, 14))
    ]
    by_pid: dict[int, list[UUID]] = defaultdict(list)
    for job_id in jobs:
        by_pid[scene.reached(job_id, "begin").pid].append(job_id)
    pid = max(by_pid, key=lambda each: len(by_pid[each]))
    scene.stop(pid, *by_pid[pid])
    for job_id in jobs:
        if job_id not in by_pid[pid]:
            scene.go(job_id, "begin")
    wake(scene, pid, by_pid[pid], "begin", meets=meets)


def play_retry_storm(scene: Scene) -> None:
    """A job fails; a crowd retries it at once; its worker is hit; the crowd retries it again."""
    final = scene.random.random() < 0.5
    options: dict[str, Any] = {"max_attempts": 1} if final else {"retry": LATER}
    meets = scene.random.random() < 0.5
    hold = ["begin", "again"] if meets else ["begin"]
    victim = scene.enqueue("stumble", hold=hold, **options)
    scene.bystanders(3, 6)
    scene.until_state(victim, "failed" if final else "scheduled")
    verbs = scene.arena.verbs
    call = verbs.requeue([victim], "drill") if final else verbs.retry([victim])
    answers = scene.arena.crowd(CROWD).run(call)
    scene.tell_retries(victim, answers)
    if (accepted := sum(bool(answer) for answer in answers)) != 1:
        scene.violations.append(f"{accepted} of {CROWD} retries of one job were accepted")
    arrival = scene.reached(victim, "begin")
    stalls = scene.random.random() < 0.5
    (scene.stop if stalls else scene.kill)(arrival.pid, victim)
    scene.stale_is_refused = stalls
    for call in (verbs.retry([victim]), verbs.requeue([victim], "drill")):
        answers = scene.arena.crowd(CROWD).run(call)
        scene.tell_retries(victim, answers)
        if any(answers):
            scene.violations.append("a job that runs was retried")
    if stalls:
        wake(scene, arrival.pid, [victim], "begin", meets=meets)
    scene.go(victim, "again")
    scene.until_state(victim, "succeeded")


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
