"""GET /metrics of the service: what the process did, and what only the database knows."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from faultline import App, __version__
from faultline.launcher import Server
from faultline.migrate import migrate
from faultline.script import SCHEMA_VERSION
from faultline.service import service
from faultline.telemetry.catalogue import METRICS, OTHER
from tests.conftest import OPTIONS
from tests.scraping import Scrape
from tests.serving import READ_TOKEN, TOKEN, Client, Serving, served
from tests.stage import Stage, until

CHARGE = {"task": "charge", "payload": {"order_id": 7}}


def scraped(client: Client) -> Scrape:
    answer = client.get("/metrics")
    assert answer.status == 200, answer
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return Scrape.read(answer.text)


@pytest.fixture
def client(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr("faultline.service.metrics.GOOD_FOR_SECONDS", 0.0)
    with served(service(App(stage.url))) as client:
        yield client


@pytest.mark.both_servers
def test_depth_and_age_of_each_queue_are_there_as_the_database_has_them(
    stage: Stage, client: Client
) -> None:
    stage.running("A", queue="mail")
    for _ in range(3):
        stage.enqueue("work", queue="mail")
    stage.enqueue("work", queue="mail", delay_seconds=3600)
    stage.enqueue("work", queue="other")
    stage.verbs.pause("other", True).run(stage.conn)
    found = scraped(client)
    assert found.sum("queue_depth", queue="mail", state="queued") == 3
    depths = {
        (row["queue"], state): row[state]
        for row in stage.reading.depths(stage.conn)
        for state in ("queued", "scheduled", "running", "quarantined")
    }
    for (queue, state), number in depths.items():
        assert found.sum("queue_depth", queue=queue, state=state) == number
    assert sum(depths.values()) == 6
    assert found.sum("queue_paused", queue="other") == 1
    assert found.sum("queue_paused", queue="mail") == 0
    assert found.sum("queue_depth_capped") == 0
    assert 0 < found.sum("queue_oldest_age_seconds", queue="mail") < 60
    assert found.sum("leases", state="live") == 1
    assert found.sum("leases", state="expired") == 0
    assert found.sum("database_up") == 1
    assert found.sum("schema_version") == SCHEMA_VERSION
    assert found.sum("build_info", version=__version__) == 1


@pytest.mark.both_servers
def test_the_oldest_age_counts_from_when_a_job_was_due_and_not_its_pauses(stage: Stage) -> None:
    def oldest() -> float:
        rows = stage.reading.waiting(stage.conn)
        return float(rows[0]["oldest_seconds"]) if rows else -1.0

    assert oldest() == -1
    long_ago = datetime.now(UTC) + timedelta(days=10)
    job_id = stage.enqueue("work", run_at=long_ago)
    assert oldest() == -1, "what is not due does not wait"
    stage.execute(
        "update {schema}.job set created_at = created_at - interval '1 day', "
        "headers = jsonb_set(headers, array['faultline-due'], "
        "to_jsonb(extract(epoch from clock_timestamp() - interval '100 s')))"
    )
    stage.execute("update {schema}.scheduled set run_at = clock_timestamp() - interval '100 s'")
    assert stage.reading.upkeep(stage.conn)["scheduled_overdue_seconds"] == pytest.approx(
        100, abs=30
    )
    stage.verbs.promote().run(stage.conn)
    assert oldest() == pytest.approx(100, abs=30)
    (lease,) = stage.claim()
    assert oldest() == -1
    stage.verbs.release([(job_id, lease.token)]).run(stage.conn)
    assert 0 <= oldest() < 30, "it has been tried: since then"
    stage.enqueue("work")
    stage.execute(
        "update {schema}.job set created_at = created_at - interval '500 s' where id <> %s", job_id
    )
    assert oldest() == pytest.approx(500, abs=30), "the oldest that was never claimed"


def test_workers_leases_and_risk_are_told(stage: Stage, client: Client) -> None:
    job_id, _ = stage.running("A")
    found = scraped(client)
    assert found.sum("stale_risk") == 0
    stage.expire(job_id)
    stage.verbs.beat("B", ["default"], {}, datetime.now(UTC)).run(stage.conn)
    stage.verbs.beat("C", ["default"], {}, datetime.now(UTC)).run(stage.conn)
    stage.execute(
        "update {schema}.worker set seen_at = seen_at - interval '1 hour' where worker = 'C'"
    )
    found = scraped(client)
    assert found.sum("leases", state="expired") == 1
    assert found.sum("leases", state="live") == 0
    assert found.sum("workers", state="active") == 1
    assert found.sum("workers", state="silent") == 1
    risk = client.get("/api/risk").body
    assert found.sum("stale_risk_score") == risk["score"] >= 60
    assert found.sum("stale_risk") == 2
    assert found.sum("standbys", kind="asynchronous") == 0
    for table in ("ready", "lease", "scheduled"):
        assert found.sum("table_bytes", table=table) > 0


def test_a_refusal_is_counted_also_when_the_worker_that_was_refused_is_gone(
    stage: Stage, client: Client
) -> None:
    job_id, token = stage.running("A")
    stage.take_over(job_id)
    before = scraped(client).sum("refusals_recorded_total")
    stage.verbs.complete([(job_id, token)]).run(stage.conn)
    stage.execute("select pg_stat_force_next_flush()")
    until(
        lambda: scraped(client).sum("refusals_recorded_total") == before + 1,
        "the server's statistics have it",
    )


def test_an_open_transaction_is_seen_growing_older(stage: Stage, client: Client) -> None:
    conn = stage.connect(isolation="repeatable read")
    conn.execute("select 1")
    first = scraped(client).sum("pinned_snapshot_seconds")
    until(lambda: scraped(client).sum("pinned_snapshot_seconds") > first, "it has been open longer")
    conn.rollback()


@pytest.mark.both_servers
def test_retention_is_behind_only_if_something_should_be_gone_that_is_not(stage: Stage) -> None:
    def behind() -> float:
        return float(stage.reading.upkeep(stage.conn)["retention_behind_seconds"] or 0)

    kept = stage.enqueue("kept")
    (lease,) = stage.claim()
    stage.verbs.complete([(kept, lease.token)]).run(stage.conn)
    stage.verbs.set_retention(30).run(stage.conn)
    assert behind() == 0
    stage.execute("update {schema}.job set created_at = created_at - interval '200 days'")
    assert behind() == 0, "it ended lately"
    stage.execute("update {schema}.attempt set at = at - interval '190 days'")
    days = behind() / 86400
    assert 200 - 30 - 31 - 1 < days < 200 - 30 + 1, "since the end of its month"
    stage.execute(
        "insert into {schema}.ready (lane, job_id, lease_seconds) "
        "select lane, id, lease_seconds from {schema}.job"
    )
    assert behind() == 0, "a pointer leads to it"
    stage.execute("delete from {schema}.ready")
    stage.verbs.set_retention(None).run(stage.conn)
    assert behind() == 0, "everything is to be kept"


def test_requests_and_jobs_of_the_api_are_counted_by_route_and_task(
    stage: Stage, client: Client
) -> None:
    job_id = client.post("/jobs", CHARGE).body["id"]
    client.post("/jobs/batch", {"jobs": [CHARGE, {**CHARGE, "queue": "vip"}, CHARGE]})
    client.get(f"/jobs/{job_id}")
    client.get("/jobs/00000000-0000-7000-8000-000000000000")
    client.get("/no/such/page")
    client.post("/jobs", {"task": ""})
    found = scraped(client)
    assert found.sum("jobs_enqueued_total", task="charge", queue="default") == 3
    assert found.sum("jobs_enqueued_total", task="charge", queue="vip") == 1
    requests = {"route": "/jobs/{job_id}", "method": "GET"}
    assert found.sum("http_requests_total", **requests, status="200") == 1
    assert found.sum("http_requests_total", **requests, status="404") == 1
    assert found.sum("http_requests_total", method="POST", route="/jobs", status="201") == 1
    assert found.sum("http_requests_total", method="POST", route="/jobs", status="422") == 1
    assert found.sum("http_requests_total", route="-", status="404") == 1
    assert found.sum("http_request_seconds_count", **requests) == 2
    assert found.sum("database_seconds_count", verb="enqueue") == 1
    assert job_id not in client.get("/metrics").text


def test_many_queues_do_not_make_many_lines(stage: Stage, client: Client) -> None:
    stage.execute(
        "insert into {schema}.queue (queue) select 'q' || n from generate_series(1, 1000) n"
    )
    stage.execute("insert into {schema}.lane (queue, priority) select queue, 0 from {schema}.queue")
    stage.enqueue("work", queue="zzz")
    found = scraped(client)
    assert found.sum("queue_depth", state="queued") == 1
    assert found.sum("queue_depth", queue=OTHER, state="queued") == 1
    assert len([1 for name, _ in found.samples if name == "faultline_queue_depth"]) <= 4 * 201


def test_several_who_scrape_within_a_second_are_one_look(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is made long, so that a slow machine does not come to its end."""
    monkeypatch.setattr("faultline.service.metrics.GOOD_FOR_SECONDS", 3600.0)
    web = service(App(stage.url))
    with served(web) as client, ThreadPoolExecutor(8) as many:
        first = scraped(client)
        stage.enqueue("work")
        found = list(many.map(lambda _: scraped(client), range(16)))
        for later in found:
            assert later.sum("queue_depth", state="queued") == 0
            assert later.sum("database_seconds_count") == first.sum("database_seconds_count")
        web.state.gauges._until = 0.0
        assert scraped(client).sum("queue_depth", state="queued") == 1


def test_metrics_need_the_read_token_where_tokens_are_set(stage: Stage) -> None:
    web = service(App(stage.url), token=TOKEN, read_token=READ_TOKEN)
    with served(web) as client:
        client.get("/metrics").problem(401, "unauthorised")
        client.bearing("wrong-token-of-some-length").get("/metrics").problem(401, "unauthorised")
        assert scraped(client.bearing(READ_TOKEN)).sum("database_up") == 1


def test_the_inspector_serves_them_too(stage: Stage) -> None:
    stage.enqueue("work")
    with Serving(stage.url, "inspector", "serve") as serving:
        checked = "invariants_checked_timestamp_seconds"
        until(lambda: scraped(serving.client).sum(checked) > 0, "the invariants are checked")
        found = scraped(serving.client)
        assert found.sum("queue_depth", state="queued") == 1
        ours = {
            name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum")
            for name in found.names
            if name.startswith("faultline_")
        }
        assert ours <= METRICS.keys()
        told = {name for name, metric in METRICS.items() if metric.where == "database"}
        assert told - ours == set()


def test_it_answers_while_the_database_is_away_and_says_so() -> None:
    with Server.temporary(options=OPTIONS) as server:
        with psycopg.connect(server.url, autocommit=True) as conn:
            migrate(conn, "faultline")
        with Serving(server.url) as serving:
            client = serving.client
            assert client.post("/jobs", CHARGE).status == 201
            assert scraped(client).sum("database_up") == 1
            os.kill(server.pid, signal.SIGKILL)
            until(lambda: scraped(client).sum("database_up") == 0, "the service notices")
            found = scraped(client)
            assert found.sum("jobs_enqueued_total", task="charge") == 1
            assert "faultline_queue_depth" not in found.names, "what is not known is not told"
            server.start()
            until(lambda: scraped(client).sum("database_up") == 1, "the service notices")


def test_a_service_that_never_had_a_database_answers_too() -> None:
    with Serving("postgresql://nobody@127.0.0.1:1/none") as serving:
        assert scraped(serving.client).sum("database_up") == 0


def test_a_login_that_may_only_enqueue_does_not_call_the_database_away(stage: Stage) -> None:
    with stage.login("producer") as url, served(service(App(url))) as client:
        assert client.post("/jobs", CHARGE).status == 201
        assert scraped(client).sum("database_up") == 1


@pytest.mark.both_servers
def test_a_job_made_due_before_its_time_hides_no_age(stage: Stage, client: Client) -> None:
    early = stage.enqueue("work", queue="mail", delay_seconds=86_400)
    stage.execute("update {schema}.job set created_at = created_at - interval '100 s'")
    assert stage.verbs.retry([early]).run(stage.conn) == [early]
    assert 100 <= scraped(client).sum("queue_oldest_age_seconds", queue="mail") < 200
