"""The schedule explorer finds what is wrong, and nothing in Faultline.

Method: small scenarios are enumerated on the suite's server. Constructions known to be unsafe, and
Faultline without one of its guards, must each give a schedule that breaks a rule; the same
scenarios on the whole Faultline must give none. `make explore` enumerates all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from proofs.explore.arena import Arena, install
from proofs.explore.broken import (
    VARIANTS,
    Variant,
    hunt,
    hunt_mutant,
    mutants,
    play_without,
    without,
)
from proofs.explore.judge import Judge
from proofs.explore.play import Play
from proofs.explore.run import explore
from proofs.explore.search import replay, schedules
from proofs.explore.small import HUNTS, SCENARIOS, shorts
from proofs.explore.split import STOP, with_stops
from proofs.explore.timeline import timeline
from proofs.guards import Guard
from tests.documents import blocks

PAGE = Path(__file__).parent.parent / "docs" / "what-is-proved.md"
Place = tuple[str, str]

# Without this guard a scenario finds a schedule in which this is broken.
FOUND = {
    "complete compares the token": "complete of token 1 was accepted, but token 2 was leased",
    "complete_one compares the expiry": "complete_one of token 1 was accepted, but its lease had",
    "the settling verbs compare the token": "of token 1 was accepted, but token 2 was leased",
    "execute compares the token": "execute of token 1 was accepted, but token 2 was leased",
    "renew revives no dead lease": "renew of token 1 was accepted, but its lease had run out",
    "reclaim burns the old token": "BROKEN",
    "reclaim touches no live lease": "reclaim took token 1, whose lease was alive",
    "the gate holds off a reclaim": "an effect of token 1 was committed, but",
    "the gate compares the token": "BROKEN",
    "the fence is checked at commit": "a fenced transaction of token 1 was committed, but",
    "complete locks leases in one order": "DEADLOCK",
    "a claim of one does not wait for another": "claim raised 55P03",
    "complete_one aborts the stale transaction": "commits with the success is there 2 times",
    "complete_one compares the token": "an effect of token 1, yet the success is of token 2",
    "fenced: whoever would record a step twice cannot commit": "commits with a step is there 2",
    "an own ending is no refusal": "has ended by itself, and was recorded as refused",
    "reclaim_dead touches only that worker": "took token 2, which is not A's",
    "the fence takes only an ending of its own transaction": "but it had ended (complete)",
    "a rescue raises the epoch": "token 1 was leased after token 1",
    "settling: a failure ends after it has waited": "3_no_stale_transition",
}

# The same for slips that are no guard's absence: the scenario, the function, what is replaced.
SLIPS = [
    ("wait-reclaim", "reclaim", "for update skip locked", "for update", "reclaim waits, which it"),
    ("wait-gate", "hold_lease", "for key share", "for share", "execute waits, which it never may"),
    ("orders-adopt", "adopt", "order by job_id offset 0", "order by job_id desc", "DEADLOCK"),
    ("orders-retry", "retry", "order by j offset 0", "offset 0", "DEADLOCK"),
    (
        "short-renew",
        "renew",
        "where l.fencing_token = u.token and l.expires_at > v_now\n               for",
        "where l.expires_at > v_now\n               for",
        "renew said nothing of token 1",
    ),
    (
        "part-fail",
        "finish",
        "cardinality(finish.taken) is distinct from cardinality(finish.job_ids)",
        "finish.taken = '{}'",
        "fail of job 1 token 1 was accepted",
    ),
    (
        "overtaken-once",
        "complete_one",
        "if not found then",
        "v_lease.job_id := complete_one.job_id;"
        " v_lease.fencing_token := complete_one.token; v_lease.claimed_at := v_now;"
        " v_lease.worker := 'A'; v_lease.expires_at := v_now; if false then",
        "complete_one raised 23505",
    ),
    (
        "asked-lost",
        "put_back",
        "end_cancelled(put_back.freed, put_back.moment)",
        "'{}'",
        "but the job had been cancelled",
    ),
    ("orders-keys", "hold_key", "if found then", "if true then", "jobs under the idempotency key"),
    (
        "inside-claim-release",
        "claim_one",
        "v_now := clock_timestamp();",
        "v_now := statement_timestamp();",
        "3_no_stale_transition",
    ),
]

WITH_A_SCHEDULE = [guard for guard in mutants() if guard.schedule]


@pytest.fixture(scope="module")
def place(newest_server_url: str) -> Iterator[Place]:
    """A server, and the database on it that arenas are copied from."""
    template = install(newest_server_url)
    yield newest_server_url, template
    with psycopg.connect(newest_server_url, autocommit=True) as conn:
        conn.execute(f"drop database {template} with (force)")


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_construction_known_to_be_unsafe_is_found(place: Place, variant: Variant) -> None:
    tally = hunt(*place, variant)
    assert tally.deadlocks if variant.name == "unordered-batch" else tally.violations
    assert f"{variant.name}:" in tally.told[0], "the timeline begins with the id to replay"


@pytest.mark.parametrize("guard", WITH_A_SCHEDULE, ids=lambda guard: guard.name)
def test_a_guard_that_is_gone_is_missed_in_the_schedule_named_for_it(
    place: Place, guard: Guard
) -> None:
    told = timeline(play_without(*place, guard))
    assert "BROKEN" in told or "DEADLOCK" in told
    assert FOUND.get(guard.name, "") in told


def _replaced(conn: psycopg.Connection[Any], function: str, text: str, instead: str) -> str:
    row = conn.execute(
        "select pg_get_functiondef(%s::regproc)", (f"faultline.{function}",)
    ).fetchone()
    assert row is not None
    assert text in row[0]
    return str(row[0]).replace(text, instead)


@pytest.mark.parametrize("slip", SLIPS, ids=lambda slip: f"{slip[1]} in {slip[0]}")
def test_a_slip_is_found(place: Place, slip: tuple[str, str, str, str, str]) -> None:
    name, function, text, instead, told = slip
    scenario = next(s for s in SCENARIOS if s.name == name)

    def broken(conn: psycopg.Connection[Any]) -> str:
        return _replaced(conn, function, text, instead)

    found = ""
    for _ in range(12):  # which of two ids is the lower one is a matter of chance
        with Arena(*place, splits=scenario.splits, broken=broken) as arena:
            found = "".join(explore(arena, scenario, until_bad=True).told)
        if told in found:
            break
    assert told in found


def test_who_is_overtaken_while_it_waits_is_judged_by_what_has_happened_since(place: Place) -> None:
    scenario = next(s for s in SCENARIOS if s.name == "overtaken-execute")

    def broken(conn: psycopg.Connection[Any]) -> str:
        return _replaced(conn, "execute", "if cardinality(v_held) is", "if false and 1 is")

    with Arena(*place, broken=broken) as arena:
        told = timeline(replay(arena, scenario, "RAR"))
    assert "execute, token 1 → waits" in told
    assert "execute of token 1 was accepted, but run out, reclaim had taken its lease" in told


def test_reclaim_takes_and_the_next_worker_is_leased_the_job(place: Place) -> None:
    """Otherwise nothing would be refused, since nothing would be taken over."""
    scenario = next(s for s in shorts() if s.name == "short-complete")
    with Arena(*place) as arena:
        lines = {f"{x.text} → {x.outcome}" for p in schedules(arena, scenario) for x in p.lines}
    assert {
        "reclaim → token 1",
        "reclaim → none",
        "claim → token 2",
        "claim → nothing",
        "complete, token 1 → accepted",
        "complete, token 1 → refused, rolls back",
        "complete_one, token 2 → accepted",
    } <= lines


@pytest.mark.parametrize(
    ("scenario", "guard", "instead", "told"),
    [
        ("short-complete", "complete compares the token", "false", "complete of"),
        ("short-gate", "the gate reads a clock that moves", "true", "assert_fence of"),
    ],
)
def test_a_queue_that_refuses_the_living_is_found(
    place: Place, scenario: str, guard: str, instead: str, told: str
) -> None:
    short = next(s for s in shorts() if s.name == scenario)
    with Arena(*place, broken=without(guard, instead)) as arena:
        tally = explore(arena, short, until_bad=True)
    assert f"{told} token 1 was refused, but its lease is alive" in tally.told[0]


def test_every_guard_in_the_sql_has_its_schedule_or_says_why_none_shows_it() -> None:
    both = [guard.name for guard in mutants() if bool(guard.schedule) == bool(guard.no_schedule)]
    assert both == []


def test_a_schedule_that_misses_a_guard_is_found_by_looking_for_it(place: Place) -> None:
    guard = next(guard for guard in mutants() if guard.name == "renew revives no dead lease")
    caught = hunt_mutant(*place, guard)
    assert caught is not None
    assert FOUND[guard.name] in caught.told[0]


def test_in_faultline_itself_the_same_scenarios_find_nothing(place: Place) -> None:
    wanted = {"short-gate", "short-once", "short-complete", "small-complete-release"}
    with Arena(*place) as arena:
        tallies = [explore(arena, s) for s in HUNTS if s.name in wanted]
    assert len(tallies) == len(wanted)
    assert [told for tally in tallies for told in tally.told] == []
    assert sum(tally.schedules for tally in tallies) > 800
    assert sum(tally.blocked_steps for tally in tallies) > 0


def test_every_schedule_is_played_once_and_all_merges_are(place: Place) -> None:
    scenario = next(s for s in SCENARIOS if s.name == "claim-three")
    with Arena(*place) as arena:
        turns = [played.turns for played in schedules(arena, scenario)]
    assert len(set(turns)) == len(turns)
    # Six turns, two each, nobody waits; B begins before C, and C before D: 6!/(2!2!2!)/3!
    assert len(turns) == 15


def test_a_schedule_is_replayed_by_its_id_and_told_in_columns(place: Place) -> None:
    scenario = next(s for s in shorts() if s.name == "short-gate")
    with Arena(*place) as arena:
        played = replay(arena, scenario, "ATARRBBBB")
    assert played.id == "short-gate:ATARRBBBB"
    told = timeline(played).splitlines()
    assert told[2].startswith("  1  INSERT effect, token 1")
    assert "the leases run out → token 1" in told[3]
    assert "LF001" in told[4]
    assert not played.bad


def test_the_page_shows_what_a_replay_prints(place: Place) -> None:
    good, bad = (block.text.rstrip() for block in blocks(PAGE) if block.language == "text")
    command, _, told = good.partition("\n")
    name, _, turns = command.removeprefix("$ python -m proofs.explore replay ").partition(":")
    scenario = next(s for s in SCENARIOS if s.name == name)
    with Arena(*place) as arena:
        assert timeline(replay(arena, scenario, turns)) == told
    variant = next(v for v in VARIANTS if v.name == "check-then-write")
    assert hunt(*place, variant).told[0] == bad


def test_inside_a_verb_the_others_have_their_turns(place: Place) -> None:
    scenario = next(s for s in SCENARIOS if s.name == "inside-renew")
    with Arena(*place, splits=scenario.splits) as arena:
        tally = explore(arena, scenario, at_most=150)
        played = replay(arena, scenario, "ATA")
    assert tally.holds
    assert "renew goes on" in timeline(played)


def test_a_split_function_stops_after_each_statement_that_another_follows() -> None:
    whole = "create function f()\nas $function$\nbegin\n    a;\n    if b then\n        return;\n"
    whole += "    end if;\n    c;\nend $function$"
    stopped = with_stops(whole)
    assert stopped.count(STOP) == 2
    assert stopped.replace("    " + STOP + "\n", "") == whole


def test_a_judge_that_has_seen_nothing_finds_nothing() -> None:
    judge = Judge([], 0)
    judge.committed("A")
    assert judge.broken == []


def test_a_job_that_is_cancelled_while_it_is_requeued_does_not_run(place: Place) -> None:
    """Between two statements of requeue, where no other test can stop it."""
    parked = next(s for s in SCENARIOS if s.name == "inside-parked")
    requeue, cancel, worker = parked.actors
    hasty = replace(parked, actors=(cancel, requeue, worker), preemptions=None)
    with Arena(*place, splits=parked.splits) as arena:
        played = Play(arena, hasty).run(requeue.name)
    assert not played.bad, timeline(played)
