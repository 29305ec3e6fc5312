"""The judge: what no schedule may do, read from the answers in the order in which they came.

It knows of each token since when it is dead, and why: its lease ran out, was taken away, was given
back by its own ending, or a higher token was leased. Then

    late    no verb of an attempt is accepted that was sent after the lease had run out
    stale   no verb of an attempt is accepted after its token was taken or had ended
    effect  no row of the user's commits after that, unless with that very ending
    alive   no lease is reclaimed that has not run out, or taken from a worker that was not named
    token   a claim gives a token higher than any before it
    asked   no job is claimed after a cancel has ended it, or whose last attempt was ended after a
            cancel of it had committed
    live    no verb, and no COMMIT of a fenced transaction, is refused while the lease is alive:
            without this rule a Faultline that refuses everything would break none

What is in the database at the end is judged by arena.sql: the invariants, and the user's rows.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from uuid import UUID

from proofs.explore.steps import Means, Reads, Step

Attempt = tuple[str, int]
Rows = list[list[str | None]]


@dataclass(slots=True)
class Open:
    """What an actor's transaction has done, and would commit."""

    effects: list[Attempt] = field(default_factory=list)
    ends: dict[Attempt, str] = field(default_factory=dict)
    settled: list[Attempt] = field(default_factory=list)
    fenced: list[Attempt] = field(default_factory=list)
    claims: list[Attempt] = field(default_factory=list)
    refused: list[Attempt] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)
    over: set[str] = field(default_factory=set)  # jobs that were asked to stop, and have stopped


class Judge:
    """Of one schedule, of jobs that have had this token."""

    def __init__(self, jobs: list[UUID], token: int) -> None:
        self._numbers = {str(job): n for n, job in enumerate(jobs, 1)}
        self._late: set[Attempt] = set()
        self._over: dict[Attempt, str] = {}
        self._highest: dict[str, int] = {str(job): token for job in jobs}
        self._open: dict[str, Open] = defaultdict(Open)
        self._sent: dict[str, dict[Attempt, str]] = {}
        self._owners: dict[Attempt, str] = {(str(job), token): "A" for job in jobs}
        self._asked: set[str] = set()
        self._asked_before: dict[str, set[str]] = {}
        self._stopped: set[str] = set()
        self.refused: list[Attempt] = []
        self.broken: list[str] = []

    def sent(self, actor: str, step: Step, attempts: list[Attempt]) -> None:
        """Of what is dead when the step is sent, nothing may be accepted."""
        asked = self._open[actor].fenced if step.means is Means.COMMIT else attempts
        dead = {a: "its lease had run out" for a in asked if a in self._late}
        self._sent[actor] = dead | {a: self._over[a] for a in asked if a in self._over}
        self._asked_before[actor] = set(self._asked)

    def answered(
        self, actor: str, step: Step, attempts: list[Attempt], rows: Rows
    ) -> tuple[bool, str]:
        """Whether the step's attempts were all accepted, and the answer in words."""
        here = self._open[actor]
        if step.means is Means.CLAIMED:
            return True, self._claimed(actor, rows)
        if step.means in (Means.EXPIRED, Means.TAKEN, Means.RECLAIMED):
            return True, self._taken(actor, step, attempts, [pair_of(row) for row in rows])
        if step.means is Means.SWAPPED:
            claimed = [row for row in rows if row[2] == "claimed"]
            whole, text = self._spoke(actor, step, attempts, [r for r in rows if r not in claimed])
            return whole, f"{text}, {self._claimed(actor, claimed)}"
        if step.means is Means.WROTE:
            here.effects.append(attempts[0])
        if step.means is Means.COMMIT:
            self._commits_fenced(actor)
        if step.means is Means.ASKED:
            here.asked |= {str(job) for job, verdict in rows if verdict != "finished"}
            here.over |= {str(job) for job, verdict in rows if verdict == "cancelled"}
        if step.reads is Reads.NOTHING:
            return True, " ".join(str(value) for row in rows for value in row if value)
        return self._spoke(actor, step, attempts, rows)

    def _spoke(
        self, actor: str, step: Step, attempts: list[Attempt], rows: Rows
    ) -> tuple[bool, str]:
        """What an attempt was told that did something under its token."""
        here = self._open[actor]
        accepted = accepted_of(step, attempts, rows)
        for attempt in accepted:
            why = self._sent[actor].get(attempt)
            if step.means is not Means.FENCED:  # it is looked at again when it commits
                why = why or self._over.get(attempt)
            if why:
                self.broken.append(f"{step.name} of {self._name(attempt)} was accepted, but {why}")
        if step.reads is Reads.RENEWED:
            self._answered_each(actor, step, attempts, rows)
        if step.means in (Means.SETTLED, Means.HANDED_BACK, Means.SWAPPED):
            here.ends |= dict.fromkeys(accepted, f"it had ended ({step.name})")
            here.settled += accepted
        if step.means is Means.HANDED_BACK:
            here.over |= {job for job, _ in accepted} & self._asked_before[actor]
        if step.means is Means.FENCED:
            here.fenced += accepted
        if step.means is Means.CHECKED:
            here.fenced.clear()
        refused = refused_of(step, rows)
        self._refused_rightly(actor, step, refused)
        if step.records:
            here.refused += refused
        whole = len(accepted) == (1 if step.reads is Reads.RAISES else len(attempts))
        some = "accepted for " + self._names(accepted) if accepted else "refused"
        return whole, "accepted" if whole else some

    def _answered_each(self, actor: str, step: Step, asked: list[Attempt], rows: Rows) -> None:
        """Who is told nothing, or that it is only busy, goes on as if it held its lease."""
        told = {pair_of(row): row[2] for row in rows}
        for attempt in asked:
            if attempt not in told:
                self.broken.append(f"{step.name} said nothing of {self._name(attempt)}")
            elif told[attempt] == "busy" and (why := self._sent[actor].get(attempt)):
                self.broken.append(f"{step.name} called {self._name(attempt)} busy, but {why}")

    def raised_stale(self, actor: str, step: Step, attempts: list[Attempt]) -> None:
        """The same for a step that says so with an error."""
        asked = self._open[actor].fenced if step.means is Means.COMMIT else attempts[:1]
        self._refused_rightly(actor, step, asked)

    def _refused_rightly(self, actor: str, step: Step, refused: list[Attempt]) -> None:
        for attempt in refused:
            if not (attempt in self._late or attempt in self._over | self._open[actor].ends):
                self.broken.append(
                    f"{step.name} of {self._name(attempt)} was refused, but its lease is alive"
                )

    def committed(self, actor: str) -> None:
        """Its transaction has ended well; what it did counts from now on."""
        here = self._open.pop(actor, Open())
        for attempt in here.effects:
            if why := self._over.get(attempt):
                self.broken.append(f"an effect of {self._name(attempt)} was committed, but {why}")
        self._over |= here.ends
        self._highest |= dict(here.claims)
        self._asked |= here.asked
        self._stopped |= here.over
        self.refused += here.refused

    def ended(self, actor: str) -> None:
        """Its transaction was rolled back."""
        self._open.pop(actor, None)

    def _commits_fenced(self, actor: str) -> None:
        """A fence lets a transaction commit while the lease lives, or with the attempt's ending."""
        for attempt, why in self._sent[actor].items():
            if attempt not in self._open[actor].settled:
                self.broken.append(
                    f"a fenced transaction of {self._name(attempt)} was committed, but {why}"
                )

    def _claimed(self, actor: str, rows: Rows) -> str:
        self._open[actor].claims = attempts = [pair_of(row) for row in rows]
        for job, token in attempts:
            self._owners[job, token] = actor
            if job in self._stopped:
                self.broken.append(f"token {token} was leased, but the job had been cancelled")
            if token <= self._highest.get(job, 0):
                self.broken.append(f"token {token} was leased after token {self._highest[job]}")
            for other in self._owners:
                if other[0] == job and other[1] < token:
                    self._over[other] = f"token {token} was leased"
        return self._names(attempts) or "nothing"

    def _taken(self, actor: str, step: Step, own: list[Attempt], attempts: list[Attempt]) -> str:
        here = self._open[actor]
        if step.means is Means.EXPIRED:
            self._late |= set(attempts)
            return self._names(attempts) or "none"
        here.ends |= dict.fromkeys(attempts, f"{step.name} had taken its lease")
        here.over |= {job for job, _ in attempts} & self._asked_before[actor]
        for attempt in attempts:
            took = f"{step.name} took {self._name(attempt)}, "
            if step.means is Means.RECLAIMED and attempt not in self._late:
                self.broken.append(took + "whose lease was alive")
            if step.takes_from not in ("", self._owners[attempt]):
                self.broken.append(took + f"which is not {step.takes_from}'s")
            if step.spares and attempt in own:
                self.broken.append(took + "which it was told to spare")
        return self._names(attempts) or "none"

    def _names(self, attempts: list[Attempt]) -> str:
        return ", ".join(self._name(attempt) for attempt in attempts)

    def _name(self, attempt: Attempt) -> str:
        job, token = attempt
        which = f"job {self._numbers.get(job, '?')} " if len(self._numbers) > 1 else ""
        return f"{which}token {token}"


def accepted_of(step: Step, attempts: list[Attempt], rows: Rows) -> list[Attempt]:
    """For which attempts the step was accepted."""
    if step.reads is Reads.RAISES:
        return attempts[:1]
    if step.reads is Reads.STALE:
        refused = {pair_of(row) for row in rows}
        return [attempt for attempt in attempts if attempt not in refused]
    if step.reads is Reads.RENEWED:
        return [pair_of(row) for row in rows if row[2] == "renewed"]
    return []


def refused_of(step: Step, rows: Rows) -> list[Attempt]:
    """The attempts that it was refused for."""
    if step.reads is Reads.RENEWED:
        return [pair_of(row) for row in rows if row[2] == "lost"]
    return [pair_of(row) for row in rows] if step.reads is Reads.STALE else []


def pair_of(row: list[str | None]) -> Attempt:
    return str(row[0]), int(str(row[1]))
