"""What the explorer must find: constructions known to be unsafe, and Faultline without a guard.

A variant is a scenario, and what is replaced in its database. `VARIANTS` are the classics; the
mutants are the guards of proofs/guards.toml that are in SQL functions, each removed in turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Final

from psycopg import Connection

from proofs.explore import scenarios, small, steps
from proofs.explore.arena import Arena
from proofs.explore.play import Played
from proofs.explore.run import Tally, explore
from proofs.explore.scenario import Actor, Scenario
from proofs.explore.search import TRIES, replay
from proofs.explore.steps import transaction
from proofs.guards import Guard, guards

_AT_MOST = 4000  # schedules, in search of a mutant


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to get it wrong."""

    name: str
    scenario: Scenario
    broken: Callable[[Connection[Any]], str] | None = None


def without(name: str, instead: str | None = None) -> Callable[[Connection[Any]], str]:
    """Faultline without this guard, or with this in its place."""
    guard = next(guard for guard in guards() if guard.name == name)
    guard = replace(guard, without=guard.without if instead is None else instead)
    return lambda conn: definition_without(conn, guard)


def mutated_function(conn: Connection[Any], guard: Guard) -> tuple[str, str]:
    """The name and the definition of the one function whose body has the guard's text."""
    source = resources.files("faultline").joinpath(guard.file).read_text("utf-8")
    functions = re.findall(r"create or replace function \{schema\}\.(\w+)", source)
    rows = conn.execute(
        "select proname, pg_get_functiondef(oid) from pg_proc where prokind = 'f' and "
        "pronamespace = 'faultline'::regnamespace and proname = any (%s) "
        "and position(%s in prosrc) > 0",
        (functions, guard.text),
    ).fetchall()
    if len(rows) != 1:
        raise LookupError(f"{guard.name}: not in the body of one function")
    return str(rows[0][0]), str(rows[0][1])


def definition_without(conn: Connection[Any], guard: Guard) -> str:
    """The function that is installed, with the guard's text replaced."""
    return mutated_function(conn, guard)[1].replace(guard.text, guard.without)


def callers(conn: Connection[Any], function: str) -> set[str]:
    """The function, and all of Faultline's that call it, or have it called by a trigger."""
    called = {"check_fence_at_commit": "fence"}
    bodies = conn.execute(
        "select proname, prosrc from pg_proc where pronamespace = 'faultline'::regnamespace"
    ).fetchall()
    found, fresh = {function}, {function}
    while fresh:
        names = "|".join(fresh)
        fresh = {name for name, body in bodies if re.search(rf"\b({names})\(", body)}
        fresh = (fresh | {called[name] for name in found if name in called}) - found
        found |= fresh
    return found


def relevance(scenario: Scenario, verbs: set[str]) -> int:
    """How many of its steps call one of these verbs; the first actor's count for more."""
    calls = [
        (10 if n == 0 else 1)
        for n, actor in enumerate(scenario.actors)
        for step in actor.program
        if verbs & set(re.findall(r"(?:faultline|explore)\.(\w+)\(", step.statement))
        or ("check_guard" in verbs and "guarded" in step.statement)
    ]
    return sum(calls)


# A reclaim that hands the lease on by updating it: a key share lock does not hold that off.
UPDATING_RECLAIM: Final = """
create function explore.reclaim_by_update() returns table (job_id uuid, fencing_token bigint)
language sql as $$
    with moment as materialized (select clock_timestamp() as now),
    lost as (
        update faultline.lease l
           set fencing_token = l.fencing_token + 1, worker = 'B', claimed_at = dead.now,
               expires_at = dead.now + interval '30 s'
          from (select d.job_id, d.claimed_at, m.now from faultline.lease d, moment m
                 where d.expires_at <= m.now for no key update of d skip locked) dead
         where l.job_id = dead.job_id
        returning l.job_id, l.fencing_token - 1 as token, dead.claimed_at, dead.now)
    insert into faultline.attempt (job_id, fencing_token, claimed_at, at, lease_expired_at, started,
                                   final, outcome, worker)
    select lost.job_id, lost.token, lost.claimed_at, lost.now, lost.now, true, false, 'expired', 'A'
      from lost
    returning job_id, fencing_token $$"""
_RECLAIM_BY_UPDATE = replace(
    steps.RECLAIM, statement="select job_id, fencing_token from explore.reclaim_by_update()"
)


def _takeover(name: str, program: steps.Program, rescuer: Actor = scenarios.R) -> Scenario:
    return Scenario(
        name,
        f"{name} against expiry, reclaim and a successor",
        (scenarios.a(program), scenarios.T, rescuer, scenarios.B),
    )


def mutants() -> list[Guard]:
    """The guards that are in SQL functions."""
    return [guard for guard in guards() if guard.file.startswith("sql/functions/")]


VARIANTS: Final = (
    Variant(
        "check-then-write",
        _takeover("check-then-write", transaction(steps.CHECK_IN_CLIENT, steps.effect())),
    ),
    Variant(
        "now-in-the-gate",
        _takeover("now-in-the-gate", scenarios.WRITES["gate"]),
        without("the gate reads a clock that moves"),
    ),
    Variant(
        "updating-reclaim",
        _takeover(
            "updating-reclaim",
            scenarios.WRITES["gate"],
            Actor("R", transaction(_RECLAIM_BY_UPDATE)),
        ),
        lambda _: UPDATING_RECLAIM,
    ),
    Variant(
        "unordered-batch",
        Scenario(
            "unordered-batch",
            "two batches that name the same jobs in both orders",
            (
                scenarios.a(transaction(steps.complete())),
                scenarios.k(transaction(steps.complete(backwards=True))),
                scenarios.HOLDER,
            ),
            jobs=2,
        ),
        without("complete locks leases in one order", "offset 0) u"),
    ),
)


def hunt(url: str, template: str, variant: Variant) -> Tally:
    """The schedules of the variant, up to the first bad one."""
    with Arena(url, template, splits=variant.scenario.splits, broken=variant.broken) as arena:
        return explore(arena, variant.scenario, at_most=_AT_MOST, until_bad=True)


def play_without(url: str, template: str, guard: Guard) -> Played:
    """The schedule that is named for this guard, on Faultline without it.

    Played again while it is good: of two that have waited for one lock the server lets either go
    first, and a deadlock, say, comes of one of the two.
    """
    name, _, turns = guard.schedule.partition(":")
    scenario = next(scenario for scenario in small.SCENARIOS if scenario.name == name)
    with Arena(
        url,
        template,
        splits=scenario.splits,
        broken=lambda conn: definition_without(conn, guard),
    ) as arena:
        for _ in range(TRIES):
            if (played := replay(arena, scenario, turns)).bad:
                break
        return played


def hunt_mutant(url: str, template: str, guard: Guard) -> Tally | None:
    """What the first scenario has found that misses this guard; None if none does.

    Raises LookupError if the guard is not in the body of a function.
    """
    name: list[str] = []

    def broken(conn: Connection[Any]) -> str:
        function, definition = mutated_function(conn, guard)
        name.append(function)
        return definition.replace(guard.text, guard.without)

    with Arena(url, template, broken=broken) as arena:
        verbs = callers(arena.conn, name[0])
        order = sorted(small.HUNTS, key=lambda s: (s not in small.TINY, -relevance(s, verbs)))
        spent = 0
        for scenario in (scenario for scenario in order if relevance(scenario, verbs)):
            tally = explore(arena, scenario, at_most=_AT_MOST - spent, until_bad=True)
            spent += tally.schedules
            if not tally.holds:
                return tally
            if spent >= _AT_MOST:
                break
    return None
