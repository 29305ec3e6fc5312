"""The checker of the drills, against forged histories: it sees each thing that must not be, and
nothing where nothing is.

Method: a good story (token 1 stalls, token 2 finishes, token 1 is refused), and one forgery each.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from faultline.drills.checker import Expected, Found, check, duplicates, lost
from faultline.drills.history import Operation
from faultline.drills.run import STAGINGS, is_staged_again
from faultline.drills.scenario import Result
from faultline.drills.summary import is_clean, never_staged, spread, totals

START = datetime(2026, 1, 1, tzinfo=UTC)


def operation(doing: Any, phase: Any, token: int | None = None, **more: Any) -> Operation:
    return Operation(doing, phase, "J", token, **more)


def write(phase: Any, token: int, why: str | None = None) -> Operation:
    return operation("write", phase, token, effect="e", why=why)


def attempt(token: int, outcome: str, seconds: float) -> dict[str, Any]:
    return {
        "fencing_token": token,
        "outcome": outcome,
        "claimed_at": START + timedelta(seconds=seconds),
    }


def story() -> Found:
    """A worker stalls, another one takes over and finishes, the first one is refused."""
    return Found(
        expected={"J": Expected(["e"])},
        history=[
            operation("enqueue", "ok"),
            operation("execute", "invoke", 1),
            operation("execute", "invoke", 2),
            write("invoke", 2),
            write("ok", 2),
            write("invoke", 1),
            write("fail", 1, "StaleLease"),
        ],
        effects={"J": [(2, "e")]},
        states={"J": "succeeded"},
        attempts={"J": [attempt(1, "expired", 0), attempt(2, "succeeded", 2)]},
    )


def test_a_good_story_has_nothing_wrong_with_it() -> None:
    assert check(story()) == []
    assert duplicates(story().effects) == 0
    assert lost(story()) == []


def put(**facts: Any) -> Callable[[Found], None]:
    def forge(found: Found) -> None:
        for name, value in facts.items():
            setattr(found, name, value)

    return forge


def without(*phases: str) -> Callable[[Found], None]:
    """Token 1 wrote, and its answer never came."""

    def forge(found: Found) -> None:
        found.history = [
            item for item in found.history if not (item.token == 1 and item.phase in phases)
        ]

    return forge


def both(*forgeries: Callable[[Found], None]) -> Callable[[Found], None]:
    def forge(found: Found) -> None:
        for each in forgeries:
            each(found)

    return forge


def swapped(found: Found) -> None:
    found.attempts = {"J": [attempt(1, "succeeded", 0), attempt(2, "expired", 2)]}


FORGERIES = {
    "accepted: an acknowledged job is nowhere": put(states={}, effects={}, attempts={}),
    "drained: a job has not ended": put(states={"J": "running"}),
    "drained: a job ended in a way that nobody allowed": put(states={"J": "failed"}),
    "once: the stale write landed as well": put(effects={"J": [(2, "e"), (1, "e")]}),
    "once: the very same write is there twice": put(effects={"J": [(2, "e"), (2, "e")]}),
    "once: a success left nothing": put(effects={}),
    "once: something else was written": put(effects={"J": [(2, "e"), (2, "other")]}),
    "acknowledged: the winner's write is gone": put(effects={"J": [(1, "e")]}),
    "refused: a refused write is there": put(effects={"J": [(2, "e"), (1, "e")]}),
    "resolved: a write without an answer is there beside another": both(
        without("fail"), put(effects={"J": [(1, "e"), (2, "e")]})
    ),
    "resolved: a row that nobody wrote": put(effects={"J": [(2, "e"), (3, "e")]}),
    "winner: two attempts succeeded": put(
        attempts={"J": [attempt(1, "succeeded", 0), attempt(2, "succeeded", 2)]}
    ),
    "winner: an attempt before the last succeeded": swapped,
    "winner: a succeeded job has no success": put(
        attempts={"J": [attempt(1, "expired", 0), attempt(2, "failed", 2)]}
    ),
    "winner: one attempt ended twice": put(
        attempts={"J": [attempt(2, "expired", 0), attempt(2, "succeeded", 0)]}
    ),
    "rising: a lower token was handed out later": put(
        attempts={"J": [attempt(1, "expired", 9), attempt(2, "succeeded", 2)]}
    ),
    "stale: who began to write after its successor landed": both(
        without("fail"), put(effects={"J": [(1, "e")]})
    ),
    "asked: a job that nobody submitted": put(strangers=["GHOST"]),
    "holder: two workers were given one token": put(
        history=[*story().history, operation("claim", "ok", 2), operation("claim", "ok", 2)]
    ),
    "holder: one attempt began twice": put(
        history=[*story().history, operation("execute", "invoke", 2)]
    ),
    "holder: two attempts were told that they completed the job": put(
        history=[*story().history, operation("complete", "ok", 1), operation("complete", "ok", 2)]
    ),
    "invariants: the database has an offending row": put(violations=[{"invariant": 3}]),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forgery_is_seen_by_the_rule_that_is_there_for_it(forgery: str) -> None:
    found = story()
    FORGERIES[forgery](found)
    rule = forgery.partition(":")[0]
    assert any(sentence.startswith(f"{rule}: ") for sentence in check(found)), check(found)


def test_a_write_whose_answer_was_lost_may_be_there_or_not() -> None:
    found = story()
    found.history = [
        operation("enqueue", "ok"),
        operation("execute", "invoke", 1),
        write("invoke", 1),
        operation("execute", "invoke", 2),
    ]
    found.effects = {"J": [(1, "e")]}  # it has landed: the successor found its step done
    assert check(found) == []


def test_a_job_that_was_not_acknowledged_may_be_missing_and_an_acknowledged_one_is_lost() -> None:
    found = story()
    found.states, found.effects, found.attempts = {}, {}, {}
    assert lost(found) == ["J"]
    found.history = []
    assert lost(found) == []
    assert check(found) == []


def test_duplicates_are_counted_over_what_a_job_asked_for() -> None:
    assert duplicates({"J": [(1, "a"), (2, "a"), (2, "b")], "K": [(1, "a")] * 3}) == 3


@pytest.mark.parametrize(
    "wrong", [{"violations": ["x"]}, {"duplicates": 1}, {"lost": 1}, {"vacuous": "no fault"}]
)
def test_one_bad_scenario_spoils_the_whole_run(wrong: dict[str, Any]) -> None:
    good = Result("crash-1", "crash", 1, 1.0, faults=[{}], jobs=3)
    assert is_clean([good, good])
    assert not is_clean([good, Result("crash-2", "crash", 2, 1.0, **wrong)])
    assert not is_clean([])


def of(kind: str, **more: Any) -> Result:
    return Result(f"{kind}-1", kind, 1, 1.0, **more)


@pytest.mark.parametrize(
    ("results", "missing"),
    [
        ([of("failover"), of("failover", void="no lag")], []),
        ([of("failover", void="no lag")], ["failover"]),
        ([of("crash"), of("failover", void="no lag"), of("failover", void="no lag")], ["failover"]),
        ([of("crash", void="x"), of("crash"), of("failover", void="x"), of("failover")], []),
    ],
)
def test_void_scenarios_spoil_a_run_only_if_a_whole_kind_is_void(
    results: list[Result], missing: list[str]
) -> None:
    assert never_staged(results) == missing
    assert is_clean(results) == (not missing)
    assert totals(results)["void"] == sum(result.void is not None for result in results)
    assert totals(results)["violations"] == 0


@pytest.mark.parametrize(
    ("result", "stagings", "again"),
    [
        (of("failover"), 1, False),
        (of("failover", vacuous="no fault"), 1, False),
        (of("failover", void="no lag"), 1, True),
        (of("failover", void="no lag"), STAGINGS - 1, True),
        (of("failover", void="no lag"), STAGINGS, False),
        (of("failover", void="no lag", violations=["once: twice"]), 1, False),
    ],
)
def test_only_a_void_scenario_is_staged_again_and_three_times_in_all(
    result: Result, stagings: int, again: bool
) -> None:
    assert STAGINGS == 3
    assert is_staged_again(result, stagings) is again


def test_percentiles_are_values_that_were_measured() -> None:
    assert spread([]) is None
    measured = spread(float(n) for n in range(1, 101))
    assert measured == {"count": 100, "p50": 50.0, "p95": 95.0, "max": 100.0}
    assert spread([2.0]) == {"count": 1, "p50": 2.0, "p95": 2.0, "max": 2.0}
