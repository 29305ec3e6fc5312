"""A worker process dies (SIGKILL): before, in the middle of, or after a commit."""

from __future__ import annotations

from faultline.drills.arena import until
from faultline.drills.effects import hold_commit, is_held, release_commit
from faultline.drills.scenario import Kind
from faultline.drills.scene import ONE_COMMIT, PAYING, Scene


def play_crash(scene: Scene) -> None:
    """The seed says at which point the worker dies."""
    moment = scene.random.choice(["begin", "written", "committing", "committed"])
    if moment == "committing":
        _die_while_committing(scene)
        return
    task = "pay_in_steps" if moment == "committed" else scene.random.choice(PAYING)
    victim = scene.enqueue(task, hold=[moment], effects=scene.random.randint(1, 2))
    scene.bystanders()
    arrival = scene.reached(victim, moment)
    scene.kill(arrival.pid, victim)
    scene.until_state(victim, "succeeded")


def _die_while_committing(scene: Scene) -> None:
    """The COMMIT is under way in the server, which does not notice that nobody waits for it."""
    scene.token_rises = False  # the server may well finish what it has begun
    conn = scene.arena.conn
    victim = scene.enqueue(scene.random.choice(ONE_COMMIT), hold=["begin", "committing"])
    scene.bystanders()
    arrival = scene.reached(victim, "begin")
    hold_commit(conn, victim)
    try:
        scene.go(victim, "begin")
        until(lambda: is_held(conn, victim), "its COMMIT is under way")
        scene.kill(arrival.pid, victim)
    finally:
        release_commit(conn, victim)
    scene.until_state(victim, "succeeded")


def play_partial_write(scene: Scene) -> None:
    """It dies between two writes that belong together: none of them may stay, or each once."""
    victim = scene.enqueue(hold=["written"], effects=scene.random.randint(2, 4))
    scene.bystanders()
    arrival = scene.reached(victim, "written")
    scene.kill(arrival.pid, victim)
    scene.until_state(victim, "succeeded")


CRASH = Kind(
    "crash",
    "SIGKILL of the worker before, during or after the commit of its job",
    play_crash,
    full=220,
    quick=8,
    at_default=6,
)
PARTIAL_WRITE = Kind(
    "partial_write",
    "SIGKILL of the worker between two writes that belong together",
    play_partial_write,
    full=220,
    quick=8,
)
