"""The invariants among the metrics: broken by force in a real database, and seen by a real service.

A check is held up by a lock on a table that it reads and no other question of a scrape does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
from psycopg import Connection

from faultline import App, script
from faultline.access import Access
from faultline.reading import Reading
from faultline.service import service
from faultline.service.invariants import Invariants
from tests.scraping import Scrape
from tests.serving import Client, Serving, served
from tests.stage import Stage, until

CHECKED = "invariants_checked_timestamp_seconds"
LOST = "7_nothing_is_lost"
LEASE = "5_running_is_one_lease"
MINUTES = "faultline.service.invariants.EVERY_SECONDS"
PATIENCE = "faultline.service.invariants.CHECK_SECONDS"


def scraped(client: Client) -> Scrape:
    return Scrape.read(client.get("/metrics").text)


def lose(stage: Stage, job_id: UUID) -> None:
    """Break an invariant: a job that nothing leads to."""
    stage.execute("delete from {schema}.ready where job_id = %s", job_id)


@contextmanager
def held_up(stage: Stage) -> Iterator[None]:
    """While this lasts, no check ends."""
    conn = stage.connect()
    with conn.transaction():
        conn.execute(f"lock table {stage.schema}.step in access exclusive mode")
        yield


@pytest.fixture
def invariants(stage: Stage) -> Iterator[Invariants]:
    access = Access(App(stage.url))
    yield Invariants(access)
    access.close()


def rested(invariants: Invariants) -> None:
    until(lambda: not invariants.busy, "the check has ended")


@pytest.mark.both_servers
def test_a_broken_invariant_is_among_the_metrics_of_a_service(stage: Stage) -> None:
    lose(stage, stage.enqueue())
    before = time.time()
    with stage.login("reader", "producer") as url, Serving(url) as serving:
        client = serving.client
        until(lambda: scraped(client).sum(CHECKED) >= before, "they are checked")
        found = scraped(client)
        for name in script.invariants():
            key = ("faultline_invariant_violations", frozenset({("invariant", name)}))
            assert found.samples[key] == (name == LOST), "also those that hold have a line"


def test_a_violation_is_seen_by_the_next_check_and_so_is_its_end(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MINUTES, 0.0)
    job_id = stage.enqueue()
    with served(service(App(stage.url))) as client:
        until(lambda: scraped(client).sum(CHECKED) > 0, "they are checked")
        assert scraped(client).sum("invariant_violations") == 0
        lose(stage, job_id)
        until(lambda: scraped(client).sum("invariant_violations", invariant=LOST) == 1, "seen")
        stage.execute("delete from {schema}.job where id = %s", job_id)
        until(lambda: scraped(client).sum("invariant_violations") == 0, "its end is seen")


def test_a_scrape_does_not_wait_for_the_check(stage: Stage) -> None:
    with served(service(App(stage.url))) as client:
        with held_up(stage):
            assert scraped(client).sum("database_up") == 1
            found = scraped(client)
            assert found.sum("schema_version") > 0
            assert f"faultline_{CHECKED}" not in found.names, "it is still being made"
        until(lambda: scraped(client).sum(CHECKED) > 0, "it is made when it can be")


def test_they_are_checked_once_in_so_many_minutes_however_many_scrape(
    invariants: Invariants,
) -> None:
    assert invariants.begin()
    rested(invariants)
    assert invariants.last is not None
    assert invariants.last.at > 0
    assert [invariants.begin() for _ in range(9)] == [False] * 9


def test_no_check_begins_while_another_is_made(
    stage: Stage, invariants: Invariants, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MINUTES, 0.0)
    with held_up(stage):
        assert invariants.begin()
        assert not invariants.begin()
    rested(invariants)
    assert invariants.begin()
    rested(invariants)


def test_a_check_that_takes_too_long_is_given_up_and_its_age_shows(
    stage: Stage, invariants: Invariants, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MINUTES, 0.0)
    monkeypatch.setattr(PATIENCE, 1)
    with held_up(stage):
        assert invariants.begin()
        rested(invariants)
        assert invariants.last is not None
        assert invariants.last.at == 0, "none was made so far"
    monkeypatch.setattr(PATIENCE, 45)
    assert invariants.check() == []
    old = invariants.last
    monkeypatch.setattr(PATIENCE, 1)
    with held_up(stage):
        assert invariants.begin()
        rested(invariants)
    assert invariants.last is old, "what was known, with its age"


def test_a_login_that_may_only_enqueue_leaves_the_check_to_others(stage: Stage) -> None:
    with stage.login("producer") as url:
        web = service(App(url))
        with served(web) as client:
            scraped(client)
            rested(web.state.invariants)
            assert f"faultline_{CHECKED}" not in scraped(client).names


def test_of_many_violations_so_many_are_counted_and_none_that_is_broken_is_left_out(
    stage: Stage, invariants: Invariants, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("faultline.service.invariants.MOST", 4)
    job_id, _ = stage.running()
    for lost in [stage.enqueue() for _ in range(5)]:
        lose(stage, lost)
    stage.execute(
        "insert into {schema}.ready (lane, job_id, fencing_token, lease_seconds) "
        "select min(lane), %s, 0, 30 from {schema}.lane",
        job_id,
    )
    assert len(invariants.check()) == 4
    assert invariants.last is not None
    assert invariants.last.broken[LOST] >= 1
    assert invariants.last.broken[LEASE] == 1


def test_the_page_of_the_dashboard_makes_the_same_check(stage: Stage) -> None:
    with served(service(App(stage.url))) as client:
        until(lambda: scraped(client).sum(CHECKED) > 0, "they are checked")
        job_id = stage.enqueue()
        lose(stage, job_id)
        page = client.get("/dashboard/health?check=true").text
        assert str(job_id) in page
        assert "1 broken" in page
        assert scraped(client).sum("invariant_violations", invariant=LOST) == 1


def test_the_check_reads_only_and_takes_one_process_of_the_server(stage: Stage) -> None:
    def ask(_: Reading, conn: Connection[Any]) -> list[str]:
        settings = "transaction_read_only", "max_parallel_workers_per_gather", "statement_timeout"
        return [conn.execute(f"show {name}").fetchall()[0][0] for name in settings]

    access = Access(App(stage.url))
    assert access.study(ask, 7) == ["on", "0", "7s"]
    access.close()
