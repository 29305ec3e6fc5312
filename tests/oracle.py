"""What the property tests believe about the verbs: a small oracle.

It is written from the contracts, not from the SQL: a handful of Python objects that know where each
job stands, who holds it under which token, how each attempt ended and which refusals and effects
there are. It never looks at the database; the story of tests/story.py does, and compares. Jobs have
numbers here, so that a story says `job 1` and not a uuid.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from faultline.errors import StaleLease
from faultline.jobs import Stale

Fact = tuple[Any, ...]
FINAL = ("succeeded", "failed", "cancelled")
EPOCH_BITS = 40
OUTCOMES = {
    "complete": "succeeded",
    "fail": "failed",
    "snooze": "snoozed",
    "decline": "snoozed",
    "release": "released",
    "cancel_attempt": "cancelled",
}


class Attempt(NamedTuple):
    """What a worker remembers of a claim, for ever."""

    worker: str
    number: int
    token: int


@dataclass
class Lease:
    worker: str
    token: int
    started: bool
    alive: bool = True


@dataclass
class Job:
    number: int
    id: UUID
    lane: tuple[str, int]  # queue, priority
    payload: Any
    max_attempts: int
    max_crashes: int
    state: str = "queued"
    token: int = 0  # the highest on record
    highest: int = 0  # the highest ever given out, recorded or not
    place: int = 0  # in its lane; kept while the job runs
    due: int | None = None  # the order in which scheduled jobs became due
    attempts: int = 0
    crashes: int = 0
    snoozes: int = 0
    asked: bool = False  # to stop, while it ran
    lease: Lease | None = None
    endings: dict[int, tuple[str, bool]] = field(default_factory=dict)  # outcome, crashed

    def end(self, token: int, outcome: str, crashed: bool = False) -> None:
        self.endings[token] = (outcome, crashed)
        self.token = token
        self.highest = max(self.highest, token)
        self.lease = None

    def counts(self) -> tuple[int, int, int]:
        """Of the present life: from the last requeue on."""
        if self.state not in FINAL:
            return self.attempts, self.crashes, self.snoozes
        born = max(
            (t for t, (outcome, _) in self.endings.items() if outcome == "requeued"), default=0
        )
        life = [ending for token, ending in self.endings.items() if token > born]
        ended = [outcome for outcome, _ in life]
        failed, crashes = ended.count("failed"), sum(crashed for _, crashed in life)
        return failed + ended.count("succeeded"), crashes, ended.count("snoozed")

    def seen(self) -> Fact:
        """As the views show it."""
        lease = self.lease
        held = (lease.worker, lease.alive, lease.started, self.asked) if lease else ()
        return (self.number, self.state, self.token, *self.counts(), *held)


class Oracle:
    """What should have happened. Each method makes a move and answers as the verb has to."""

    def __init__(self, first_id: UUID) -> None:
        self.first_id = first_id
        self.jobs: dict[int, Job] = {}
        self.keys: dict[str, Job] = {}
        self.paused: set[str] = set()
        self.refusals: list[Fact] = []  # number, stale token, current token, reason, operation
        self.effects: list[Fact] = []  # number, token, kind
        self.epoch = 0
        self.numbers = self.clock = 0

    def new_job(self, lane: tuple[str, int], payload: Any, *limits: int) -> Job:
        self.numbers += 1
        return Job(self.numbers, self.id_of(self.numbers), lane, payload, *limits)

    def id_of(self, number: int) -> UUID:
        """Not in the order of the numbers, so that the order of the ids is another one."""
        return UUID(int=(self.first_id.int >> 16 << 16) | (number * 97 % 251))

    def number_of(self, job_id: UUID) -> int:
        return (job_id.int & 0xFFFF) * pow(97, -1, 251) % 251

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def standing(self, *states: str) -> list[Job]:
        return [job for job in self.jobs.values() if not states or job.state in states]

    def next_token(self, job: Job) -> int:
        return max(job.token + 1, self.epoch << EPOCH_BITS)

    def stop_if_asked(self, job: Job) -> bool:
        """Who was asked to stop does not run again: it ends under a token of its own."""
        if job.asked:
            self.stop(job)
        return job.asked

    def stop(self, job: Job) -> None:
        job.end(self.next_token(job), "cancelled")
        job.state = "cancelled"

    def queue(self, job: Job, *, anew: bool) -> None:
        job.state, job.due = "queued", None
        job.place = self.tick() if anew else job.place

    def schedule(self, job: Job, *, later: bool) -> None:
        job.state, job.due = "scheduled", None if later else self.tick()

    def enqueue(self, jobs: list[Job], keys: list[str | None], later: bool) -> list[int]:
        """All or none: the jobs in force, or nothing when a key has another payload."""
        held = dict(self.keys)
        for job, key in zip(jobs, keys, strict=True):
            if key and held.setdefault(key, job).payload != job.payload:
                return []
        self.keys = held
        in_force = [held[key] if key else job for job, key in zip(jobs, keys, strict=True)]
        for job in in_force:
            if job.number in self.jobs:
                continue
            self.jobs[job.number] = job
            if later:
                self.schedule(job, later=True)
            else:
                self.queue(job, anew=True)
        return [job.number for job in in_force]

    def cancel(self, jobs: Iterable[Job]) -> set[Fact]:
        verdicts = set()
        for job in {job.number: job for job in jobs}.values():
            if job.lease:
                job.asked = True
                verdicts.add((job.number, "requested"))
            elif job.state in FINAL:
                verdicts.add((job.number, "finished"))
            else:
                self.stop(job)
                verdicts.add((job.number, "cancelled"))
        return verdicts

    def claim(self, worker: str, queues: Sequence[str], max_jobs: int, started: bool) -> list[Fact]:
        waiting = [
            job
            for job in self.standing("queued")
            if job.lane[0] in queues and job.lane[0] not in self.paused
        ]
        waiting.sort(key=lambda job: (-job.lane[1], queues.index(job.lane[0]), job.place))
        for job in waiting[:max_jobs]:
            token = self.next_token(job)
            assert token > job.highest, "the oracle itself would give out a token twice"
            job.state, job.token, job.highest = "running", token, token
            job.lease = Lease(worker, token, started)
        return [
            (job.number, job.token, job.attempts, job.crashes, job.snoozes, job.payload)
            for job in waiting[:max_jobs]
        ]

    def reason(self, attempt: Attempt) -> str | None:
        """Why the attempt is stale; None while it holds its lease."""
        job = self.jobs[attempt.number]
        lease = job.lease
        if lease and lease.alive and lease.token == attempt.token:
            return None
        ran_out = lease is not None or job.endings.get(attempt.token, ("",))[0] == "expired"
        return "lease_expired" if ran_out and job.token == attempt.token else "token_mismatch"

    def facts(self, stale: Iterable[Stale | StaleLease]) -> list[Fact]:
        return sorted((self.number_of(s.job_id), s.token, s.current_token, s.reason) for s in stale)

    def stale(self, attempts: Iterable[Attempt], operation: str) -> list[Fact]:
        """The refusals among these attempts; recorded, unless the attempt has ended itself."""
        refused = []
        for a in attempts:
            job = self.jobs[a.number]
            if reason := self.reason(a):
                refused.append((a.number, a.token, job.token, reason))
                if job.endings.get(a.token, ("expired",))[0] == "expired":
                    self.refusals.append((*refused[-1], operation))
        return sorted(refused)

    def reported(self, attempt: Attempt, operation: str) -> list[Fact]:
        """The refusal of a write, and the report of it: none of an attempt that has succeeded, or
        that this database has forgotten."""
        job = self.jobs[attempt.number]
        if not (reason := self.reason(attempt)):
            return []
        refused = (attempt.number, attempt.token, job.token, reason)
        ending = job.endings.get(attempt.token, ("",))[0]
        if ending == "succeeded" or not (ending or job.lease or attempt.token < job.token):
            return [refused]
        self.refusals.append((*refused, operation))
        return [refused] * 2

    def held(self, attempts: Sequence[Attempt]) -> dict[Attempt, int]:
        """Those that hold their leases, each once, with the place where it is named first."""
        return {a: attempts.index(a) for a in attempts if self.reason(a) is None}

    def renew(self, attempts: Sequence[Attempt]) -> list[Fact]:
        """The verdicts, with whether a cancel was asked for."""
        kept = [
            (a.number, a.token, "renewed", self.jobs[a.number].asked) for a in self.held(attempts)
        ]
        lost = [a for a in attempts if self.reason(a)]
        self.stale(lost, "renew")
        return sorted([*kept, *((a.number, a.token, "lost", False) for a in lost)])

    def settle(self, verb: str, attempt: Attempt, *, later: bool, dead: bool) -> None:
        """What the verb does to the job of an attempt that holds its lease."""
        job = self.jobs[attempt.number]
        if verb == "execute":
            assert job.lease
            job.lease.started = True
            return
        job.end(attempt.token, OUTCOMES[verb])
        job.state = OUTCOMES[verb]  # where the job stays if this was final
        job.attempts += verb == "fail"
        job.snoozes += verb in ("snooze", "decline")
        retried = verb == "fail" and not dead and job.attempts < job.max_attempts
        if (retried or verb in ("snooze", "decline", "release")) and self.stop_if_asked(job):
            return
        if retried or verb in ("snooze", "decline"):
            self.schedule(job, later=later or verb == "decline")
        elif verb == "release":
            self.queue(job, anew=False)
        elif verb == "complete":
            self.effects.append((attempt.number, attempt.token, "done"))

    def reclaim(self, max_jobs: int) -> list[Fact]:
        dead = [job for job in self.standing("running") if job.lease and not job.lease.alive]
        dead.sort(key=lambda job: job.id)
        return self.lose(dead[:max_jobs])

    def reclaim_dead(self, worker: str, jobs: Sequence[Job] | None) -> list[Fact]:
        held = self.held_by(worker)
        return self.lose(held if jobs is None else [job for job in held if job in jobs])

    def lose(self, jobs: Iterable[Job]) -> list[Fact]:
        """What becomes of jobs whose leases are taken away."""
        answer = []
        for job in jobs:
            lease = job.lease
            assert lease
            job.end(lease.token, "expired", crashed=lease.started)
            job.crashes += lease.started
            if job.crashes >= job.max_crashes:  # never by a lease that was not started
                job.state = "quarantined"
            elif not self.stop_if_asked(job):
                if lease.started and job.crashes > 1:
                    self.schedule(job, later=True)
                else:
                    self.queue(job, anew=False)
            answer.append((job.number, lease.token, lease.worker, job.state, job.crashes))
        return sorted(answer)

    def held_by(self, worker: str) -> list[Job]:
        running = self.standing("running")
        return [job for job in running if job.lease and job.lease.worker == worker]

    def release_others(self, worker: str, known: Sequence[Attempt]) -> list[int]:
        pairs = {(a.number, a.token) for a in known}
        others = [job for job in self.held_by(worker) if (job.number, job.token) not in pairs]
        for job in others:
            job.end(job.token, "released")
            if not self.stop_if_asked(job):
                self.queue(job, anew=False)
        return sorted(job.number for job in others)

    def promote(self, max_jobs: int) -> int:
        due = [job for job in self.standing("scheduled") if job.due is not None]
        due.sort(key=lambda job: job.due)
        for job in due[:max_jobs]:
            self.queue(job, anew=True)
        return len(due[:max_jobs])

    def retry(self, jobs: Iterable[Job]) -> list[int]:
        moved = {job.id: job for job in jobs if job.state == "scheduled"}
        for _, job in sorted(moved.items()):
            self.queue(job, anew=True)
        return sorted(job.number for job in moved.values())

    def requeue(self, jobs: Iterable[Job]) -> list[int]:
        moved = {job.id: job for job in jobs if job.state in ("failed", "quarantined")}
        for _, job in sorted(moved.items()):
            job.end(self.next_token(job), "requeued")
            job.asked = False
            self.another_life(job)
        return sorted(job.number for job in moved.values())

    def another_life(self, job: Job) -> None:
        job.attempts = job.crashes = job.snoozes = 0
        self.queue(job, anew=True)

    def expire(self, job: Job) -> None:
        assert job.lease
        job.lease.alive = False

    def epoch_bump(self) -> int:
        """Tokens start higher, and every lease runs anew."""
        self.epoch += 16
        for job in self.standing("running"):
            assert job.lease
            job.lease.alive = True
        return self.epoch

    def rescue(self, lost: Job) -> None:
        """The job's pointer was lost, and with it all that was not recorded."""
        lost.lease = None
        lost.token = max(lost.endings, default=0)
        self.another_life(lost)
        self.epoch_bump()
