"""A primary dies whose standby has not seen everything, and the standby takes its place.

The standby is asynchronous: what the primary acknowledged after the two were cut apart is lost with
it, as with any queue on such a pair. The history says of those acknowledgements that nobody but the
lost primary knew of them; they may be absent, and nothing else may.

The scenario is void if the standby does not lag: a claim that was on its way when the workers were
stopped may lease the victim before the two are cut apart.
"""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

from faultline.connect import connect
from faultline.drills.arena import OPTIONS, Arena, NotStaged, staging, until
from faultline.drills.scenario import Kind
from faultline.drills.scene import PAYING, Scene
from faultline.drills.workers import state_of
from faultline.launcher import Server
from faultline.launcher.processes import is_alive

# After a minute of silence it would ask the primary for another walsender, and catch up.
DEAF = {"wal_receiver_timeout": "0"}


def no_proc() -> str | None:
    """Why it cannot be seen here that a process is stopped, if it cannot."""
    return None if state_of(os.getpid()) else "there is no /proc on this system"


def play(scene: Scene) -> None:
    """Work goes on after the cut; a worker that was leased a job there comes back at the end."""
    arena = scene.arena
    assert arena.server is not None
    assert arena.proxy is not None
    primary, proxy = arena.server, arena.proxy
    with ExitStack() as stack:
        standby = primary.standby(options={**OPTIONS, **DEAF})
        stack.callback(standby.stop)
        standby.start()
        for job_id in scene.bystanders(2, 4):  # seen by both
            scene.until_state(job_id, "succeeded")
        moment = scene.random.choice(["begin", "begin", "committed"])
        task = "pay_in_steps" if moment == "committed" else scene.random.choice(PAYING)
        with arena.quiet():
            _await_claims(arena)
            victim = scene.enqueue(task, hold=[moment], effects=2)
            known = [victim, *scene.bystanders(3, 5)]
            with staging():
                _catch_up(arena)
                walsender = _cut_off(scene)
            stack.callback(_let_die, walsender)
            start = len(scene.operations())
        pid = _work_on(scene, victim, known, moment)
        with staging():
            _insist_on_lag(scene, standby, victim)
        scene.stop(pid, victim)
        _lose(scene, primary, walsender, known)
        scene.only_the_lost_knew(start, len(scene.operations()))
        standby.run("pg_ctl", "promote", "--pgdata", standby.data, "--wait", timeout_seconds=60)
        arena.server = standby
        stack.pop_all()
    proxy.redirect(standby.url)
    arena.reconnect(_moved(arena.url, standby))
    for job_id in known:
        scene.until_state(job_id, "succeeded")
    scene.go(victim, moment)
    scene.resume(pid)
    scene.until_refused(victim)
    _tokens_rose(scene, known, start)


def _await_claims(arena: Arena) -> None:
    """A claim that a worker sent before it was stopped would be given the next job."""
    asked = (
        "select not exists (select from pg_stat_activity where state = 'active' "
        "and datname = current_database() and pid <> pg_backend_pid())"
    )
    until(lambda: arena.conn.execute(asked).fetchone() == (True,), "no claim is under way")


def _catch_up(arena: Arena) -> None:
    """The standby has replayed everything; nobody writes meanwhile."""
    asked = (
        "select exists (select from pg_stat_replication "
        "where state = 'streaming' and replay_lsn >= pg_current_wal_insert_lsn())"
    )
    until(lambda: arena.conn.execute(asked).fetchone() == (True,), "the standby has caught up")


def _cut_off(scene: Scene) -> int:
    """From here on nothing reaches the standby."""
    asked = "select pid from pg_stat_replication where state = 'streaming'"
    senders = scene.arena.conn.execute(asked).fetchall()
    if len(senders) != 1:
        raise NotStaged(f"the primary has {len(senders)} standbys, not one")
    walsender = int(senders[0][0])
    os.kill(walsender, signal.SIGSTOP)
    until(lambda: state_of(walsender) == "T", "the walsender is stopped")
    scene.record(scene.arena.fault("SIGSTOP of the walsender", walsender))
    return walsender


def _let_die(walsender: int) -> None:
    """A stopped one would hold up its server's end, where the play comes to an early one."""
    if state_of(walsender) == "T":
        os.kill(walsender, signal.SIGKILL)


def _work_on(scene: Scene, victim: UUID, known: list[UUID], moment: str) -> int:
    """Everything but the victim is done, and more is accepted, of which the standby hears nothing;
    who holds the victim."""
    for job_id in (*scene.bystanders(1, 3), *known[1:]):
        scene.until_state(job_id, "succeeded")
    return scene.reached(victim, moment).pid


def _insist_on_lag(scene: Scene, standby: Server, victim: UUID) -> None:
    """The standby has replayed all that reached it, and does not know of the victim's lease."""
    arena = scene.arena
    with connect(_moved(arena.url, standby), schema=arena.schema) as conn:

        def received() -> str | None:
            row = conn.execute(
                "select pg_last_wal_receive_lsn()::text "
                "where pg_last_wal_replay_lsn() >= pg_last_wal_receive_lsn()"
            ).fetchone()
            return None if row is None else str(row[0])

        def is_ahead(lsn: str) -> bool:
            ask = "select pg_current_wal_flush_lsn() > %s::pg_lsn"
            return arena.conn.execute(ask, (lsn,)).fetchone() == (True,)

        lsn = until(received, "the standby has replayed what reached it")
        until(lambda: is_ahead(lsn), "the primary is ahead of its standby")
        behind = arena.reading.job(conn, victim)
    if behind is None or behind["state"] != "queued":
        raise NotStaged("the standby does not lag: it knows that the job was leased")


def _lose(scene: Scene, primary: Server, walsender: int, known: list[UUID]) -> None:
    """SIGKILL; and nothing of it lives on that could still accept a commit."""
    pid, at = primary.pid, scene.arena.now()
    os.kill(pid, signal.SIGKILL)
    until(lambda: not is_alive(pid), "the primary is dead")
    scene.record(scene.arena.fault("SIGKILL of the primary", pid, at), *known)
    os.kill(walsender, signal.SIGKILL)
    primary.stop()


def _moved(url: str, server: Server) -> str:
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0]
    return urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{server.port}"))


def _tokens_rose(scene: Scene, known: list[UUID], start: int) -> None:
    """Above everything that the lost primary has handed out."""
    end = next(
        number
        for number, item in enumerate(scene.operations())
        if number >= start and item.why == "SIGKILL of the primary"
    )
    begun = [(n, i) for n, i in enumerate(scene.operations()) if i.doing == "execute"]
    for job_id in map(str, known):
        lost = [i.token or 0 for n, i in begun if i.job_id == job_id and n < end]
        since = [i.token or 0 for n, i in begun if i.job_id == job_id and n > end]
        if not lost or not since or max(lost) >= min(since):
            scene.violations.append(f"job {job_id} ran under {lost}, after the failover {since}")


FAILOVER = Kind(
    "failover",
    "SIGKILL of the primary while its standby lags behind, which then takes its place",
    play,
    quick=1,
    ground="own standby",
    stale_is_refused=True,
    needs=no_proc,
)
