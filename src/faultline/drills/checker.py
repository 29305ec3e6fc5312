"""The checker: reads what was found after a scenario, and says what must not be so.

It knows nothing of how the queue works. It reads the history (what every process set out to do and
was told), the effects (a table that no queue owns) and the views, and holds them against each
other:

    asked         every job that is there was submitted by somebody
    accepted      an enqueue that was acknowledged left a job
    drained       every job has ended, in a state that its scenario allows
    once          a success has each of its effects exactly once; nothing was written twice
    acknowledged  a write that was acknowledged is there
    refused       a write that was refused is not there
    resolved      a write whose answer was lost is there once or not at all, and then by nobody else
    winner        one attempt of a job succeeded, under the last of its tokens
    holder        a token was given to one worker, and its handler begun once
    rising        a job's tokens rise in the order in which the database handed them out
    stale         who sets out to write after a higher token has begun its work does not succeed
    invariants    the database's own views of what must never be have no row

What came out is a list of sentences; an empty one is the proof.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from faultline.drills.history import Operation

Effects = Mapping[str, Sequence[tuple[int, str]]]


@dataclass(frozen=True, slots=True)
class Expected:
    """What a scenario asked of one job."""

    effects: Sequence[str]
    states: frozenset[str] = frozenset({"succeeded"})


@dataclass(slots=True)
class Found:
    """All that the checker may look at."""

    expected: Mapping[str, Expected]
    history: Sequence[Operation]
    effects: Effects
    states: Mapping[str, str]  # by job, as the view `jobs` says; a job it does not have is absent
    attempts: Mapping[str, Sequence[Mapping[str, Any]]]  # by job, as the view `attempts` says
    violations: Sequence[Mapping[str, Any]] = field(default_factory=list)
    strangers: Sequence[str] = field(default_factory=list)  # jobs that nobody asked for


def check(found: Found, *, told: bool = True) -> list[str]:
    """Every sentence that is wrong with it; `told`: the handlers say what they write."""
    rules = [_asked, _accepted, _drained, _once, _winner, _rising, _invariants]
    if told:
        rules += [_acknowledged, _refused, _resolved, _holder, _stale]
    return [f"{rule.__name__[1:]}: {said}" for rule in rules for said in rule(found)]


def duplicates(effects: Effects) -> int:
    """How many effects were written more often than once."""
    return sum(
        count - 1
        for rows in effects.values()
        for count in Counter(effect for _, effect in rows).values()
    )


def lost(found: Found) -> list[str]:
    """The jobs that were acknowledged and are nowhere, or have not ended."""
    return [
        job_id
        for job_id in _told(found.history, "enqueue", "ok")
        if found.states.get(job_id) not in found.expected[job_id].states
    ]


def stale_writes(refusals: Iterable[Mapping[str, Any]]) -> int:
    """How many attempts were refused something other than to keep their lease."""
    return len({(r["job_id"], r["stale_token"]) for r in refusals if r["operation"] != "renew"})


# ── the rules ────────────────────────────────────────────────────────────────────────────────────


def _asked(found: Found) -> Iterator[str]:
    for job_id in found.strangers:
        yield f"job {job_id} is there, and nobody asked for it"


def _accepted(found: Found) -> Iterator[str]:
    for job_id in _told(found.history, "enqueue", "ok"):
        if job_id not in found.states:
            yield f"job {job_id} was acknowledged and does not exist"


def _drained(found: Found) -> Iterator[str]:
    for job_id, wanted in found.expected.items():
        state = found.states.get(job_id)
        if state is not None and state not in wanted.states:
            yield f"job {job_id} is {state}, not {' or '.join(sorted(wanted.states))}"


def _once(found: Found) -> Iterator[str]:
    for job_id, wanted in found.expected.items():
        counts = Counter(effect for _, effect in found.effects.get(job_id, ()))
        for effect, count in counts.items():
            if count > 1:
                yield f"{effect} of job {job_id} was written {count} times"
            if effect not in wanted.effects:
                yield f"job {job_id} wrote {effect}, which nobody asked for"
        if found.states.get(job_id) == "succeeded":
            for effect in wanted.effects:
                if not counts[effect]:
                    yield f"job {job_id} succeeded without {effect}"


def _acknowledged(found: Found) -> Iterator[str]:
    for job_id, token, effect in _writes(found.history, "ok"):
        if (token, effect) not in found.effects.get(job_id, ()):
            yield f"{effect} of job {job_id}, token {token}, was acknowledged and is not there"


def _refused(found: Found) -> Iterator[str]:
    for job_id, token, effect in _writes(found.history, "fail"):
        if (token, effect) in found.effects.get(job_id, ()):
            yield f"{effect} of job {job_id}, token {token}, was refused and is there"


def _resolved(found: Found) -> Iterator[str]:
    begun = _writes(found.history, "invoke")
    known = _writes(found.history, "ok") | _writes(found.history, "fail")
    for job_id, token, effect in begun - known:
        there = [row for row in found.effects.get(job_id, ()) if row[1] == effect]
        if (token, effect) in there and len(there) > 1:
            yield f"{effect} of job {job_id}, token {token}, had no answer, and is there again"
    for job_id, rows in found.effects.items():
        for token, effect in rows:
            if (job_id, token, effect) not in begun:
                yield f"{effect} of job {job_id}, token {token}, is there and nobody wrote it"


def _winner(found: Found) -> Iterator[str]:
    for job_id, attempts in found.attempts.items():
        tokens = [attempt["fencing_token"] for attempt in attempts]
        won = [a["fencing_token"] for a in attempts if a["outcome"] == "succeeded"]
        if len(won) > 1:
            yield f"job {job_id} succeeded under the tokens {won}"
        if won and won[0] != max(tokens):
            yield f"job {job_id} succeeded under {won[0]}, but was at {max(tokens)}"
        if found.states.get(job_id) == "succeeded" and not won:
            yield f"job {job_id} is succeeded and no attempt of it was"
        if len(set(tokens)) != len(tokens):
            yield f"job {job_id} ended one of its attempts twice: {tokens}"


def _holder(found: Found) -> Iterator[str]:
    for doing in ("claim", "execute"):
        given = Counter((item.job_id, item.token) for item in found.history if item.doing == doing)
        for (job_id, token), count in given.items():
            if count > 1:
                yield f"token {token} of job {job_id}: {count} times {doing}"
    won: dict[str, set[int | None]] = defaultdict(set)
    for item in found.history:
        if (item.doing, item.phase) == ("complete", "ok"):
            won[item.job_id].add(item.token)
    for job_id, tokens in won.items():
        if len(tokens) > 1:
            yield f"the success of job {job_id} was acknowledged under the tokens {tokens}"


def _rising(found: Found) -> Iterator[str]:
    for job_id, attempts in found.attempts.items():
        by_time = sorted(attempts, key=lambda attempt: attempt["claimed_at"])
        tokens = [attempt["fencing_token"] for attempt in by_time]
        if tokens != sorted(tokens):
            yield f"job {job_id} was handed out under the tokens {tokens}, in this order"


def _stale(found: Found) -> Iterator[str]:
    """By the order of the history, which is that of real time: no clock is asked."""
    begun: dict[str, int] = defaultdict(int)  # the highest token at work on a job so far
    late = set()
    for item in found.history:
        if item.token is None:
            continue
        if item.doing == "execute":
            begun[item.job_id] = max(begun[item.job_id], item.token)
        elif (item.doing, item.phase) == ("write", "invoke") and item.token < begun[item.job_id]:
            late.add((item.job_id, item.token, item.effect))
    for job_id, token, effect in late:
        if (token, effect) in found.effects.get(job_id, ()):
            yield f"{effect} of job {job_id} landed under token {token}, after a higher one began"


def _invariants(found: Found) -> Iterator[str]:
    for violation in found.violations:
        yield ", ".join(f"{name} {value}" for name, value in violation.items())


# ── reading the history ──────────────────────────────────────────────────────────────────────────


def _told(history: Sequence[Operation], doing: str, phase: str) -> list[str]:
    return [done.job_id for done in history if (done.doing, done.phase) == (doing, phase)]


def _writes(history: Sequence[Operation], phase: str) -> set[tuple[str, int, str]]:
    return {
        (done.job_id, done.token, done.effect)
        for done in history
        if done.doing == "write" and done.phase == phase
        if done.token is not None and done.effect is not None
    }
