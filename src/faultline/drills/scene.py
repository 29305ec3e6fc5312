"""A scene: one scenario while it is played in an arena, and how it is judged at its end.

A kind's `play` reads as a story: enqueue, wait until the job is held at a point, do something
terrible, see somebody else take over. Everything it does by chance it takes from `random`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from faultline.drills import checker, effects, history
from faultline.drills.app import app
from faultline.drills.arena import Arena, Fault, NotStaged, WaitedInVain, until
from faultline.drills.checker import Expected, Found, stale_writes
from faultline.drills.history import Operation
from faultline.drills.points import Arrival
from faultline.drills.scenario import Kind, Result, Scenario
from faultline.drills.timeline import timeline
from faultline.drills.workers import WorkerProcess
from faultline.launcher.processes import is_alive

PAYING = (
    *("pay", "pay_async", "pay_in_steps", "pay_in_a_block"),
    *("pay_through_the_gate", "pay_into_a_guarded_table"),
)
ONE_COMMIT = ("pay", "pay_async")  # those whose effects and success are one commit
WORKERS = 2
REST_SECONDS = 120.0  # for everything to end, after the last fault


class Scene:
    """What a kind's `play` is given."""

    def __init__(self, arena: Arena, kind: Kind, scenario: Scenario) -> None:
        self.arena = arena
        self.kind = kind
        self.scenario = scenario
        self.lease_seconds = scenario.lease_seconds
        self.random: random.Random = scenario.random()
        self.token_rises = kind.token_rises  # a play that is an exception says so
        self.stale_is_refused = kind.stale_is_refused
        self.violations: list[str] = []  # what the play itself saw
        self.faults: list[Fault] = []
        self._expected: dict[str, Expected] = {}
        self._held: list[tuple[str, str]] = []
        self._stopped: list[WorkerProcess] = []
        self._hit: dict[str, str] = {}  # job to the time at which it was hit
        self._start = 0  # of this scene, in the history
        self._began_at = ""
        self._lost = range(0)

    # ── jobs ────────────────────────────────────────────────────────────────────────────────────

    def enqueue(
        self,
        task: str | None = None,
        *,
        hold: Sequence[str] = (),
        effects: int = 1,
        states: Sequence[str] = ("succeeded",),
        **options: Any,
    ) -> UUID:
        """A job of one of the paying tasks, whose first attempt is held at these points."""
        name = task or self.random.choice(PAYING)
        names = [f"effect-{number}" for number in range(effects)]
        options = {"lease_seconds": self.lease_seconds, **options}
        sender = app.tasks[name].options(connection=self.arena.conn, **options)
        self.arena.history.add("enqueue", "invoke", "")
        job = sender.enqueue(**self.arguments(names, hold))
        self.expect(job.id, names, states)
        self._held += [(str(job.id), point) for point in hold]
        return job.id

    def arguments(self, names: Sequence[str], hold: Sequence[str] = ()) -> dict[str, Any]:
        """What a job of the drill's app is told."""
        return {"folder": str(self.arena.folder), "hold": list(hold), "effects": list(names)}

    def expect(self, job_id: UUID, names: Sequence[str], states: Sequence[str]) -> None:
        """An acknowledged job, and what is to become of it."""
        self._expected[str(job_id)] = Expected(names, frozenset(states))
        self.arena.asked_for.add(str(job_id))
        self.arena.history.add("enqueue", "ok", job_id)

    def tell_retries(self, job_id: UUID, answers: Sequence[Any]) -> None:
        """What a crowd was answered that retried this job."""
        for answer in answers:
            self.arena.history.add("retry", "ok" if answer else "fail", job_id)

    def bystanders(self, least: int = 5, most: int = 9) -> list[UUID]:
        """Jobs that nothing is done to, except that they run beside the others."""
        return [self.enqueue() for _ in range(self.random.randint(least, most))]

    def reached(self, job_id: UUID, point: str) -> Arrival:
        """Wait until the job is held there."""
        name = str(job_id)
        return until(lambda: self.arena.points.arrival(name, point), f"a job is held at {point}")

    def go(self, job_id: UUID, point: str) -> None:
        """Let it go on."""
        self.arena.points.open(str(job_id), point)

    def state(self, job_id: UUID) -> str:
        """Where it stands."""
        job = self.arena.reading.job(self.arena.conn, job_id)
        return "absent" if job is None else str(job["state"])

    def until_state(self, job_id: UUID, *states: str) -> None:
        """Wait until it stands there."""
        until(lambda: self.state(job_id) in states, f"a job is {' or '.join(states)}")

    def until_refused(self, job_id: UUID) -> None:
        """Wait until the database has refused a stale write of a handler of this job: more than
        the renewal of its lease, or its completion, which the worker tries for it."""
        of_workers = ("renew", "complete")

        def refused() -> bool:
            told = {i.job_id for i in self.operations() if i.doing == "write" and i.phase == "fail"}
            found = self._refusals(job_id)
            by_handler = [r for r in found if r["operation"] not in of_workers]
            return bool(by_handler) or (str(job_id) in told and stale_writes(found) > 0)

        until(refused, "a stale write is refused")

    def until_answered(self, job_id: UUID, token: int) -> None:
        """Wait until this attempt was told what came of its write, or was refused any."""

        def answered() -> bool:
            told = {(i.job_id, i.token) for i in self.operations() if _is_answer(i)}
            own = [r for r in self._refusals(job_id) if r["stale_token"] == token]
            return (str(job_id), token) in told or stale_writes(own) > 0

        until(answered, "a late write is answered")

    def _refusals(self, job_id: UUID) -> list[dict[str, Any]]:
        return self.arena.reading.refusals(self.arena.conn, job_id)

    # ── faults ──────────────────────────────────────────────────────────────────────────────────

    def kill(self, pid: int, *hit: UUID) -> Fault:
        """SIGKILL the worker that runs as this process."""
        return self.record(self.arena.kill(self.arena.worker_of(pid)), *hit)

    def stop(self, pid: int, *hit: UUID) -> Fault:
        """SIGSTOP it."""
        worker = self.arena.worker_of(pid)
        self._stopped.append(worker)
        return self.record(self.arena.stop(worker), *hit)

    def resume(self, pid: int) -> None:
        """SIGCONT."""
        worker = self.arena.worker_of(pid)
        worker.resume()
        self._stopped.remove(worker)

    def record(self, fault: Fault, *hit: UUID) -> Fault:
        """A fault, and the jobs that it hit."""
        self.faults.append(fault)
        for job_id in hit:
            self._hit.setdefault(str(job_id), fault.at)
        return fault

    # ── the whole of it ─────────────────────────────────────────────────────────────────────────

    def run(self) -> Result:
        """Play it, let everything come to rest, and judge."""
        result = Result.of(self.scenario)
        began = time.monotonic()
        _, self._start = history.read(self.arena.history_path)
        self._began_at = self.arena.now()
        self.arena.logged()  # what was said before is no matter of ours
        try:
            self.arena.ensure(WORKERS)
            self.kind.play(self)
        except NotStaged as error:  # the arena is not used again
            result.void, result.violations = str(error), self.violations
            result.seconds = round(time.monotonic() - began, 3)
            return result
        except WaitedInVain as error:
            result.violations.append(f"stuck: {error}")
        try:
            self._come_to_rest()
        except WaitedInVain as error:
            result.violations.append(f"stuck: {error}")
        self._judge(result, [item for item in self._honest() if self._is_mine(item)])
        result.seconds = round(time.monotonic() - began, 3)
        return result

    def _is_mine(self, operation: Operation) -> bool:
        return operation.doing == "fault" or operation.job_id in self._expected

    def _come_to_rest(self) -> None:
        """Everybody goes on; nothing is held; every job ends; every handler has said its last."""
        for worker in list(self._stopped):
            self.resume(worker.pid)
        for job_id, point in self._held:
            self.arena.points.open(job_id, point)
        self.arena.top_up(WORKERS)
        ids = [UUID(job_id) for job_id in self._expected]
        resting = (
            f"select not exists (select from {self.arena.schema}.jobs where id = any(%s) "
            "and state in ('queued', 'scheduled', 'running', 'lost'))"
        )
        asked = self.arena.conn.execute
        until(
            lambda: asked(resting, (ids,)).fetchone() == (True,),
            "every job has ended",
            REST_SECONDS,
        )
        until(lambda: not self._talking(), "every handler has said what came of its writes")

    def _talking(self) -> bool:
        """Whether a living worker still has to say what came of a write."""
        done = [item for item in self.operations() if item.doing == "write"]
        answered = {(i.job_id, i.token, i.effect) for i in done if i.phase != "invoke"}
        waiting = {i.pid for i in done if (i.job_id, i.token, i.effect) not in answered}
        return any(is_alive(pid) for pid in waiting)

    def operations(self) -> list[Operation]:
        """What has been done since this scene began."""
        return history.read(self.arena.history_path, self._start)[0]

    def only_the_lost_knew(self, start: int, end: int) -> None:
        """What was acknowledged from this operation to that one, a server that is lost has
        acknowledged, and nobody else knew: it may be there or not."""
        self._lost = range(start, end)

    def _honest(self) -> list[Operation]:
        """The operations, with what became of those acknowledgements: nobody knows."""
        why = "acknowledged only by a server that is lost"
        return [
            replace(item, phase="unknown", why=why)
            if number in self._lost and item.phase == "ok" and item.doing != "fault"
            else item
            for number, item in enumerate(self.operations())
        ]

    def executions(self, job_id: UUID) -> list[Operation]:
        """The attempts of a job that have begun, in this order."""
        return [
            item
            for item in self.operations()
            if (item.doing, item.job_id) == ("execute", str(job_id))
        ]

    def _judge(self, result: Result, done: list[Operation]) -> None:
        conn, reading = self.arena.conn, self.arena.reading
        ids = [UUID(job_id) for job_id in self._expected]
        schema = self.arena.schema
        states: dict[str, str] = dict(
            conn.execute(
                f"select id::text, state from {schema}.jobs where id = any(%s)", (ids,)
            ).fetchall()
        )
        attempts = {str(job_id): reading.attempts(conn, job_id) for job_id in ids}
        written = effects.rows(conn, ids)
        found = Found(
            self._expected,
            [*done, *(item for item in self.arena.logged() if item.job_id in self._expected)],
            written,
            states,
            attempts,
            reading.violations(conn),
            self._strangers(),
        )
        refusals = [refusal for job_id in self._hit for refusal in self._refusals(UUID(job_id))]
        result.violations += self.violations + checker.check(found)
        result.faults = [asdict(fault) for fault in self.faults]
        result.jobs = len(ids)
        result.committed = sum(map(len, written.values()))
        result.tokens = {
            job_id: sorted(
                {row["fencing_token"] for row in attempts[job_id]}
                | {item.token for item in self.executions(UUID(job_id)) if item.token is not None}
            )
            for job_id in self._hit
        }
        result.stale_refused = stale_writes(refusals)
        result.duplicates = checker.duplicates(written)
        result.lost = len(checker.lost(found))
        result.vacuous = self._vacuous(result)
        self._measure(result, attempts)
        result.timeline = timeline(done, self._hit, attempts, refusals)

    def _strangers(self) -> list[str]:
        """The jobs that are there since this scene began, or have written, and nobody asked for."""
        asked = (
            f"select id::text from {self.arena.schema}.jobs where created_at >= %s "
            f"union select job_id::text from {effects.SCHEMA}.effects where at >= %s"
        )
        found = self.arena.conn.execute(asked, (self._began_at, self._began_at)).fetchall()
        return sorted({job_id for (job_id,) in found} - self.arena.asked_for)

    def _vacuous(self, result: Result) -> str | None:
        """Why this scenario shows nothing, if it shows nothing."""
        if not self.faults:
            return "no fault happened"
        if not result.committed:
            return "nothing was committed"
        if self.token_rises and not any(len(set(t)) > 1 for t in result.tokens.values()):
            return "no token rose"
        if self.stale_is_refused and not result.stale_refused:
            return "no stale write was refused"
        return None

    def _measure(self, result: Result, attempts: dict[str, list[dict[str, Any]]]) -> None:
        """From the fault, and from the expiry, to the successor's commit, by the database."""
        for job_id, hit_at in self._hit.items():
            hit = datetime.fromisoformat(hit_at)
            won = [a for a in attempts[job_id] if a["outcome"] == "succeeded"]
            if not won or won[0]["claimed_at"] <= hit:
                continue  # nobody had to take over
            if (job_id, "again") in self._held:
                continue  # the successor was held, too
            result.recovery_seconds.append((won[0]["at"] - hit).total_seconds())
            for lost in attempts[job_id]:
                expiry = lost["lease_expired_at"]
                if expiry is not None and lost["claimed_at"] <= hit <= expiry:
                    result.after_expiry_seconds.append((won[0]["at"] - expiry).total_seconds())


def _is_answer(operation: Operation) -> bool:
    return operation.doing == "write" and operation.phase != "invoke"
