"""The scenarios: who meets whom. `scenarios` are the large ones; small.py has the small ones.

The letters: A was leased the jobs before, K is a second session of its process (the keeper, or a
double), B and C are other workers, T is time, R reclaims, P promotes, X cancels, Q is an operator,
E and F are producers.
"""

from __future__ import annotations

from typing import Any, Final

from proofs.explore import steps
from proofs.explore.scenario import Actor, Scenario
from proofs.explore.steps import Program, Step, transaction

T = Actor("T", (steps.EXPIRE,))
R = Actor("R", transaction(steps.RECLAIM))
# Holds the first job's lease, so that batches queue up behind it, each with what it has already.
HOLDER = Actor("M", transaction(steps.ASSERT_FENCE), holds=True)
B_CLAIMS = Actor("B", (steps.claim(),))
R_ALONE = Actor("R", (steps.RECLAIM,))
R_TWICE = Actor("R", (*transaction(steps.RECLAIM), *transaction(steps.RECLAIM)))
# The rightful one: claims, and commits its effect together with the success.
DOING = transaction(steps.effect("once"), steps.COMPLETE_ONE)
B = Actor("B", (steps.claim(), *DOING))
B_PATIENT = Actor("B", (steps.claim(), steps.CLAIM_AGAIN, *DOING))


def a(program: Program) -> Actor:
    return Actor("A", program, holds=True)


def k(program: Program) -> Actor:
    return Actor("K", program, holds=True)


def writes(level: str = "read committed") -> dict[str, Program]:
    """What a worker that was stalled may still write under its old token."""

    def open_at(*program: Step) -> Program:
        return transaction(*program, level=level)

    return {
        "gate": open_at(steps.effect(), steps.ASSERT_FENCE),
        "gate-first": open_at(steps.ASSERT_FENCE, steps.effect()),
        "fenced": open_at(steps.FENCE, steps.effect()),
        "early": open_at(steps.FENCE, steps.CHECK_EARLY, steps.effect()),
        "guarded": open_at(steps.FENCE, steps.effect(table="guarded")),
        "unfenced": open_at(steps.effect(table="guarded")),
        "once": open_at(steps.effect("once"), steps.COMPLETE_ONE),
        "step": open_at(steps.BEGIN_STEP, steps.effect("step"), steps.RECORD_STEP),
    }


WRITES: Final = writes()
FENCED_ENDINGS: Final[dict[str, Program]] = {
    "fenced-once": transaction(steps.FENCE, steps.effect("once"), steps.COMPLETE_ONE),
    "fenced-fail": transaction(steps.FENCE, steps.effect(), steps.fail()),
    # A stale worker that reclaims its own job, to have an ending in its transaction.
    "fenced-reclaim": transaction(steps.FENCE, steps.effect(), steps.RECLAIM),
}
ENDINGS: Final[dict[str, Program]] = {
    "complete": transaction(steps.complete()),
    "complete_one": transaction(steps.COMPLETE_ONE),
    "fail": transaction(steps.fail()),
    "fail_dead": transaction(steps.FAIL_DEAD),
    "snooze": transaction(steps.snooze()),
    "decline": transaction(steps.decline()),
    "release": transaction(steps.release()),
    "cancel_attempt": transaction(steps.CANCEL_ATTEMPT),
}
# In transactions of their own: a refusal is not rolled back.
ALONE: Final[dict[str, Program]] = {
    "complete": (steps.complete(), steps.complete(), steps.RENEW),
    "fail": (steps.fail(), steps.release()),
    "renew": (steps.RENEW, steps.EXECUTE, steps.RENEW),
    "progress": (steps.PROGRESS, steps.PROGRESS),
    "swap": (steps.SWAP, steps.complete()),
}
KEEPING: Final[dict[str, Program]] = {
    "execute": transaction(steps.EXECUTE),
    "renew": transaction(steps.RENEW),
    "adopt": transaction(steps.ADOPT),
    "progress": transaction(steps.PROGRESS),
    "busy": transaction(steps.BUSY),
}

PROGRAMS: Final = {**WRITES, **FENCED_ENDINGS, **ENDINGS, **KEEPING}


def takeovers() -> list[Scenario]:
    """A stalls, its lease runs out, R takes it, B does the job: A comes back anywhere in that."""
    return [
        Scenario(
            f"takeover-{name}",
            f"a stalled worker ({name}) against expiry, reclaim and its successor",
            (a(program), T, R_TWICE if name == "gate" else R, B_PATIENT),
            quick=name in ("gate-first", "guarded", "step", "complete", "release", "renew"),
        )
        for name, program in {**PROGRAMS, **{f"alone-{n}": p for n, p in ALONE.items()}}.items()
    ]


def insistent() -> list[Scenario]:
    """A goes on after it was refused: everything it was still going to do, one after the other."""
    gate = WRITES["gate"]
    return [
        Scenario(
            "insists",
            "a worker that ignores refusals: the gate, then complete, fail and release",
            (a((*gate, steps.complete(), steps.fail(), steps.release())), T, R, B_CLAIMS),
        ),
        Scenario(
            "insists-fenced",
            "a worker that ignores refusals: a fenced transaction, then renew, then complete",
            (a((*WRITES["guarded"], steps.RENEW, steps.complete())), T, R, B),
        ),
    ]


SEEN_SINGLY: Final = ("early", "unfenced")


def doubles() -> list[Scenario]:
    """Two sessions of one attempt at once, while its lease runs out and is taken."""
    found = []
    programs = {name: p for name, p in {**WRITES, **ENDINGS}.items() if name not in SEEN_SINGLY}
    for name, program in programs.items():
        for other in ("renew", "complete", "fail", "execute", "busy"):
            if name != other:
                second = {**ENDINGS, **KEEPING}[other]
                found.append(
                    Scenario(
                        f"double-{name}-{other}",
                        f"{name} and {other} of one attempt at once, expiry and reclaim",
                        (a(program), k(second), T, R),
                        quick=name in ("gate", "complete") and other == "renew",
                    )
                )
    return found


def rescuers() -> list[Scenario]:
    """Several who take leases away, at once."""
    ways = {
        "reclaim": Actor("S", (steps.RECLAIM,)),
        "reclaim_dead": Actor("S", (steps.RECLAIM_DEAD,)),
        "reconcile": Actor("S", (steps.RECONCILE,)),
        "release_others": Actor("S", (steps.RELEASE_OTHERS,)),
    }
    found = []
    for way, second in ways.items():
        for name in ("gate", "once", "fenced-fail", "complete", "snooze", "release", "renew"):
            program = PROGRAMS[name]
            found.append(
                Scenario(
                    f"rescue-{way}-{name}",
                    f"reclaim and {way} at once, against {name}",
                    (a(program), T, R, second, B_CLAIMS),
                    quick=name == "complete" and way == "reclaim_dead",
                )
            )
    return found


def claims() -> list[Scenario]:
    """Two or three workers want the same job, which may only just be coming."""
    doing = (*transaction(steps.claim()), *DOING)
    twins = (Actor("B", doing), Actor("C", doing, after="B"))
    three = (
        Actor("B", transaction(steps.claim())),
        Actor("C", transaction(steps.claim()), after="B"),
        Actor("D", transaction(steps.claim()), after="C"),
    )
    pair = (
        Actor("B", (*transaction(steps.claim(2)), *transaction(steps.complete()))),
        Actor("C", (*transaction(steps.claim(2)), *transaction(steps.release(backwards=True)))),
    )
    return [
        Scenario("claim-twins", "two workers claim and do one job", twins, place="ready"),
        Scenario("claim-three", "three workers, two jobs", three, jobs=2, place="ready"),
        Scenario("claim-pairs", "batches of two, settled", pair, jobs=2, place="ready", quick=True),
        Scenario(
            "claim-expired",
            "two workers claim while the lease of the first runs out and is reclaimed",
            (
                Actor("B", (steps.claim(), *DOING)),
                Actor("C", (steps.claim(), *DOING), after="B"),
                T,
                R,
            ),
            place="ready",
        ),
        Scenario(
            "claim-promoted",
            "a job that becomes due is promoted, retried and claimed",
            (
                *three[:2],
                Actor("P", transaction(steps.PROMOTE)),
                Actor("Q", transaction(steps.RETRY)),
            ),
            place="scheduled",
            quick=True,
        ),
        Scenario(
            "keys",
            "two producers use two idempotency keys, in both orders, while a worker claims",
            (
                Actor("E", transaction(steps.enqueue("xy"))),
                Actor("F", transaction(steps.enqueue("yx"))),
                *three[:2],
            ),
            jobs=0,
            place="ready",
        ),
    ]


def cancels() -> list[Scenario]:
    """A canceller against what the job does just then."""
    x = Actor("X", transaction(steps.CANCEL))
    found = [
        Scenario(
            f"cancel-{name}",
            f"a cancel against {name}, expiry, reclaim and the next claim",
            (a(PROGRAMS[name]), x, T, R_ALONE, B_CLAIMS),
            quick=name == "fail",
        )
        for name in ("once", "complete", "fail", "snooze", "release", "renew", "cancel_attempt")
    ]
    two = (x, Actor("Y", transaction(steps.CANCEL_BACKWARDS)))
    claimer = Actor("B", (*transaction(steps.claim(2)), *transaction(steps.fail())))
    return [
        *found,
        Scenario("cancel-ready", "two cancels and a claim", (*two, claimer), 2, "ready", (), True),
        Scenario(
            "cancel-scheduled",
            "two cancels, promote and retry, in several orders",
            (
                *two,
                Actor("P", transaction(steps.PROMOTE)),
                Actor("Q", transaction(steps.RETRY_BACKWARDS)),
            ),
            jobs=2,
            place="scheduled",
        ),
        Scenario(
            "cancel-retry",
            "a job that failed is promoted, retried, cancelled and claimed at once",
            (a(ENDINGS["fail"]), x, Actor("P", transaction(steps.PROMOTE)), B_CLAIMS),
        ),
        Scenario(
            "requeue",
            "two operators requeue a dead job, a third cancels it, a worker claims it",
            (
                Actor("Q", transaction(steps.REQUEUE)),
                Actor("S", transaction(steps.REQUEUE), after="Q"),
                x,
                B,
            ),
            place="dead",
            quick=True,
        ),
    ]


def batches(world: tuple[Actor, ...] = (T, R_ALONE), prefix: str = "batch") -> list[Scenario]:
    """Two jobs, locked by batches that name them in both orders. No deadlock may come of it."""
    forwards = {
        "complete": steps.complete(),
        "fail": steps.fail(),
        "execute": steps.EXECUTE,
        "snooze": steps.snooze(),
    }
    backwards = {
        "complete": steps.complete(backwards=True),
        "release": steps.release(backwards=True),
        "execute": steps.EXECUTE_BACKWARDS,
        "snooze": steps.snooze(backwards=True),
    }
    return [
        Scenario(
            f"{prefix}-{one}-{other}",
            f"{one} and {other} of two jobs, in both orders, behind a third",
            (
                a(transaction(forwards[one])),
                k(transaction(backwards[other])),
                HOLDER,
                *world,
            ),
            jobs=2,
            quick=one == "complete" and other == "release",
        )
        for one in forwards
        for other in backwards
    ]


def inside() -> list[Scenario]:
    """The same between the statements of the verbs: these functions stop after each."""
    complete_one = transaction(steps.effect("once"), steps.COMPLETE_ONE)
    promoter = Actor("P", transaction(steps.PROMOTE))
    two = (Actor("B", transaction(steps.claim())), Actor("C", transaction(steps.claim())))
    x, y = Actor("X", transaction(steps.CANCEL)), Actor("Y", transaction(steps.REQUEUE))

    def split(name: str, functions: str, actors: tuple[Actor, ...], **more: Any) -> Scenario:
        names = tuple(functions.split())
        about = f"between the statements of {', '.join(names)}"
        return Scenario(f"inside-{name}", about, actors, splits=names, preemptions=2, **more)

    return [
        split("gate", "reclaim hold_lease", (a(WRITES["gate"]), T, R_ALONE, B_CLAIMS), quick=True),
        split("fence", "reclaim fence", (a(WRITES["guarded"]), T, R_ALONE, B_CLAIMS)),
        split(
            "commit", "reclaim check_fence_at_commit", (a(WRITES["fenced"]), T, R_ALONE, B_CLAIMS)
        ),
        split("complete", "reclaim complete", (a(ENDINGS["complete"]), T, R_ALONE, B_CLAIMS)),
        split("complete_one", "reclaim complete_one", (a(complete_one), T, R_ALONE, B_CLAIMS)),
        split("fail", "reclaim fail take", (a(ENDINGS["fail"]), T, R_ALONE)),
        split("renew", "reclaim renew", (a((steps.RENEW,)), T, R_ALONE, B_CLAIMS)),
        split("execute", "reclaim execute", (a(KEEPING["execute"]), T, R_ALONE, B_CLAIMS)),
        split("lost", "end_lost", (a(ENDINGS["complete"]), T, R_ALONE, B_CLAIMS)),
        split("put_back", "put_back", (a(ENDINGS["release"]), *two), jobs=1),
        split("claim_one", "claim_one", two, place="ready"),
        split(
            "claim",
            "claim",
            (Actor("B", (steps.claim(2),)), Actor("C", (steps.claim(2),))),
            jobs=2,
            place="ready",
        ),
        split(
            "promote",
            "promote queue_up",
            (promoter, Actor("Q", (steps.RETRY,)), two[0]),
            place="scheduled",
        ),
        split("cancel", "cancel cancel_waiting", (x, a((steps.release(),)), B_CLAIMS)),
        split("cancel-claim", "cancel_waiting claim_one", (x, two[0]), place="ready"),
        split("requeue", "requeue", (y, Actor("Z", y.program, after="Y")), place="dead"),
        split("requeue-cancel", "requeue cancel", (y, x, B_CLAIMS), place="dead"),
        split("parked", "requeue cancel_waiting", (y, x, B_CLAIMS), place="parked"),
        split("claim-release", "claim_one", (a((steps.release(),)), B_CLAIMS)),
        split(
            "dead",
            "reclaim_dead",
            (a(ENDINGS["fail"]), Actor("S", (steps.RECLAIM_DEAD,)), T, R_ALONE),
        ),
    ]


def scenarios() -> list[Scenario]:
    """All of them."""
    return [
        *takeovers(),
        *insistent(),
        *doubles(),
        *rescuers(),
        *claims(),
        *cancels(),
        *batches(),
        *inside(),
    ]
