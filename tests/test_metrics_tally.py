"""The tally by itself: exact under threads, bounded in its labels, added up over processes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from bisect import bisect_left
from contextlib import suppress
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from faultline import App
from faultline.events import StaleWriteBlocked
from faultline.ids import Ids
from faultline.jobs import Lane, Lease, Reclaimed
from faultline.observer import Observer
from faultline.telemetry import Telemetry
from faultline.telemetry.catalogue import METRICS, OTHER, SECONDS
from faultline.telemetry.sums import FEW, Histogram, Sums
from faultline.telemetry.tally import MAX_LABELS, MAX_PAIRS, Tally
from faultline.worker.attempt import Attempt
from faultline.worker.endings import Completed, Failed
from tests.scraping import Scrape
from tests.stage import DEADLINE_SECONDS

ids = Ids()


def scrape(tally: Tally) -> Scrape:
    telemetry = Telemetry()
    telemetry.tally = tally
    registry = CollectorRegistry()
    registry.register(telemetry.collector())
    return Scrape.read(generate_latest(registry).decode())


def attempt(app: App, task: str = "charge", lane: int = 1, **facts: object) -> Attempt:
    lease = Lease(ids(), 1, lane, 1, 0, 0, 0, 30.0, task, {}, None)._replace(**facts)
    return Attempt(lease, app.tasks.get(task), 0.0)


@pytest.fixture
def app() -> App:
    app = App("postgresql://nowhere")

    @app.task
    def charge() -> None: ...

    app.telemetry.tally.lanes([Lane(1, "default", 0), Lane(2, "billing", 0)])
    return app


@pytest.mark.parametrize("count", [1, FEW - 1, FEW, 500])
def test_a_histogram_of_many_at_once_is_that_of_each_by_itself(count: int) -> None:
    chance = random.Random(count)
    edges = [0.0, *SECONDS, 1e6]
    values = [chance.choice([chance.choice(edges), chance.expovariate(1)]) for _ in range(count)]
    at_once, expected = Histogram(SECONDS), [0] * (len(SECONDS) + 1)
    for value in values:
        expected[bisect_left(SECONDS, value)] += 1
    at_once.add(list(values))
    assert at_once.counts == expected
    assert at_once.total == pytest.approx(sum(values))
    assert at_once.cumulative()[-1] == ("+Inf", count)


class Yielding(dict[Any, float]):
    """Lets the other threads in between reading and writing, as the interpreter may."""

    def get(self, key: Any, default: Any = None) -> Any:
        found = super().get(key, default)
        time.sleep(0)
        return found


def test_counts_are_exact_however_many_threads_count() -> None:
    tally, threads, times = Tally(), 8, 200
    tally._sums.counters = Yielding()

    def work() -> None:
        for _ in range(times):
            tally.enqueued("charge", {"default": 1})
            tally.called("claim", 0.001, failed=True)

    running = [threading.Thread(target=work) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    found = scrape(tally)
    assert found.sum("jobs_enqueued_total") == threads * times
    assert found.sum("database_errors_total", verb="claim") == threads * times
    assert found.sum("database_seconds_count", verb="claim") == threads * times


def test_what_cannot_be_counted_is_not_the_others_fault() -> None:
    tally = Tally()
    tally.called("claim", 0.1, failed=False)
    tally.called("claim", cast("float", "long"), failed=False)
    tally.called("claim", 0.1, failed=False)
    assert scrape(tally).sum("database_seconds_count", verb="claim") == 2


def test_labels_are_bounded_whatever_is_sent() -> None:
    tally, many = Tally(), 5_000
    for number in range(many):
        tally.enqueued(f"task {number}", {f"queue {number}": 1})
        tally.called(f"verb {number}", 0.1, failed=False)
        tally.requested(f"/route/{number}", f"METHOD{number}", 200, 0.1)
        stale = StaleWriteBlocked("w", ids(), 1, 2, "token_mismatch", f"operation {number}")
        tally.event(stale)
    found = scrape(tally)
    assert found.sum("jobs_enqueued_total") == many, "none is lost"
    assert found.sum("jobs_enqueued_total", task=OTHER, queue=OTHER) == many - MAX_PAIRS
    assert found.sum("stale_writes_rejected_total", operation=OTHER) == many
    assert found.sum("database_seconds_count", verb=OTHER) == many - MAX_LABELS
    assert found.sum("http_requests_total", method=OTHER) == many
    assert len(found.samples) < 60 * MAX_LABELS


def test_a_task_that_the_app_does_not_know_has_no_line_of_its_own(app: App) -> None:
    tally = app.telemetry.tally
    tally.enqueued("charge", {"default": 1})
    tally.enqueued("chrage", {"default": 2})
    tally.claimed([attempt(app), attempt(app, "anything", lane=2)], 0.0)
    found = scrape(tally)
    assert found.sum("jobs_enqueued_total", task="(unknown)") == 2
    assert found.sum("jobs_claimed_total", task="(unknown)", queue="billing") == 1
    assert found.sum("jobs_claimed_total", task="charge", queue="default") == 1


def test_a_batch_of_several_tasks_and_queues_is_counted_by_each(app: App) -> None:
    tally = app.telemetry.tally
    batch = [attempt(app, lane=1 + number % 2) for number in range(10)]
    for one in batch[:6]:
        one.took_seconds = 0.25
    tally.claimed(batch, 0.0)
    endings = [Completed(one, None) for one in batch]
    refused = [stale_of(batch[0])]
    tally.settled(endings, refused)
    found = scrape(tally)
    assert found.sum("jobs_claimed_total", queue="default") == 5
    assert found.sum("jobs_succeeded_total", queue="default") == 4, "what was refused is no success"
    assert found.sum("jobs_succeeded_total", queue="billing") == 5
    assert found.sum("execution_seconds_count") == 6, "of those that were begun"
    assert found.sum("handler_seconds_total") == pytest.approx(1.5)
    assert found.sum("batch_size_sum", operation="complete") == 10


def stale_of(attempt: Attempt) -> object:
    from faultline.jobs import Stale

    return Stale(attempt.job_id, attempt.token, 2, "token_mismatch", "complete")


def test_a_failure_of_which_nothing_more_is_known_is_neither_retried_nor_dead(app: App) -> None:
    tally = app.telemetry.tally
    endings = [Failed(attempt(app), {}, final=final) for final in (True, False, False, None)]
    tally.settled(endings, [])
    found = scrape(tally)
    assert found.sum("jobs_failed_total") == 4
    assert found.sum("jobs_dead_total") == 1
    assert found.sum("jobs_retried_total") == 2


def test_only_the_first_claim_of_a_job_is_a_pickup_also_in_a_later_life_of_the_server(
    app: App,
) -> None:
    tally = app.telemetry.tally
    epoch = 3 << 40
    first = [attempt(app), attempt(app, token=epoch)]
    again = [
        *(attempt(app, token=2), attempt(app, token=epoch + 1)),
        *(attempt(app, token=epoch, attempts=1), attempt(app, token=epoch, crashes=1)),
    ]
    tally.claimed([*first, *again], 0.0)
    assert scrape(tally).sum("pickup_seconds_count") == 2


def test_a_pickup_is_never_negative_and_goes_by_the_databases_clock(app: App) -> None:
    tally = app.telemetry.tally
    now = ids().int >> 80
    tally.clock(now / 1000 - 3600)  # the database's clock is an hour behind the ids
    tally.claimed([attempt(app)], 0.0)
    assert scrape(tally).sum("pickup_seconds_sum") == 0
    tally.clock(now / 1000 + 3600)
    tally.claimed([attempt(app), attempt(app, headers={"faultline-due": now / 1000})], 0.0)
    tally.claimed([attempt(app, headers={"faultline-due": "soon"})], time.monotonic())
    assert scrape(tally).sum("pickup_seconds_sum") == pytest.approx(3 * 3600, rel=0.01)


def test_what_a_child_said_last_stands_once_and_stays_when_it_is_gone() -> None:
    child, parent = Tally(), Tally()
    child.working("w.1", lambda: {"running": 3, "concurrency": 20, "draining": False})
    child.enqueued("charge", {"default": 2})
    child.called("claim", 0.2, failed=False)
    parent.heard("w.1", child.words())
    child.enqueued("charge", {"default": 3})
    parent.heard("w.1", child.words())
    parent.enqueued("charge", {"default": 1})
    found = scrape(parent)
    assert found.sum("jobs_enqueued_total") == 6
    assert found.sum("running") == 3
    parent.lost("w.1")
    parent.lost("w.1")
    found = scrape(parent)
    assert found.sum("jobs_enqueued_total") == 6
    assert found.sum("database_seconds_count") == 1
    assert found.sum("running") == 0
    grandparent = Tally()
    grandparent.heard("w", parent.words())
    assert scrape(grandparent).samples == found.samples


def test_sums_go_through_a_line_as_they_are() -> None:
    sums = Sums()
    sums.count(METRICS["faultline_jobs_enqueued_total"], 2, "a\nb", "é")
    sums.observe(METRICS["faultline_claim_seconds"], [0.1, 7.0])
    sums.gauges[("faultline_running",)] = 3.0
    line = sums.to_line()
    assert line.count(b"\n") == 1
    again = Sums.from_line(line)
    assert again.counters == sums.counters
    assert again.gauges == sums.gauges
    assert again.to_line() == line


def test_a_forked_process_counts_from_zero() -> None:
    tally = Tally()
    tally.enqueued("charge", {"default": 5})
    read, write = os.pipe()
    with tally._lock:  # as another thread may hold it just now
        child = os.fork()
        if child == 0:
            signal.alarm(int(DEADLINE_SECONDS))  # rather than wait for the lock for ever
            tally.enqueued("charge", {"default": 1})
            os.write(write, tally.words())
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        words = Sums.from_line(pipe.readline())
    os.waitpid(child, 0)
    assert words.counters == {("faultline_jobs_enqueued_total", "charge", "default"): 1}


def test_reclaimed_jobs_are_recovered_or_parked_and_the_cancelled_are_neither() -> None:
    tally = Tally()
    states = ("queued", "queued", "quarantined", "cancelled")
    tally.reclaimed([Reclaimed(ids(), 1, "w", state, 1) for state in states])
    found = scrape(tally)
    assert found.sum("recoveries_total") == 2
    assert found.sum("jobs_quarantined_total") == 1


class Broken(Tally):
    """Fails at everything that is observed."""

    def __getattribute__(self, name: str) -> Any:
        if name in Observed:
            raise ValueError("a mistake of ours")
        return super().__getattribute__(name)


Observed = {name for name in vars(Observer) if not name.startswith("_")} | {"enqueued"}


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_mistake_in_the_tally_costs_no_job(
    database: str, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    app = App(database)
    app.telemetry.tally = Broken()

    async def answer() -> int:
        return 42

    task = app.task(name="answer")(answer if kind == "async" else lambda: 42)

    async def story() -> None:
        job = await task.aenqueue()
        worker = asyncio.ensure_future(app.arun_worker(emit=lambda _: None))
        assert await job.aresult(timeout=DEADLINE_SECONDS) == 42
        worker.cancel()
        with suppress(asyncio.CancelledError):
            await worker

    asyncio.run(story())
    app.close()
    assert "something could not be observed" in caplog.text


def test_every_metric_has_units_last_and_a_sentence() -> None:
    for metric in METRICS.values():
        assert metric.name.startswith("faultline_")
        assert metric.help.endswith("."), metric.name
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert "seconds_" not in metric.name.removesuffix("_total"), "units come last"
