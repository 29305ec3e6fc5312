"""Sessions that end in mid-job: terminated by the server, or with the server."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from uuid import UUID

from faultline.drills.arena import Arena, Fault, until
from faultline.drills.scenario import Kind
from faultline.drills.scene import PAYING, Scene
from faultline.drills.workers import WorkerProcess
from faultline.launcher import Server
from faultline.launcher.processes import is_alive


def backends(arena: Arena, worker: WorkerProcess, state: str = "%") -> list[int]:
    """The server's processes for this worker, now; another arena's worker may have its name."""
    asked = (
        "select pid from pg_stat_activity where datname = current_database() "
        "and application_name = %s and state like %s"
    )
    return [pid for (pid,) in arena.conn.execute(asked, (worker.name, state))]


def until_gone(arena: Arena, pids: Sequence[int]) -> None:
    """Wait until the server has no such process any more."""
    asked = "select not exists (select from pg_stat_activity where pid = any(%s))"
    until(
        lambda: arena.conn.execute(asked, (list(pids),)).fetchone() == (True,),
        "a backend is gone",
    )


def play_terminated(scene: Scene) -> None:
    """All sessions of the worker, or only the one in whose transaction it has written."""
    arena = scene.arena
    moment = scene.random.choice(["begin", "written", "written"])
    only_its_own = moment == "written" and scene.random.random() < 0.5
    victim = scene.enqueue(hold=[moment], effects=scene.random.randint(1, 2))
    scene.bystanders()
    worker = arena.worker_of(scene.reached(victim, moment).pid)
    pids = backends(arena, worker, "idle in transaction" if only_its_own else "%")
    for pid in pids:
        arena.conn.execute("select pg_terminate_backend(%s)", (pid,))
    until_gone(arena, pids)
    scene.record(arena.fault(f"pg_terminate_backend, {len(pids)} sessions", pids[0]), victim)
    # Held before it has begun to write, it does not even notice: the lease is kept.
    scene.token_rises = moment == "written"
    scene.go(victim, moment)
    scene.until_state(victim, "succeeded")


# ── the server itself ────────────────────────────────────────────────────────────────────────────


def stop_at_once(arena: Arena, server: Server, _: WorkerProcess) -> Fault:
    """No checkpoint, no good-bye; then a start, with recovery."""
    pid, at = server.pid, arena.now()
    server.run("pg_ctl", "stop", "--mode=immediate", "--pgdata", server.data, timeout_seconds=60)
    until(lambda: not is_alive(pid), "the server is down")
    fault = arena.fault("pg_ctl stop -m immediate", pid, at)
    server.restart()
    return fault


def kill_postmaster(arena: Arena, server: Server, _: WorkerProcess) -> Fault:
    """Its children find out for themselves."""
    pid, at = server.pid, arena.now()
    os.kill(pid, signal.SIGKILL)
    until(lambda: not is_alive(pid), "the postmaster is dead")
    fault = arena.fault("SIGKILL of the postmaster", pid, at)
    server.restart()
    return fault


def kill_backend(arena: Arena, _: Server, worker: WorkerProcess) -> Fault:
    """One of the worker's, in its transaction: the server ends all sessions and recovers."""
    pid, at = backends(arena, worker, "idle in transaction")[0], arena.now()
    os.kill(pid, signal.SIGKILL)
    until(lambda: not is_alive(pid), "the backend is dead")
    return arena.fault("SIGKILL of a backend", pid, at)


HOW: Sequence[Callable[[Arena, Server, WorkerProcess], Fault]] = (
    stop_at_once,
    kill_postmaster,
    kill_backend,
)


def play_restarted(scene: Scene) -> None:
    """While jobs are held, some of them in their transactions, and others run."""
    arena = scene.arena
    assert arena.server is not None
    how = scene.random.choice(HOW)
    moments = ["written", *scene.random.choices(["begin", "written"], k=2)]
    held: dict[UUID, str] = {}
    for moment in moments:
        held[scene.enqueue(scene.random.choice(PAYING), hold=[moment], effects=2)] = moment
    arrivals = {job_id: scene.reached(job_id, moment) for job_id, moment in held.items()}
    first = next(iter(held))
    worker = arena.worker_of(arrivals[first].pid)
    scene.bystanders()
    scene.record(how(arena, arena.server, worker), *held)
    arena.reconnect()
    scene.bystanders(1, 3)
    for job_id, moment in held.items():
        scene.go(job_id, moment)
    for job_id in held:
        scene.until_state(job_id, "succeeded")


BACKEND_TERMINATED = Kind(
    "backend_terminated",
    "pg_terminate_backend of a worker's sessions, before it writes or in its transaction",
    play_terminated,
)
SERVER_RESTARTED = Kind(
    "server_restarted",
    "the server stops at once, or SIGKILL hits its postmaster or a backend; then it recovers",
    play_restarted,
    quick=1,
    ground="own server",
)
