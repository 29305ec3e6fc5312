"""A worker stalls (SIGSTOP) until another has taken its job over; then it wakes up and writes."""

from __future__ import annotations

from faultline.drills.scenario import Kind
from faultline.drills.scene import PAYING, Scene


def play(scene: Scene) -> None:
    """The seed says at which point it stalls, and in which of the fenced ways it writes."""
    moment = scene.random.choice(["begin", "begin", "written", "committed"])
    task = "pay_in_steps" if moment == "committed" else scene.random.choice(PAYING)
    victim = scene.enqueue(task, hold=[moment], effects=scene.random.randint(1, 2))
    scene.bystanders()
    arrival = scene.reached(victim, moment)
    scene.stop(arrival.pid, victim)
    scene.until_state(victim, "succeeded")
    scene.go(victim, moment)
    scene.resume(arrival.pid)
    scene.until_refused(victim)


TAKEOVER = Kind(
    "takeover",
    "SIGSTOP of the worker until another has finished its job, then SIGCONT: the late write",
    play,
    full=220,
    quick=8,
    at_default=6,
    stale_is_refused=True,
)
