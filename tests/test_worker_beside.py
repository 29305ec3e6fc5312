"""Hundreds of short jobs: two connections in turn; nothing is lost or done twice when they fail.

Method: a real worker behind a proxy that sees each statement, and on which connection: the first is
the pump's own. To hold the answer to one `swap` and see another pass shows that there are two; to
lose requests and answers, again and again, shows what becomes of the jobs in them.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from faultline.drills.proxy import Fate, Hold, Moment, Proxy
from faultline.ids import Ids
from faultline.worker.ahead import MAX_CLAIM, ending_in_a_call, most_in_a_call
from faultline.worker.pump import CALL_SECONDS
from tests.stage import Stage, until
from tests.workers import Ground, Process

DONE = "select count(*) from {schema}.ledger"
SWAP = "faultline.swap("
FIRST = 1
QUICKLY = ("--log-level", "info")  # so that on a busy machine, too, hundreds are claimed at once
MANY = 20_000


@pytest.fixture
def proxy(stage: Stage) -> Iterator[Proxy]:
    Ground(stage)
    with stage.login("worker", "producer") as url, Proxy(url) as proxy:
        yield proxy


class HoldEach:
    """Holds the answer to one `swap` on each of the two connections."""

    def __init__(self) -> None:
        self.connections: list[int] = []

    def __call__(self, moment: Moment) -> Fate | None:
        if SWAP not in moment.text or moment.connection in self.connections:
            return None
        if not self.connections and moment.connection == FIRST:
            return None  # the second one has not been made yet
        if len(self.connections) == 2:
            return None
        self.connections.append(moment.connection)
        return Fate.HOLD_ANSWER

    def of(self, proxy: Proxy) -> list[Hold]:
        """What is held: on the first, and on the second."""
        held = dict(zip(self.connections, proxy.held, strict=True))
        return [held[number] for number in sorted(held)]


def many(stage: Stage, count: int, **options: Any) -> None:
    new_id = Ids()
    payloads = [{"a": n, "b": 1} for n in range(count)]
    stage.verbs.enqueue_many("add", new_id.many(count), payloads, **options).run(stage.conn)


def test_while_one_answer_is_awaited_the_next_batch_goes_out_on_a_second_connection(
    stage: Stage, proxy: Proxy
) -> None:
    passed: list[int] = []

    def hold_one(moment: Moment) -> Fate | None:
        if SWAP not in moment.text:
            return None
        passed.append(len(proxy.held))
        return Fate.HOLD_ANSWER if len(passed) == 3 else None

    proxy.when(hold_one)
    many(stage, MANY)
    connections = (
        "select count(*) from pg_stat_activity "
        "where application_name = 'faultline' and datname = current_database()"
    )
    with Process(proxy.url, *QUICKLY) as worker:
        until(lambda: 1 in passed, "a batch goes out while the answer to another is held")
        proxy.release()
        until(lambda: stage.value(DONE) == MANY, "all are done")
        until(lambda: not stage.value(connections) > 3, "the other connections are closed")
        worker.terminate()
        assert worker.ended() == 0
    assert not worker.told("stale_write_blocked")
    assert stage.violations() == []


def test_jobs_with_short_leases_are_claimed_few_at_a_time(stage: Stage, proxy: Proxy) -> None:
    """So that no call is still under way when the leases that it is about are over.

    On a busy machine some leases expire, and their jobs run alone: the test waits for no such job.
    """
    many(stage, MANY, lease_seconds=0.4)
    together = "select count(*) from {schema}.attempt group by claimed_at order by 1 desc limit 1"
    with Process(proxy.url, *QUICKLY) as worker:
        until(lambda: stage.value(DONE) >= MANY / 10, "many are done")
        worker.terminate()
        assert worker.ended() == 0
    assert stage.value(together) <= most_in_a_call([0.4])
    assert stage.violations() == []


@pytest.mark.parametrize(
    ("seconds", "most"), [([30.0], 800), ([2.0, 30.0], 800), ([60.0, 0.5], 201), ([0.001], 1)]
)
def test_the_shortest_lease_says_how_many_share_a_call(seconds: list[float], most: int) -> None:
    assert most_in_a_call(seconds) == most


@pytest.mark.parametrize(
    ("seconds", "number"),
    [
        ([30.0] * 1000, 1000),
        ([30.0] * 900 + [0.1], 900),  # with it they would have to be 201
        ([30.0] * 100 + [0.1] * 101, 201),
        ([30.0] * 100 + [0.1] * 102, 201),
        ([0.1] * 1000, 201),
        ([0.001] * 9, 3),
    ],
)
def test_of_what_has_ended_the_first_ones_share_a_call_that_their_leases_outlive(
    seconds: list[float], number: int
) -> None:
    assert ending_in_a_call(seconds) == number


@pytest.mark.parametrize("seconds", [0.001, 0.01, 0.1, 0.5, 1.0, 2.0, 30.0])
def test_more_may_be_settled_in_a_call_than_is_claimed_by_it(seconds: float) -> None:
    """Else what waits to be written when leases become short would wait for as long as there is
    work, and everything new behind it."""
    assert ending_in_a_call([seconds] * 1000) > most_in_a_call([seconds])


def test_processes_that_are_several_have_one_connection_each_for_their_claims(
    stage: Stage, proxy: Proxy
) -> None:
    connections: set[int] = set()

    def look(moment: Moment) -> None:
        if SWAP in moment.text:
            connections.add(moment.connection)

    proxy.when(look)
    many(stage, 10_000)
    with Process(proxy.url, "--processes", "2") as worker:
        until(lambda: stage.value(DONE) == 10_000, "all are done")
        worker.terminate()
        assert worker.ended() == 0
    assert 1 <= len(connections) <= 2
    assert stage.violations() == []


@pytest.mark.parametrize("fate", [Fate.LOSE_ANSWER, Fate.LOSE_REQUEST])
def test_what_the_second_connection_loses_is_looked_up_on_the_first(
    stage: Stage, proxy: Proxy, fate: Fate
) -> None:
    lost: list[Moment] = []

    def lose_one(moment: Moment) -> Fate | None:
        if SWAP not in moment.text or moment.connection == FIRST or lost:
            return None
        lost.append(moment)
        return fate

    proxy.when(lose_one)
    many(stage, MANY)
    with Process(proxy.url, *QUICKLY) as worker:
        until(lambda: lost, "a batch is lost")
        until(lambda: stage.value(DONE) == MANY, "all are done")
        worker.terminate()
        assert worker.ended() == 0
    assert completed(worker) == MANY
    in_order(stage)


def test_nothing_is_handed_back_while_another_claim_is_under_way(
    stage: Stage, proxy: Proxy
) -> None:
    """Its leases are not known yet either: they would be taken for lost ones."""
    hold_each = HoldEach()
    held_at: dict[int, float] = {}  # when each connection asked what is held
    asked: list[tuple[float, int, str]] = []  # when, where and what, after two answers were held

    def hold_two(moment: Moment) -> Fate | None:
        if len(hold_each.connections) == 2:
            asked.append((time.monotonic(), moment.connection, moment.text))
        if (fate := hold_each(moment)) is not None:
            held_at[moment.connection] = time.monotonic()
        return fate

    def has_asked(verb: str, before: float = math.inf) -> bool:
        return any(at < before and f"faultline.{verb}(" in text for at, _, text in asked)

    def goes_on() -> bool:
        """Where it has looked up what became of the first, and after that."""
        looked_up = next(n for n, (_, _, text) in enumerate(asked) if "faultline.outcomes(" in text)
        after = [text for _, where, text in asked[looked_up:] if where == asked[looked_up][1]]
        return any("faultline.claim(" in text or SWAP in text for text in after)

    proxy.when(hold_two)
    many(stage, MANY)
    with Process(proxy.url, *QUICKLY) as worker:
        until(lambda: len(proxy.held) == 2, "the answers to two batches are held")
        first, second = hold_each.of(proxy)
        first.end(cut=True)
        until(lambda: has_asked("outcomes"), "what became of the first is looked up")
        until(goes_on, "and the worker goes on")
        # On a very busy machine the second may have been given up by now, after its own time.
        early = has_asked("release_others", before=held_at[max(held_at)] + CALL_SECONDS)
        second.end(cut=False)
        until(lambda: stage.value(DONE) == MANY, "all are done")
        worker.terminate()
        assert worker.ended() == 0
    assert not early
    assert has_asked("release_others")
    in_order(stage)


def test_a_worker_that_drains_waits_for_its_second_connection(stage: Stage, proxy: Proxy) -> None:
    hold_each = HoldEach()
    proxy.when(hold_each)
    many(stage, MANY)
    with Process(proxy.url, *QUICKLY) as worker:
        until(lambda: len(proxy.held) == 2, "the answers to two batches are held")
        worker.terminate()
        worker.until("worker_draining")
        first, second = hold_each.of(proxy)
        first.end(cut=False)
        leases = "select count(*) from {schema}.lease"
        until(lambda: stage.value(leases) <= MAX_CLAIM, "one is settled")
        second.end(cut=False)
        assert worker.ended() == 0
    done = stage.value(DONE)
    assert completed(worker) == done
    assert stage.value("select count(*) from {schema}.lease") == 0
    in_order(stage)


def completed(worker: Process) -> int:
    """How many jobs it says it has done."""
    together = sum(event["count"] for event in worker.told("jobs_completed"))
    return len(worker.told("job_completed")) + together


def in_order(stage: Stage) -> None:
    """Nobody was refused anything; what was claimed unheard was handed back."""
    assert stage.value("select count(*) from {schema}.refusal") == 0
    outcomes = stage.execute("select distinct outcome from {schema}.attempt")
    assert {outcome for (outcome,) in outcomes} <= {"succeeded", "released"}
    assert stage.violations() == []


def test_lost_requests_and_answers_on_both_connections_lose_and_repeat_nothing(
    stage: Stage, proxy: Proxy
) -> None:
    chance = random.Random(7)
    cut: list[Fate] = []

    def lose_some(moment: Moment) -> Fate | None:
        if SWAP not in moment.text or len(cut) == 12 or chance.random() > 0.4:
            return None
        cut.append(chance.choice([Fate.LOSE_ANSWER, Fate.LOSE_REQUEST]))
        return cut[-1]

    proxy.when(lose_some)
    with Process(proxy.url, *QUICKLY) as worker:
        for batch in range(1, 6):
            many(stage, 4_000)
            until(lambda batch=batch: stage.value(DONE) == batch * 4_000, f"batch {batch} is done")
            until(lambda batch=batch: completed(worker) == batch * 4_000, f"{batch} is told of")
        worker.terminate()
        assert worker.ended() == 0
    assert len(cut) > 3
    assert completed(worker) == 20_000
    in_order(stage)
