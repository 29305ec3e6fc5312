"""A worker stalls (SIGSTOP) until another has taken its job over; then it wakes up and writes."""

from __future__ import annotations

from itertools import product
from uuid import UUID

from faultline.drills.scenario import Kind
from faultline.drills.scene import PAYING, Scene

# (where it stalls, how it writes, whether it wakes up while its successor is still at work)
DECK = [
    *product(["begin", "written"], PAYING, [True, False]),
    *product(["committed"], ["pay_in_steps"], [True, False]),
]
# When its successor is done it has nothing to write: its step is.
DECK.remove(("begin", "pay_in_steps", False))
_STRIDE = 7  # coprime to the deck's size: any few seeds in a row are of many sorts


def play(scene: Scene) -> None:
    """The seed deals a card."""
    moment, task, meets = DECK[scene.scenario.seed * _STRIDE % len(DECK)]
    hold = [moment, "again"] if meets else [moment]
    # Of two steps the second is left to write after the first was committed.
    effects = 2 if moment == "committed" else scene.random.randint(1, 2)
    victim = scene.enqueue(task, hold=hold, effects=effects)
    scene.bystanders()
    arrival = scene.reached(victim, moment)
    scene.stop(arrival.pid, victim)
    wake(scene, arrival.pid, [victim], moment, meets=meets)


def wake(scene: Scene, pid: int, victims: list[UUID], moment: str, *, meets: bool) -> None:
    """It goes on when others have begun its jobs, or have finished them, and is refused."""
    for job_id in victims:
        if meets:
            scene.reached(job_id, "again")
        else:
            scene.until_state(job_id, "succeeded")
    for job_id in victims:
        scene.go(job_id, moment)
    scene.resume(pid)
    for job_id in victims:
        scene.until_refused(job_id)
    for job_id in victims:
        scene.go(job_id, "again")
        scene.until_state(job_id, "succeeded")


TAKEOVER = Kind(
    "takeover",
    "SIGSTOP of the worker until another has taken its job over, then SIGCONT: the late write",
    play,
    full=220,
    quick=8,
    at_default=6,
    stale_is_refused=True,
)
