"""Play one schedule: give the turns in an order, and write down what happened.

An actor's turn is one step, or the way to the next stop of a split function. An actor that waits
for a lock has no turn until it has the lock; the others go on. When only waiting actors are left,
the server has to say which of them loses (a deadlock), or to let one go on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from proofs.explore.arena import Arena
from proofs.explore.judge import Attempt, Judge, pair_of
from proofs.explore.scenario import Actor, Scenario
from proofs.explore.session import PATIENCE_SECONDS, Answer, Session, Stuck
from proofs.explore.steps import Means, Reads, Step

DEADLOCK = "40P01"
STALE = "LF001"
# What a client has to be ready for: stale, a step that is done, unfenced, a retry, and what the
# check in the client raises. Any other error is a finding.
EXPECTED = {STALE, "LF003", "LF006", "40001", "22012", DEADLOCK}


class Diverged(Exception):
    """The schedule cannot be followed: whose turn it should be has none."""


@dataclass(slots=True)
class Line:
    """One line of the timeline: who, what, and what came of it."""

    actor: str
    text: str
    outcome: str = ""


@dataclass(slots=True)
class Played:
    """A schedule that was played to its end."""

    scenario: Scenario
    turns: str = ""
    choices: list[str] = field(default_factory=list)  # who could have had each turn
    lines: list[Line] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    deadlocks: int = 0
    blocked_steps: int = 0
    raced: bool = False  # not played: the server did not let it come out this way again

    @property
    def id(self) -> str:
        return f"{self.scenario.name}:{self.turns}"

    @property
    def bad(self) -> bool:
        return bool(self.broken) or self.deadlocks > 0


class Player:
    """An actor on the stage: its program, its session, its attempts."""

    def __init__(self, actor: Actor, session: Session, every_job: list[str]) -> None:
        self.actor = actor
        self.name = actor.name
        self.session = session
        self.every_job = every_job
        self.attempts: list[Attempt] = [(job, 1) for job in every_job] if actor.holds else []
        self.at = 0
        self.waiting = False
        self.open = False  # a transaction of several steps
        self.line: Line | None = None
        self._skip()

    @property
    def step(self) -> Step:
        return self.actor.program[self.at]

    @property
    def done(self) -> bool:
        return self.at >= len(self.actor.program)

    def advance(self) -> None:
        begun = self.open or bool(self.step.begin)
        self.open = begun and self.step.means is not Means.COMMIT
        self.at += 1
        self._skip()

    def leave(self) -> None:
        """An error, or a refusal: the rest of the transaction is not gone on with."""
        if self.open:
            while self.step.means is not Means.COMMIT:
                self.at += 1
        self.at += 1
        self.open = False
        self._skip()

    def _skip(self) -> None:
        while not self.done and self._superfluous(self.step):
            self.at += 1
            if not self.done and self.step.means is Means.COMMIT and not self.open:
                self.at += 1

    def _superfluous(self, step: Step) -> bool:
        return step.if_idle if self.attempts else step.needs_attempt

    def parameters(self) -> list[str | None]:
        return [self._parameter(name) for name in self.step.parameters]

    def _parameter(self, name: str) -> str:
        way = -1 if name.startswith("backwards_") else 1
        name = name.removeprefix("backwards_")
        if name == "worker":
            return self.name
        if name == "every_job":
            return "{" + ",".join(self.every_job[::way]) + "}"
        if name in ("job", "token"):
            return str(self.attempts[0][name == "token"])
        return "{" + ",".join(str(a[name == "tokens"]) for a in self.attempts[::way]) + "}"


class Play:
    """One schedule under way."""

    def __init__(self, arena: Arena, scenario: Scenario) -> None:
        self._arena = arena
        jobs = [str(job) for job in arena.fresh(scenario.jobs, scenario.place)]
        token = 0 if scenario.place in ("ready", "scheduled") else 1
        self.judge = Judge([UUID(job) for job in jobs], token)
        self._players = {
            actor.name: Player(actor, arena.session(actor.name), jobs) for actor in scenario.actors
        }
        self._sessions = [player.session for player in self._players.values()]
        self.played = Played(scenario)
        self._preemptions = 0

    def run(self, prefix: str, known: Sequence[str] = ()) -> Played:
        """Give the turns of the prefix, then always to the first who can have it.

        `known`: who could have the first turns when they were given before. If it is others now,
        the server has let another one go first, and what follows is another schedule.
        """
        while choices := self._within_bound(self._choices()):
            n = len(self.played.turns)
            turn = prefix[n] if n < len(prefix) else choices[0]
            if turn not in choices or (n < len(known) and choices != known[n]):
                self._abandon()
                raise Diverged(f"{self.played.id}: it is not {turn}'s turn, only {choices}'s")
            last = self.played.turns[-1:]
            self._preemptions += bool(last) and last != turn and last in choices
            self.played.turns += turn
            self.played.choices.append(choices)
            self._turn(self._players[turn])
        self.played.broken += self.judge.broken + self._arena.verdict(self.judge.refused)
        return self.played

    def _within_bound(self, choices: str) -> str:
        """When no more preemptions are allowed, who had the last turn has the next, if it can."""
        last = self.played.turns[-1:]
        spent = self._preemptions == self.played.scenario.preemptions
        return last if spent and last and last in choices else choices

    def _choices(self) -> str:
        """Who can have the next turn; waits while everybody waits."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            free = [p for p in self._players.values() if not p.done and not p.waiting]
            if free or not any(p.waiting for p in self._players.values()):
                started = {p.name for p in self._players.values() if p.at or p.line}
                return "".join(
                    p.name for p in free if p.actor.after is None or p.actor.after in started
                )
            for player in self._players.values():
                if player.waiting and player.session.look(0.01):
                    self._arrive(player)
                    self._others(player)
                    break
            if time.monotonic() > deadline:
                raise Stuck(f"{self.played.id}: everybody waits")

    def _turn(self, player: Player) -> None:
        session = player.session
        if session.stopped:
            player.line = Line(player.name, f"  … {player.step.name} goes on")
            self.played.lines.append(player.line)
            session.resume(self._arena.conn)
        else:
            step = player.step
            tokens = f", token {player.attempts[0][1]}" if step.needs_attempt else ""
            player.line = Line(player.name, step.name + tokens)
            self.played.lines.append(player.line)
            self.judge.sent(player.name, step, player.attempts)
            session.send(step.statement, player.parameters(), begin=step.begin)
        if self._arena.watch.settle(session, self._sessions):
            self._arrive(player)
        else:
            player.waiting = True
            player.line.outcome = "waits"
            self.played.blocked_steps += 1
            if player.step.never_waits:
                self.played.broken.append(f"{player.step.name} waits, which it never may")
        self._others(player)

    def _others(self, mover: Player) -> None:
        """Whoever waited for what the mover may have given up goes on now, as far as it can."""
        moved = True
        while moved:
            moved = False
            for player in self._players.values():
                if player is mover or not player.waiting:
                    continue
                if self._arena.watch.settle(player.session, self._sessions):
                    self._arrive(player)
                    moved = True

    def _arrive(self, player: Player) -> None:
        """The session has answered, or stopped."""
        line = player.line
        assert line is not None
        if player.waiting:
            player.waiting = False
            line = player.line = Line(player.name, f"  … {player.step.name}")
            self.played.lines.append(line)
        if player.session.busy:
            line.outcome = "stops"
            return
        answer = player.session.take()
        if answer.sqlstate is not None:
            self._failed(player, answer, line)
            return
        accepted, line.outcome = self.judge.answered(
            player.name, player.step, player.attempts, answer.rows
        )
        if player.step.means is Means.CLAIMED:
            before = player.attempts if player.step.besides else []
            player.attempts = [*before, *(pair_of(row) for row in answer.rows)]
        elif player.step.means is Means.SWAPPED:
            player.attempts = [pair_of(row) for row in answer.rows if row[2] == "claimed"]
        player.open = player.open or bool(player.step.begin)
        spoke = bool(answer.rows) or player.step.reads is not Reads.NOTHING
        self._bounded(player, accepted and spoke)
        if player.step.reads is Reads.STALE and not accepted and player.open:
            player.session.rollback()  # a client that heeds the answer
            self.judge.ended(player.name)
            line.outcome += ", rolls back"
            player.leave()
        else:
            player.advance()
        if not player.session.in_transaction:
            self.judge.committed(player.name)

    def _bounded(self, player: Player, holds: bool) -> None:
        """Who holds a lease in an open transaction has had the server told until when."""
        session = player.session
        if player.step.holds and holds and session.in_transaction and not session.bounded:
            self.played.broken.append(f"{player.step.name} holds a lease, and nothing bounds it")

    def _failed(self, player: Player, answer: Answer, line: Line) -> None:
        line.outcome = f"{answer.sqlstate} {answer.message}"
        self.played.deadlocks += answer.sqlstate == DEADLOCK
        if answer.sqlstate not in EXPECTED:
            self.played.broken.append(f"{player.step.name} raised {line.outcome}")
        if answer.sqlstate == STALE:
            self.judge.raised_stale(player.name, player.step, player.attempts)
        player.open = player.open or bool(player.step.begin)
        player.session.rollback()
        self.judge.ended(player.name)
        player.leave()

    def _abandon(self) -> None:
        """End what is open, in whatever way: the schedule does not count."""
        for player in self._players.values():
            if player.session.busy:
                player.session.close()
            else:
                player.session.rollback()
