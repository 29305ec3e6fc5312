"""Worker processes with a wrong clock, a blocked loop, a deadly job, or a parent."""

from __future__ import annotations

import os
import signal
import time
from uuid import UUID

from faultline.drills.arena import until
from faultline.drills.kinds.guests import FAMILY, bring, family, no_fake_clock, with_clock
from faultline.drills.scenario import Kind
from faultline.drills.scene import PAYING, WORKERS, Scene
from faultline.drills.workers import descendants
from faultline.launcher.processes import is_alive

HOUR_SECONDS = 3600.0
LONG_LEASES = 10  # the lease of a job whose recovery does not wait for it, in a drill's leases
KEPT_LEASES = 3  # and of one that is to be kept, however busy the machine is


def play_clock(scene: Scene) -> None:
    """A worker that is an hour off stalls or dies; nobody takes its word for what time it is."""
    which, sign = scene.random.choice([("ahead", 1), ("behind", -1)])
    guest = with_clock(scene, which)
    moment = scene.random.choice(["begin", "written"])
    victim, arrival = bring(scene, which, moment, scene.random.choice(PAYING))
    off_seconds = arrival.clock - time.time()
    if abs(off_seconds - sign * HOUR_SECONDS) > HOUR_SECONDS / 2:
        scene.violations.append(f"the clock is off by {off_seconds:.0f} s: not what was asked for")
    scene.record(scene.arena.fault(f"clock off by {off_seconds:+.0f} s", guest.pid))
    scene.bystanders()
    stalls = scene.random.random() < 0.5
    (scene.stop if stalls else scene.kill)(guest.pid, victim)
    scene.until_state(victim, "succeeded")
    scene.go(victim, moment)
    if stalls:
        scene.stale_is_refused = True
        scene.resume(guest.pid)
        scene.until_refused(victim)


def play_blocked_loop(scene: Scene) -> None:
    """Longer than the lease, with other jobs in the same process: nobody loses anything."""
    lease_seconds = scene.lease_seconds * KEPT_LEASES
    neighbours = [
        scene.enqueue(hold=["begin"], lease_seconds=lease_seconds)
        for _ in range(scene.random.randint(3, 5))
    ]
    for job_id in neighbours:
        scene.reached(job_id, "begin")
    victim = scene.enqueue("block", hold=["begin"], lease_seconds=lease_seconds)
    pid = scene.reached(victim, "begin").pid
    at = scene.arena.now()
    scene.bystanders()
    time.sleep(lease_seconds * scene.random.uniform(1.2, 1.6))
    for job_id in (*neighbours, victim):
        scene.go(job_id, "begin")
    name = str(victim)
    seconds = float(until(lambda: scene.arena.points.note(name, "blocked"), "the loop turns again"))
    scene.record(scene.arena.fault(f"event loop blocked for {seconds:.2f} s", pid, at), victim)
    if seconds < lease_seconds:
        scene.violations.append(f"the loop was blocked for {seconds:.2f} s: less than the lease")
    scene.until_state(victim, "succeeded")
    for job_id in (*neighbours, victim):
        scene.until_state(job_id, "succeeded")
        if len(attempts := scene.arena.reading.attempts(scene.arena.conn, job_id)) != 1:
            ends = [(each["fencing_token"], each["outcome"]) for each in attempts]
            scene.violations.append(f"job {job_id} was not left in peace: {ends}")


def play_poison(scene: Scene) -> None:
    """It is tried again until it has killed as many workers as it may."""
    scene.bystanders()
    victim = scene.enqueue("poison", effects=0, states=["quarantined"])
    dead: set[int] = set()

    def ended() -> bool:
        scene.arena.top_up(WORKERS)  # which also notices who has died
        for item in scene.executions(victim):
            if item.pid not in dead and not is_alive(item.pid):
                dead.add(item.pid)
                scene.record(scene.arena.fault("SIGKILL by its own job", item.pid), victim)
        begun = {item.pid for item in scene.executions(victim)}
        return scene.state(victim) == "quarantined" and begun == dead

    until(ended, "the job that kills is in quarantine")
    _evidence(scene, victim)


def _evidence(scene: Scene, victim: UUID) -> None:
    """What an operator finds: which attempts died, and why it is not tried again."""
    job = scene.arena.reading.job(scene.arena.conn, victim)
    attempts = scene.arena.reading.attempts(scene.arena.conn, victim)
    assert job is not None
    lost = [attempt for attempt in attempts if attempt["outcome"] == "expired"]
    if not job["crashes"] == len(lost) == len(attempts):
        scene.violations.append(
            f"{len(lost)} of {len(attempts)} attempts were lost, {job['crashes']} crashes counted"
        )
    if not job["quarantine_reason"] or not job["quarantine_evidence"]:
        scene.violations.append(f"the quarantine has no reason or no evidence: {job}")


def play_dead_child(scene: Scene) -> None:
    """One process of a family dies; its parent has its leases ended at once."""
    parent = family(scene)
    moment = scene.random.choice(["begin", "committed"])
    task = "pay_in_steps" if moment == "committed" else scene.random.choice(PAYING)
    lease_seconds = scene.lease_seconds * LONG_LEASES
    victim, arrival = bring(scene, FAMILY, moment, task, lease_seconds=lease_seconds)
    scene.bystanders()
    if arrival.pid not in descendants(parent.pid):
        scene.violations.append(f"process {arrival.pid} is no child of {parent.pid}")
        return
    reading, conn = scene.arena.reading, scene.arena.conn
    lease = reading.lease(conn, victim)
    assert lease is not None
    buried, at = len(parent.told("process_died")), scene.arena.now()
    os.kill(arrival.pid, signal.SIGKILL)
    until(lambda: not is_alive(arrival.pid), "the child is dead")
    scene.record(scene.arena.fault("SIGKILL of a child", arrival.pid, at), victim)
    said = until(lambda: parent.told("process_died")[buried:], "the parent has noticed")
    if said[0]["status"] != -signal.SIGKILL:
        scene.violations.append(f"the parent says that its child ended otherwise: {said[0]}")
    scene.until_state(victim, "succeeded")
    (won,) = [a for a in reading.attempts(conn, victim) if a["outcome"] == "succeeded"]
    if won["at"] >= lease["expires_at"]:
        scene.violations.append("the dead child's job had to wait for its lease to run out")


CLOCK = Kind(
    "clock",
    "a worker whose clock is an hour ahead or behind is stopped or killed",
    play_clock,
    quick=1,
    ground="guests",
    needs=no_fake_clock,
)
BLOCKED_LOOP = Kind(
    "blocked_loop",
    "a handler blocks its worker's event loop for longer than the lease, which is kept",
    play_blocked_loop,
    quick=1,
    token_rises=False,
    at_default=0,
)
POISON = Kind(
    "poison",
    "a job kills every process that runs it, until it is in quarantine with the evidence",
    play_poison,
    quick=1,
    at_default=0,
)
DEAD_CHILD = Kind(
    "dead_child",
    "SIGKILL of one of a worker's processes, whose parent notices at once",
    play_dead_child,
    quick=1,
    ground="guests",
)
