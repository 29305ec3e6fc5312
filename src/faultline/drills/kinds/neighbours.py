"""Jobs that must not stop their neighbours: a payload too large for a claim, many leases lost."""

from __future__ import annotations

import os
import subprocess
import sys

from faultline.drills.arena import until
from faultline.drills.scenario import Kind
from faultline.drills.scene import Scene
from faultline.drills.workers import end_with_parent

# 600 numbers are stored in a few kilobytes and print 78 MB; a claim returns 64 MiB at most.
HUGE = (
    "update {schema}.job set payload_bytes = null, payload = jsonb_build_object('x', "
    "(select jsonb_agg(1e131071::numeric) from generate_series(1, 600))) where id = %s"
)
ZONE = 1200  # jobs; a recovery takes 1,000 a call
LOOKED_AT = 20  # of them


def play_poison_payload(scene: Scene) -> None:
    """Put a payload of the release before, which measured no text, in front of other jobs."""
    arena = scene.arena
    victim = scene.enqueue("pay", effects=0, states=["quarantined"], delay_seconds=3600)
    arena.conn.execute(HUGE.replace("{schema}", arena.schema), (victim,))
    with arena.quiet():
        arena.verbs.retry([victim]).run(arena.conn)
        scene.bystanders()
    scene.record(arena.fault("a payload of 78 MB", arena.conn.info.backend_pid), victim)
    scene.until_state(victim, "quarantined")
    job = arena.reading.job(arena.conn, victim)
    assert job is not None
    if job["quarantine_reason"] != "undeliverable":
        scene.violations.append(f"it is in quarantine as {job['quarantine_reason']}")
    if attempts := arena.reading.attempts(arena.conn, victim):
        scene.violations.append(f"{len(attempts)} attempts were made of a job that none could see")


def play_zone_lost(scene: Scene) -> None:
    """Kill a process that holds more leases than a recovery takes in one call."""
    arena = scene.arena
    with arena.quiet():
        jobs = [scene.enqueue("pay") for _ in range(ZONE)]
        process = subprocess.Popen(
            [sys.executable, "-m", "faultline.drills.claimant", "claimant", str(ZONE)],
            env={**os.environ, **arena.environment()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
            preexec_fn=end_with_parent,
        )
        assert process.stdout is not None
        held = int(process.stdout.readline() or 0)
        process.kill()
        process.communicate()
        scene.record(arena.fault(f"SIGKILL with {held} leases", process.pid), *jobs[:LOOKED_AT])
    if held < ZONE:
        scene.violations.append(f"the process held {held} of {ZONE} leases: too few to show much")
    resting = f"select count(*) from {arena.schema}.lease where worker = 'claimant'"
    until(lambda: arena.conn.execute(resting).fetchone() == (0,), "all its leases are taken over")


POISON_PAYLOAD = Kind(
    "poison_payload",
    "a payload whose text is larger than any claim may answer with, in front of other jobs",
    play_poison_payload,
    quick=1,
    token_rises=False,
    at_default=0,
)
ZONE_LOST = Kind(
    "zone_lost",
    f"SIGKILL of a process that holds {ZONE} leases: more than a recovery takes in one call",
    play_zone_lost,
    quick=1,
    at_default=0,
)
