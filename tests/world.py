"""Three workers that forget nothing, and the world around them, as a hypothesis state machine.

Each step is one verb (or one turn of fate: a lease expires, a pointer is lost) on the server and on
the oracle of tests/oracle.py, and is told. A step is a name and what was drawn for it, so that a
story can be played again without hypothesis. See tests/test_properties.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from faultline.call import Call
from faultline.errors import IdempotencyConflict
from tests.oracle import FINAL, Attempt, Fact, Job, Oracle
from tests.stage import Stage
from tests.story import Story, digits

QUEUES = ("mail", "bank")
LATER_SECONDS = 3600.0
LONG = dict.fromkeys(("lease_seconds", "backoff_seconds", "backoff_cap_seconds"), LATER_SECONDS)
PLACES = {"queued": "ready", "scheduled": "scheduled", "running": "lease"}
EMPTIED = "job, attempt, ready, scheduled, lease, quarantine, refusal, idempotency, cancel_request"

boolean = st.booleans()
index = st.integers(0, 5)  # counted from the newest, live ones first; shrinks to the usual case
batch = st.lists(index, min_size=1, max_size=4)
each = st.integers(0, 15).map(lambda bits: [bool(bits >> n & 1) for n in range(4)])
alone = st.lists(index, min_size=1, max_size=1)
few = st.integers(1, 4)
limits = st.tuples(few, few)  # max_attempts, max_crashes
workers = st.sampled_from("ABC")
queue = st.sampled_from(QUEUES)
served = st.sampled_from([QUEUES, QUEUES[::-1], QUEUES[:1], QUEUES[1:]])
lanes = st.tuples(queue, st.sampled_from([0, 5]))
keyed = st.tuples(st.sampled_from([None, None, "k", "l"]), st.integers(1, 2))  # key, payload
wanted = st.lists(keyed, min_size=1, max_size=3)
gates = st.sampled_from(["complete_one", "complete_one", "assert_fence", "fence"])
upkeep = st.sampled_from(["resume", "pause", "epoch_bump", "compact"])
attempts = {"who": index, "which": batch}
settling = {**attempts, "later": each, "dead": each}

# name: how often, of which states a job has to be there (None: none), and what is drawn for it
STEPS: dict[str, tuple[int, str | None, dict[str, Any]]] = {
    "enqueue": (2, None, {"wanted": wanted, "lane": lanes, "limits": limits, "later": boolean}),
    "claim": (4, "queued", {"worker": workers, "size": few, "served": served, "started": boolean}),
    "take_over": (2, "running", {"which": alone, "worker": workers}),
    "execute": (1, "", settling),
    "renew": (1, "", attempts),
    "complete": (2, "", settling),
    "fail": (2, "", settling),
    "snooze": (1, "", settling),
    "decline": (1, "", settling),
    "release": (1, "", settling),
    "cancel_attempt": (1, "", settling),
    "write": (3, "", {**attempts, "which": alone, "verb": gates, "commits": boolean}),
    "lease_expires": (2, "running", {"which": alone}),
    "time_comes": (1, "scheduled", {"which": alone}),
    "reclaim": (1, "running", {"size": few}),
    "reclaim_dead": (1, "running", {"worker": workers, "which": batch, "all_of_them": boolean}),
    "release_others": (1, "", attempts),
    "promote": (1, "scheduled", {"size": few}),
    "retry": (1, "scheduled", {"which": batch}),
    "cancel": (1, "", {"which": batch}),
    "requeue": (1, "failed quarantined", {"which": batch}),
    "rescue": (1, "queued scheduled running", {"which": alone, "lost": boolean}),
    "maintain": (1, None, {"what": upkeep, "queue": queue}),
}
NAMES = [name for name, (weight, *_) in STEPS.items() for _ in range(weight)]
# In each example something is left out, so that the rest goes deeper.
MUTED = ("", "cancel cancel_attempt maintain rescue", "complete fail write cancel", "take_over")
Step = tuple[str, dict[str, Any]]


class World(RuleBasedStateMachine):
    """Three workers and everybody else, on the stage that a subclass names."""

    stage: Stage
    latest: World

    def __init__(self) -> None:
        super().__init__()
        self.verbs = self.stage.verbs
        self.conn = self.stage.conn
        clean(self.stage)
        self.oracle = Oracle(self.stage.value("select {schema}.new_id()"))
        self.story = Story(self.conn, self.oracle)
        self.memory: dict[str, list[Attempt]] = {}
        self.steps: list[Step] = []
        type(self).latest = self

    @initialize(size=few, lane=lanes, muted=st.sampled_from(MUTED))
    def begin(self, size: int, lane: tuple[str, int], muted: str) -> None:
        self.names = [name for name in NAMES if name not in muted.split()]
        jobs = {"wanted": [(None, 1)] * size, "lane": lane, "limits": (3, 2), "later": False}
        self.play("enqueue", jobs)

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.names).filter(self.possible), "step")
        self.play(name, data.draw(st.fixed_dictionaries(STEPS[name][2]), "with"))

    def possible(self, name: str) -> bool:
        _, states, drawn = STEPS[name]
        if "who" in drawn:
            return bool(self.memory)
        return states is None or bool(self.oracle.standing(*states.split()))

    def play(self, name: str, drawn: dict[str, Any]) -> None:
        given = {key: value for key, value in drawn.items() if key not in ("who", "which", "meant")}
        if "who" in drawn:
            given["attempts"] = meant = self.recall(drawn)
        elif "which" in drawn:
            given["jobs"] = self.pick(drawn, (STEPS[name][1] or "").split())
            meant = [job.number for job in given["jobs"]]
        self.steps.append((name, {**drawn, "meant": meant} if "which" in drawn else drawn))
        deed = functools.partial(self.settle, name) if "dead" in drawn else getattr(self, name)
        deed(**given)

    # ── what a step is made of ───────────────────────────────────────────────────────────────────
    # Told again, a step is about what its indices meant the first time, if that is there.

    def recall(self, drawn: dict[str, Any]) -> list[Attempt]:
        """Some of the attempts that one worker ever had; the same one may come twice."""
        workers = sorted(self.memory)
        mine = self.memory[workers[drawn["who"] % len(workers)]][::-1]
        mine.sort(key=lambda attempt: self.oracle.reason(attempt) is not None)
        meant = drawn.get("meant")
        if meant and set(meant) <= set(self.memory.get(meant[0].worker, ())):
            return list(meant)
        return [mine[i % len(mine)] for i in drawn["which"]]

    def pick(self, drawn: dict[str, Any], states: list[str]) -> list[Job]:
        jobs = {job.number: job for job in self.oracle.standing(*states)[::-1]}
        meant = drawn.get("meant")
        if meant and all(number in jobs for number in meant):
            return [jobs[number] for number in meant]
        return [list(jobs.values())[i % len(jobs)] for i in drawn["which"]]

    def pairs(self, attempts: Sequence[Attempt]) -> list[tuple[UUID, int]]:
        return [(self.oracle.id_of(a.number), a.token) for a in attempts]

    def settle(
        self, verb: str, attempts: list[Attempt], later: list[bool], dead: list[bool]
    ) -> None:
        """The live ones move, each once; the stale ones are refused, each."""
        pairs, size = self.pairs(attempts), len(attempts)
        # Microseconds apart, so that jobs due at once have an order.
        delays = [LATER_SECONDS if late else n / 1e6 for n, late in enumerate(later[:size])]
        calls: dict[str, Callable[[], Any]] = {
            "execute": lambda: self.verbs.execute(pairs),
            "complete": lambda: lambda: self.complete_with_effects(pairs),
            "fail": lambda: self.verbs.fail(pairs, delays=delays, dead=dead[:size]),
            "snooze": lambda: self.verbs.snooze(pairs, delays),
            "decline": lambda: self.verbs.decline(pairs),
            "release": lambda: self.verbs.release(pairs),
            "cancel_attempt": lambda: self.verbs.cancel_attempt(pairs, "unwanted"),
        }
        line = f"{attempts[0].worker} {verb}s {self.story.attempts(attempts)}"
        if verb == "fail":
            line += f" (for good: {dead[:size]})"
        answer = self.oracle.facts(self.story.ask(line, calls[verb]()))
        self.lengthen_pauses()
        held = self.oracle.held(attempts)
        for attempt, n in held.items():
            self.oracle.settle(verb, attempt, later=later[n], dead=dead[n])
        operation = "cancel" if verb == "cancel_attempt" else verb
        stale = self.oracle.stale([a for a in attempts if a not in held], operation)
        self.story.tell(f"{line} → {self.story.verdict(answer)}", answer, stale)

    def complete_with_effects(self, pairs: list[tuple[UUID, int]]) -> Any:
        """An effect for each attempt that was not refused, in the same transaction."""
        with self.conn.transaction():
            stale = self.verbs.complete(pairs).run(self.conn)
            for pair in set(pairs) - {(s.job_id, s.token) for s in stale}:
                self.effect(pair, "done")
        return stale

    def effect(self, pair: tuple[UUID, int], kind: str) -> None:
        self.conn.execute("insert into effect values (%s, %s, %s)", (*pair, kind))

    # ── producers ────────────────────────────────────────────────────────────────────────────────

    def enqueue(self, wanted: Any, lane: Any, limits: Any, later: bool) -> None:
        jobs = [self.oracle.new_job(lane, payload, *limits) for _, payload in wanted]
        keys, payloads = [key for key, _ in wanted], [payload for _, payload in wanted]
        names = ("queue", "priority", "max_attempts", "max_crashes", "delay_seconds")
        values = (*lane, *limits, LATER_SECONDS if later else 0.0)
        options = {**LONG, **dict(zip(names, values, strict=True))}
        asked = ", ".join(f"payload {p}" + (f" under key {k}" if k else "") for k, p in wanted)
        line = f"a producer enqueues {asked} {'for later' if later else 'for now'} in {lane[0]}"
        ids = [job.id for job in jobs]
        if len(jobs) == 1:
            named = {"job_id": ids[0], "idempotency_key": keys[0], **options}
            answer = self.story.ask(line, self.verbs.enqueue("work", payloads[0], **named))
        else:
            named = {"idempotency_keys": keys, **options}
            answer = self.story.ask(line, self.verbs.enqueue_many("work", ids, payloads, **named))
        in_force = [answer] if isinstance(answer, UUID) else answer
        refused = isinstance(answer, IdempotencyConflict)
        numbers = [] if refused else [self.oracle.number_of(job_id) for job_id in in_force]
        expected = self.oracle.enqueue(jobs, keys, later)
        self.story.tell(f"{line} → {self.story.jobs(numbers)}", numbers, expected)

    def cancel(self, jobs: list[Job]) -> None:
        line = f"a producer cancels {self.story.jobs(job.number for job in jobs)}"
        answer = self.story.ask(line, self.verbs.cancel([job.id for job in jobs], "unwanted"))
        verdicts = {(self.oracle.number_of(x.job_id), x.verdict) for x in answer}
        told = self.story.facts(sorted(verdicts))
        self.story.tell(f"{line} → {told}", verdicts, self.oracle.cancel(jobs))

    # ── workers ──────────────────────────────────────────────────────────────────────────────────

    def claim(self, worker: str, size: int, served: tuple[str, ...], started: bool) -> None:
        line = f"{worker} claims {size} of {' and '.join(served)}"
        line += "" if started else ", not started yet"
        lanes = [lane.lane for lane in self.story.ask(line, self.verbs.lanes(served))]
        leases = self.story.ask(
            line, self.verbs.claim(worker, lanes, max_jobs=size, started=started)
        )
        number_of = self.oracle.number_of
        answer = [
            (number_of(x.job_id), x.token, x.attempts, x.crashes, x.snoozes, x.payload)
            for x in leases
        ]
        attempts = [Attempt(worker, number, token) for number, token, *_ in answer]
        told = self.story.facts((a.number, f"token {digits(a.token)}") for a in attempts)
        expected = self.oracle.claim(worker, served, size, started)
        self.story.tell(f"{line} → {told}", answer, expected)
        if attempts:
            self.memory.setdefault(worker, []).extend(attempts)

    def renew(self, attempts: list[Attempt]) -> None:
        line = f"{attempts[0].worker} renews {self.story.attempts(attempts)}"
        answer = sorted(
            (self.oracle.number_of(x.job_id), x.token, x.verdict, x.cancel_reason is not None)
            for x in self.story.ask(line, self.verbs.renew(self.pairs(attempts)))
        )
        told = self.story.facts((number, verdict) for number, _, verdict, _ in answer)
        self.story.tell(f"{line} → {told}", answer, self.oracle.renew(attempts))

    def write(self, attempts: list[Attempt], verb: str, commits: bool) -> None:
        """An effect and its check in one transaction of the user's."""
        [attempt] = attempts
        [pair] = self.pairs(attempts)

        def transaction() -> None:
            with self.conn.transaction(force_rollback=not commits):
                self.effect(pair, "done" if verb == "complete_one" else "note")
                getattr(self.verbs, verb)(*pair).run(self.conn)

        line = f"{attempt.worker} writes, {verb}s {self.story.attempts(attempts)}"
        line += " and commits" if commits else " and rolls back"
        answer = self.story.ask(line, transaction)
        refused = [answer] if answer else []
        if answer:
            report = self.story.ask(line, self.verbs.report_refusal(*pair, verb))
            refused += [report] if report else []
        facts = self.oracle.facts(refused)
        stale = self.oracle.reported(attempt, verb)
        if not stale and commits and verb == "complete_one":
            self.oracle.settle("complete", attempt, later=False, dead=False)
        elif not stale and commits:
            self.oracle.effects.append((attempt.number, attempt.token, "note"))
        self.story.tell(f"{line} → {self.story.verdict(facts[:1])}", facts, stale)

    # ── from outside ─────────────────────────────────────────────────────────────────────────────

    def take_over(self, jobs: list[Job], worker: str) -> None:
        """What makes a worker stale, in one step: without it most orders are harmless."""
        self.lease_expires(jobs)
        self.reclaim(4)
        self.claim(worker, 4, QUEUES, True)

    def reclaim(self, size: int) -> None:
        line = f"somebody reclaims up to {size}"
        self.lose(line, self.verbs.reclaim(size), lambda: self.oracle.reclaim(size))

    def reclaim_dead(self, jobs: list[Job], worker: str, all_of_them: bool) -> None:
        named = None if all_of_them else jobs
        line = f"{worker} is called dead"
        line += "" if named is None else f", for {self.story.jobs(job.number for job in jobs)}"
        call = self.verbs.reclaim_dead(worker, named and [job.id for job in named])
        self.lose(line, call, lambda: self.oracle.reclaim_dead(worker, named))

    def lose(self, line: str, call: Call[Any], expected: Callable[[], list[Fact]]) -> None:
        answer = sorted(
            (self.oracle.number_of(x.job_id), x.token, x.worker, x.state, x.crashes)
            for x in self.story.ask(line, call)
        )
        self.lengthen_pauses()
        told = self.story.facts((n, f"from {worker}, {state}") for n, _, worker, state, _ in answer)
        self.story.tell(f"{line} → {told}", answer, expected())

    def lengthen_pauses(self) -> None:
        """What crashed again or was declined waits for a second or so: too short to rely on."""
        self.stage.execute(
            "update {schema}.scheduled set run_at = run_at + interval '1 hour' "
            "where run_at between clock_timestamp() + interval '0.1 second' "
            "and clock_timestamp() + interval '30 seconds'"
        )

    def release_others(self, attempts: list[Attempt]) -> None:
        """The worker has forgotten all but these."""
        worker = attempts[0].worker
        line = f"{worker} releases all but {self.story.attempts(attempts)}"
        call = self.verbs.release_others(worker, self.pairs(attempts))
        answer = sorted(self.oracle.number_of(job_id) for job_id in self.story.ask(line, call))
        expected = self.oracle.release_others(worker, attempts)
        self.story.tell(f"{line} → {self.story.jobs(answer)}", answer, expected)

    def promote(self, size: int) -> None:
        answer = self.story.ask("promote", self.verbs.promote(size))
        line = f"somebody promotes up to {size} → {answer}"
        self.story.tell(line, answer, self.oracle.promote(size))

    def requeue(self, jobs: list[Job]) -> None:
        self.move("requeue", jobs)

    def retry(self, jobs: list[Job]) -> None:
        self.move("retry", jobs)

    def move(self, verb: str, jobs: list[Job]) -> None:
        """By an operator, who is told which of them did move."""
        line = f"an operator wants {self.story.jobs(job.number for job in jobs)} to {verb}"
        call = getattr(self.verbs, verb)([job.id for job in jobs])
        moved = sorted(self.oracle.number_of(job_id) for job_id in self.story.ask(line, call))
        line += f" → {self.story.jobs(moved)}"
        self.story.tell(line, moved, getattr(self.oracle, verb)(jobs))

    def pause(self, queue: str, paused: bool) -> None:
        self.story.ask("pause", self.verbs.pause(queue, paused))
        self.oracle.paused = self.oracle.paused - {queue} | ({queue} if paused else set())
        self.story.tell(f"an operator {'pauses' if paused else 'resumes'} {queue}")

    def maintain(self, what: str, queue: str) -> None:
        if what in ("resume", "pause"):
            self.pause(queue, what == "pause")
        elif what == "epoch_bump":
            epoch = self.story.ask(what, self.verbs.epoch_bump())
            line = f"an operator bumps the epoch → {epoch}"
            self.story.tell(line, epoch, self.oracle.epoch_bump())
        else:
            done = self.story.ask(what, self.verbs.compact())
            self.story.tell("an operator compacts", done, True)

    def lease_expires(self, jobs: list[Job]) -> None:
        for job in jobs:
            self.stage.expire(job.id)
            self.oracle.expire(job)
            self.story.tell(f"job {job.number}'s lease expires")

    def time_comes(self, jobs: list[Job]) -> None:
        due = "update {schema}.scheduled set run_at = clock_timestamp() where job_id = %s"
        for job in jobs:
            self.stage.execute(due, job.id)
            self.oracle.schedule(job, later=False)
            self.story.tell(f"job {job.number}'s time has come")

    def rescue(self, jobs: list[Job], lost: bool) -> None:
        """After a restore that has the job without its pointer, or has everything."""
        [job] = jobs
        if lost:
            place = PLACES[job.state]
            self.stage.execute(f"delete from {{schema}}.{place} where job_id = %s", job.id)
            self.oracle.rescue(job)
        answer = self.story.ask("rescue", self.verbs.rescue())
        line = f"job {job.number}'s pointer is lost, " if lost else ""
        self.story.tell(f"{line}an operator rescues → {answer}", answer, int(lost))

    def teardown(self) -> None:
        """Everybody dies; D drains what is left; then every job has ended and nothing is wrong."""
        if self.story.interrupted:
            return
        for queue in sorted(self.oracle.paused):
            self.pause(queue, False)
        self.lease_expires(self.oracle.standing("running"))
        self.reclaim(1000)
        self.time_comes(self.oracle.standing("scheduled"))
        self.promote(1000)
        self.claim("D", 1000, QUEUES, True)
        if drained := self.memory.get("D"):
            self.settle("complete", drained, [False] * len(drained), [False] * len(drained))
        states = {state for _, state, *_ in self.story.look()[0]}
        wrong = self.stage.violations()
        if wrong or not states <= {*FINAL, "quarantined"}:
            self.story.stop(f"in the end there are jobs {states}, and violations {wrong}")


def clean(stage: Stage) -> None:
    """As if newly installed."""
    tables = [f"{{schema}}.{table}" for table in EMPTIED.split(", ")]
    deletes = "; ".join(f"delete from {table}" for table in [*tables, "effect"])
    stage.execute(
        f"{deletes}; update {{schema}}.queue set paused = false where paused; "
        "update {schema}.epoch set epoch = 0 where epoch <> 0"
    )
