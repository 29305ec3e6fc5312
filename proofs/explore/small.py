"""Small scenarios: one thing each, some ten to some hundred schedules.

What a missing guard does shows here soon; the mutants are hunted in these.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from proofs.explore import steps
from proofs.explore.scenario import Actor, Scenario
from proofs.explore.scenarios import (
    ALONE,
    B_CLAIMS,
    HOLDER,
    KEEPING,
    PROGRAMS,
    R_ALONE,
    WRITES,
    B,
    R,
    T,
    a,
    batches,
    cancels,
    claims,
    k,
    rescuers,
    scenarios,
    writes,
)
from proofs.explore.steps import transaction

B_IN_STEPS = Actor("B", (steps.claim(), *WRITES["step"]))
R_AT_ONCE = Actor("R", transaction(steps.EXPIRE_AND_RECLAIM))
T_FIRST = Actor("T", (steps.EXPIRE_FIRST,))
X_ALONE = Actor("X", (steps.CANCEL,))


def shorts() -> list[Scenario]:
    """A takeover with one reclaim and one claim."""
    return [
        Scenario(
            f"short-{name}",
            f"{name} against one reclaim and one claim",
            (a(program), T, R, B_IN_STEPS if name == "step" else B),
        )
        for name, program in PROGRAMS.items()
    ]


def alone() -> list[Scenario]:
    """The same without a transaction around: what was refused is on record."""
    return [
        Scenario(
            f"alone-{name}", f"{name}, each by itself, against a takeover", (a(program), T, R, B)
        )
        for name, program in ALONE.items()
    ]


def frozen() -> list[Scenario]:
    """The user's transactions with a snapshot that stands still.

    It does not see that a row was moved, while in earnest the clock would tell; so here a lease
    runs out and is taken in one step.
    """
    return [
        Scenario(
            f"{level.replace(' ', '-')}-{name}",
            f"{name} under {level.upper()} against a takeover",
            (a(program), R_AT_ONCE, replace(B, program=(steps.claim(), *writes(level)["once"]))),
            quick=name == "guarded",
        )
        for level in ("repeatable read", "serializable")
        for name, program in writes(level).items()
    ]


def overtaken() -> list[Scenario]:
    """A lease that is alive for whoever looks is taken by a transaction that has yet to commit.

    The verbs see the lease, wait for it, and have to look again: where it runs out by itself they
    see that at once, and never wait.
    """
    return [
        Scenario(
            f"overtaken-{name}",
            f"{name} waits for a takeover",
            (a(program), R_AT_ONCE, B),
            quick=name in ("once", "fail"),
        )
        for name, program in PROGRAMS.items()
        if name != "fenced-reclaim"  # two would take it
    ]


def parts() -> list[Scenario]:
    """Of two jobs the lease of one runs out: it is refused, and its neighbour is not."""
    verbs = {
        "complete": steps.complete(),
        "fail": steps.fail(),
        "snooze": steps.snooze(),
        "decline": steps.decline(),
        "release": steps.release(),
        "execute": steps.EXECUTE,
        "renew": steps.RENEW,
        "adopt": steps.ADOPT,
    }
    return [
        Scenario(
            f"part-{name}",
            f"{name} of two jobs, one of which is lost",
            (a((verb,)), T_FIRST, R),
            jobs=2,
        )
        for name, verb in verbs.items()
    ]


def twice() -> list[Scenario]:
    """A worker that was leased its lost job once more brings both attempts in one batch."""
    verbs = {"complete": steps.complete(), "fail": steps.fail(), "execute": steps.EXECUTE}
    return [
        Scenario(
            f"twice-{name}",
            f"{name} of a stale and of a live attempt of one job",
            (a((steps.CLAIM_BESIDES, verb)), T, R),
        )
        for name, verb in verbs.items()
    ]


def waiting() -> list[Scenario]:
    """Who never waits, beside an open transaction that holds what it wants."""
    claiming = Actor("B", transaction(steps.claim()))
    pairs = Actor("B", transaction(steps.claim(2)))
    keeper = Actor("K", (steps.RENEW,), holds=True)
    executing, gate = a(KEEPING["execute"]), a(WRITES["gate"])
    taking = (R, Actor("S", (steps.RECLAIM_DEAD,)), Actor("Q", (steps.RELEASE_OTHERS,)))
    patient = replace(steps.release(), never_waits=True)
    starting = replace(steps.EXECUTE, never_waits=True)
    return [
        Scenario("wait-claim", "two claims", (claiming, Actor("C", (steps.claim(),))), 1, "ready"),
        Scenario("wait-pairs", "two claims", (pairs, Actor("C", (steps.claim(2),))), 2, "ready"),
        Scenario("wait-gate", "a start of what is being written", (gate, k((starting,)))),
        Scenario("wait-renew", "a renewal of what is in use", (executing, keeper, T)),
        *(
            Scenario(f"wait-{who.program[0].name}", "a rescue of what is in use", (gate, T, who))
            for who in taking
        ),
        Scenario(
            "wait-asked",
            "an attempt ends while somebody asks for that once more",
            (a((patient,)), Actor("X", transaction(steps.CANCEL))),
            place="asked",
        ),
    ]


def together() -> list[Scenario]:
    """Two sessions of one attempt: one ends it, the other writes."""
    endings = {"complete": PROGRAMS["complete"], "fail": PROGRAMS["fail"], "once": WRITES["once"]}
    return [
        *(
            Scenario(
                f"outlast-{name}",
                f"{name} waits for the gate, and a step is recorded before it has the lease",
                (a(program), k(WRITES["step"]), HOLDER),
            )
            for name, program in endings.items()
        ),
        *(
            Scenario(
                f"apart-{name}", "a fence, and an ending elsewhere", (a(WRITES[name]), k(program))
            )
            for name, program in {
                "fenced": PROGRAMS["complete"],
                "guarded": PROGRAMS["fail"],
            }.items()
        ),
    ]


def orders() -> list[Scenario]:
    """Two who name the same things in both orders, behind a third. No deadlock may come of it."""
    return [
        Scenario(
            "orders-keys",
            "two use two keys in both orders; one waits in between for a third, that rolls back",
            (
                Actor("E", (steps.enqueue("xzy"),)),
                Actor("F", (steps.enqueue("yx"),)),
                Actor("G", (*transaction(steps.enqueue("z"))[:-1], steps.ROLLBACK)),
            ),
            jobs=0,
            place="ready",
        ),
        *(
            Scenario(
                f"orders-{step.name}",
                f"{step.name} and complete of two jobs, behind a third",
                (
                    a(transaction(step)),
                    k(transaction(steps.complete())),
                    Actor("M", transaction(steps.EXECUTE_FIRST), holds=True),
                ),
                jobs=2,
            )
            for step in (steps.EXECUTE, steps.ADOPT)
        ),
        Scenario(
            "orders-retry",
            "two retry two jobs in both orders, behind a third",
            (
                Actor("Q", (steps.RETRY,)),
                Actor("S", (steps.RETRY_BACKWARDS,)),
                Actor("M", (*transaction(steps.RETRY_FIRST)[:-1], steps.ROLLBACK)),
            ),
            jobs=2,
            place="scheduled",
        ),
    ]


def places() -> list[Scenario]:
    """Jobs that begin in an odd state, and verbs that are to leave something alone."""
    waits = replace(steps.claim(2), never_waits=False)
    released = a((steps.release(),))
    return [
        Scenario(
            "fragile", "a job that may not crash", (a(KEEPING["renew"]), T, R, B), 1, "fragile"
        ),
        Scenario("unstarted", "nor may this, but it had not begun", (T, R, B), 1, "unstarted"),
        Scenario("asked", "asked to stop, then handed back", (released, X_ALONE, B_CLAIMS)),
        Scenario("asked-lost", "asked to stop, then lost", (X_ALONE, T, R, B_CLAIMS)),
        Scenario(
            "rescue",
            "a job that has no pointer any more is rescued and claimed",
            (Actor("Q", transaction(steps.RESCUE)), Actor("B", (waits,))),
            place="lost",
        ),
        Scenario(
            "declined",
            "declined by A, while B makes due what awaits its tasks, and P what is due",
            (
                a((steps.decline(),)),
                Actor("B", (*transaction(steps.KNOW_TASKS), steps.KNOW_TASKS, steps.claim())),
                Actor("P", (steps.PROMOTE,)),
            ),
        ),
        Scenario(
            "declined-twice",
            "two workers that know the task, and an operator who retries and cancels",
            (
                Actor("B", transaction(steps.KNOW_TASKS)),
                Actor("C", transaction(steps.KNOW_TASKS)),
                Actor("Q", (steps.RETRY,)),
                X_ALONE,
            ),
            jobs=2,
            place="declined",
        ),
        Scenario(
            "spare-dead",
            "reclaim_dead of A, while B has its job",
            (released, B_CLAIMS, Actor("S", (steps.RECLAIM_DEAD,))),
        ),
        Scenario(
            "spare-others",
            "release_others of A, while B has its job",
            (released, B_CLAIMS, Actor("S", (steps.RELEASE_OTHERS,))),
        ),
        Scenario(
            "spare-none", "reclaim_dead of no job", (k((steps.RECLAIM_DEAD_NONE,)), T), jobs=2
        ),
        Scenario("spare-known", "release_others of none", (k((steps.RELEASE_UNKNOWN,)), T), jobs=2),
        Scenario(
            "two-fences",
            "a guarded write beside an open fence of another session",
            (a(WRITES["unfenced"]), k(WRITES["fenced"]), T, R_ALONE),
        ),
    ]


TINY: Final = (
    *places(),
    *orders(),
    *together(),
    *waiting(),
    *frozen(),
    *overtaken(),
    *parts(),
    *twice(),
)
SMALL: Final = (*TINY, *shorts(), *alone(), *batches((), "small"))
SCENARIOS: Final = (*scenarios(), *SMALL)  # what `make explore` enumerates
# Where the mutants are hunted.
HUNTS: Final = (
    *SMALL,
    *(s for s in (*claims(), *cancels(), *rescuers()) if s.quick or s.name == "keys"),
)
