"""Lists and looks at large tables, on small ones: they find what the plain question finds, and read
no more than a few rows for it. `make million` has the same with a million jobs, and times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from faultline import App, listing
from faultline.access import Access
from faultline.connect import connect
from faultline.listing import Wanted
from faultline.observing import MAX_EVENTS, MAX_LEASES
from faultline.reading import Reading
from faultline.service import pages
from proofs.million.__main__ import measure
from proofs.million.asking import STATES, questions
from proofs.million.filling import fill
from tests.conftest import Administrator, database_url
from tests.serving import Serving
from tests.stage import Stage

JOBS = 20_000
NAMES = [
    {"queue": "queue-1"},
    {"task": "task-1"},
    {"task": "rare"},
    {"queue": "rare"},
    {"queue": "none"},
    {"queue": "queue-2", "task": "task-1"},
]
WANTED = [Wanted(state, **names) for state in (None, *STATES) for names in ({}, *NAMES)]


@pytest.fixture(scope="module")
def filled(administrator: Administrator, newest_server_url: str) -> Iterator[str]:
    """A database for all tests here: none of them changes it."""
    from faultline.migrate import migrate

    name = f"filled_{uuid4().hex}"
    administrator(newest_server_url).execute(f"create database {name}")
    url = database_url(newest_server_url, name)
    with psycopg.connect(url, autocommit=True) as conn:
        migrate(conn, "faultline")
        fill(conn, "faultline", JOBS)
        conn.execute("vacuum analyze")
    yield url
    administrator(newest_server_url).execute(f"drop database {name} with (force)")


def test_what_the_tables_are_filled_with_breaks_no_invariant(filled: str) -> None:
    with Stage(filled) as stage:
        assert stage.violations() == []
        states = dict(stage.execute("select state, count(*) from {schema}.jobs group by 1"))
        assert set(states) == set(STATES)
        assert sum(states.values()) == JOBS


def test_looks_find_what_the_view_shows_in_its_order(
    filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "FIRST_LOOK", 300)
    monkeypatch.setattr(listing, "LARGEST_LOOK", 1000)
    with connect(filled) as conn:
        everything = conn.execute("select id, state, queue, task from faultline.jobs").fetchall()
        everything.sort(reverse=True)
        for wanted in WANTED:
            facts = (wanted.state, wanted.queue, wanted.task)
            expected = [
                job_id
                for job_id, *has in everything
                if all(fact in (None, own) for fact, own in zip(facts, has, strict=True))
            ]
            for most in (JOBS + 1, 70):
                looks = Reading().looks(conn, wanted, None, most)
                found = [job_id for look in looks for job_id in look.ids]
                assert found == expected[:most], wanted


@pytest.mark.parametrize("seconds", [0.0, 60.0], ids=["one look a request", "all looks"])
@pytest.mark.parametrize(
    "wanted",
    [Wanted(task="rare"), Wanted("failed", "queue-1"), Wanted("queued"), Wanted(queue="none")],
    ids=str,
)
def test_pages_lead_to_all_that_match_however_short_each_is(
    filled: str, wanted: Wanted, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "LOOK_SECONDS", seconds)
    monkeypatch.setattr(listing, "LARGEST_LOOK", 1000)
    access = Access(App(filled))
    seen: list[UUID] = []
    cursor = None
    asked = 0
    while True:
        page = pages.page_of_jobs(access, wanted, cursor, 50)
        asked += 1
        assert len(page.jobs) <= 50
        seen += [job.id for job in page.jobs]
        if (cursor := page.next_cursor) is None:
            break
    with connect(filled) as conn:
        looks = Reading().looks(conn, wanted, None, JOBS)
        assert seen == [job_id for look in looks for job_id in look.ids]
    access.close()
    if wanted.task == "rare":
        assert asked == (1 if seconds else 21), "a look each, of 1,000 jobs; and the last one"


_READ = """
select coalesce(sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)), 0)::bigint
  from pg_stat_xact_all_tables
 where schemaname = 'faultline' and relname ~ '^(job|attempt)_|^refusal$'"""
_ASKED: dict[str, Callable[[Reading, psycopg.Connection[Any]], Any]] = {
    "leases": lambda reading, conn: reading.leases(conn, MAX_LEASES),
    "workers": lambda reading, conn: reading.workers(conn),
    "quarantined": lambda reading, conn: reading.quarantined(conn, MAX_EVENTS),
    "refusals": lambda reading, conn: reading.latest_refusals(conn, limit=MAX_EVENTS),
    **{
        str(wanted): lambda reading, conn, wanted=wanted: reading.overviews(
            conn, next(reading.looks(conn, wanted, None, 51)).ids, wanted.state
        )
        for wanted in WANTED
    },
}


def test_no_question_of_the_service_reads_more_than_a_few_rows(
    filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the tables that only grow. Counted by the server, in the transaction and role in which the
    service asks."""
    monkeypatch.setattr(listing, "FIRST_LOOK", 200)
    access = Access(App(filled))
    for name, question in _ASKED.items():

        def ask(reading: Reading, conn: psycopg.Connection[Any], question: Any = question) -> int:
            before = rows_read(conn)
            question(reading, conn)
            return rows_read(conn) - before

        assert access.read(ask) < JOBS / 10, name
    access.close()


def rows_read(conn: psycopg.Connection[Any]) -> int:
    row = conn.execute(_READ).fetchone()
    assert row is not None
    return int(row[0])


def test_the_proof_asks_for_every_operation_and_gets_what_it_expects(database: str) -> None:
    timed, forgotten = measure(database, 5000, 1)
    assert forgotten == set()
    assert [(one.question.name, one.wrong) for one in timed if one.wrong] == []
    assert len(timed) > 100


def test_a_question_of_the_proof_names_places_that_are_deep_inside(filled: str) -> None:
    with connect(filled) as conn:
        names = [question.name for question in questions(conn, "faultline")]
    assert "GET /jobs?state=succeeded&cursor=…" in names
    assert len(names) > len(set(STATES)) * 9


def test_a_batch_is_taken_by_a_process_that_has_only_looked_before(stage: Stage) -> None:
    """A connection that is older than the first batch has to know how to send its ids."""
    with Serving(stage.url) as serving:
        assert serving.client.get("/jobs").status == 200
        jobs = [{"task": "charge"}, {"task": "charge"}]
        assert serving.client.post("/jobs/batch", {"jobs": jobs}).status == 201
