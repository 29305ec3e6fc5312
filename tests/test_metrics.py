"""Metrics of real workers, scraped over HTTP: each name in the situation that it is about."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from faultline.telemetry.catalogue import METRICS
from tests.command import CommandLine
from tests.ports import answers, free_port
from tests.scraping import Scrape, port_of, until_counted
from tests.stage import Stage, until
from tests.workers import Ground, Process

NOWHERE = ("--metrics-port", "0")


@pytest.fixture
def ground(stage: Stage) -> Ground:
    return Ground(stage)


@pytest.fixture
def worker(ground: Ground) -> Iterator[Process]:
    with ground.stage.login("worker", "producer") as url, Process(url, *NOWHERE) as worker:
        yield worker.ready()


# ── what happens to jobs ─────────────────────────────────────────────────────────────────────────


def test_a_job_is_counted_once_at_each_step_of_its_life(ground: Ground, worker: Process) -> None:
    port = port_of(worker)
    before = Scrape.of(port)
    assert before.sum("jobs_succeeded_total", task="add", queue="default") == 0
    assert (
        "faultline_jobs_succeeded_total",
        frozenset({("task", "add"), ("queue", "default")}),
    ) in (before.samples), "there from the start: else the first one would not be a rise"
    job_id = ground.stage.enqueue("enqueues_another")
    ground.until_state(job_id, "succeeded")
    found = until_counted(port, "jobs_succeeded_total", 1, task="add", queue="default")
    assert found.sum("jobs_enqueued_total", task="add", queue="default") == 1
    assert found.sum("jobs_claimed_total", queue="default") == 2
    assert found.sum("lease_acquisitions_total") == 2
    assert found.sum("jobs_succeeded_total", task="enqueues_another") == 1
    assert found.sum("execution_seconds_count", task="enqueues_another") == 1
    assert found.sum("execution_seconds_count") == 2
    assert found.sum("pickup_seconds_count", queue="default") == 2
    assert found.sum("pickup_seconds_sum", queue="default") < 60
    assert 1 <= found.sum("claim_seconds_count") <= 2
    assert found.sum("batch_size_sum", operation="claim") == 2
    assert found.sum("batch_size_sum", operation="complete") == 2
    assert found.sum("batch_size_sum", operation="enqueue") == 1
    assert found.sum("handler_seconds_total") == pytest.approx(found.sum("execution_seconds_sum"))
    assert found.sum("coordination_seconds_total") > 0
    assert found.sum("database_seconds_count", verb="enqueue") == 1
    assert found.sum("database_seconds_count", verb="claim") >= 1
    assert found.sum("concurrency") == 20
    assert found.sum("running") == 0
    assert found.sum("worker_processes") == 1
    for name in ("failed", "retried", "dead", "snoozed", "released", "cancelled", "quarantined"):
        assert found.sum(f"jobs_{name}_total") == 0


def test_failures_say_whether_the_job_is_tried_again(ground: Ground, worker: Process) -> None:
    job_id = ground.stage.enqueue(
        "fails", {"message": "no money"}, max_attempts=3, backoff_seconds=0
    )
    ground.until_state(job_id, "failed")
    found = until_counted(port_of(worker), "jobs_dead_total", 1, task="fails", queue="default")
    assert found.sum("jobs_failed_total", task="fails") == 3
    assert found.sum("jobs_retried_total", task="fails") == 2
    assert found.sum("pickup_seconds_count") == 1, "only the first claim of a job"
    assert found.sum("execution_seconds_count", task="fails") == 3


def test_snoozed_cancelled_and_released_attempts_are_counted(
    ground: Ground, worker: Process
) -> None:
    snoozed = ground.stage.enqueue("snoozes")
    cancelled = ground.stage.enqueue("cancels_itself")
    unknown = ground.stage.enqueue("no_such_task", queue="default")
    ground.until_state(snoozed, "succeeded")
    ground.until_state(cancelled, "cancelled")
    port = port_of(worker)
    until_counted(port, "jobs_snoozed_total", 2, task="snoozes")
    until_counted(port, "jobs_cancelled_total", 1, task="cancels_itself")
    worker.until("unknown_task", job_id=unknown)
    until(lambda: Scrape.of(port).sum("jobs_snoozed_total", task="(unknown)") >= 1, "it is put off")
    assert "no_such_task" not in {
        value for _, labels in Scrape.of(port).samples for _, value in labels
    }, "anybody can send any name: those that the app does not know share a line"
    held = ground.stage.enqueue("held_long")
    ground.until_in(held, 1)
    until_counted(port, "running", 1)
    worker.terminate()
    until_counted(port, "worker_processes_draining", 1)
    worker.terminate()  # hands it back
    assert worker.ended() == 0
    assert not answers(port), "the port is free again"


def test_the_pickup_of_a_delayed_job_is_counted_from_when_it_was_due(
    ground: Ground, worker: Process
) -> None:
    """Counted from their enqueue, which is in their ids, two jobs would add twice the delay."""
    stage, delay = ground.stage, 2.0
    job_id = stage.enqueue("add", {"a": 1, "b": 2}, delay_seconds=delay)
    (job,) = ground.stage.verbs.enqueue_many(
        "add", [stage.value("select {schema}.new_id()")], [{"a": 1, "b": 2}], delay_seconds=delay
    ).run(stage.conn)
    ground.until_state(job_id, "succeeded")
    ground.until_state(job, "succeeded")
    found = until_counted(port_of(worker), "pickup_seconds_count", 2)
    claimed, ended = stage.execute(
        "select sum(extract(epoch from a.claimed_at - j.created_at))::float8, "
        "sum(extract(epoch from a.at - j.created_at))::float8 from {schema}.attempt a "
        "join {schema}.job j on j.id = a.job_id"
    )[0]
    picked_up = found.sum("pickup_seconds_sum") + 2 * delay
    assert claimed - 0.5 < picked_up < ended + 0.5, "the clocks differ by a little"
    assert found.sum("jobs_promoted_total") == 2


def test_a_released_job_is_picked_up_once(ground: Ground) -> None:
    with ground.stage.login("worker") as url:
        job_id = ground.stage.enqueue("held_long")
        with Process(url) as first:
            ground.until_in(job_id, 1)
            first.terminate()
            first.until("worker_draining")
            first.terminate()
            assert first.ended() == 0
        with Process(url, *NOWHERE) as second:
            ground.until_in(job_id, 2)
            found = Scrape.of(port_of(second))
            assert found.sum("jobs_claimed_total") == 1
            assert found.sum("pickup_seconds_count") == 0


# ── leases ───────────────────────────────────────────────────────────────────────────────────────


def test_a_stalled_worker_that_comes_back_counts_its_refused_write(ground: Ground) -> None:
    stage = ground.stage
    with stage.login("worker") as url, Process(url, *NOWHERE) as stalled:
        port = port_of(stalled)
        job_id = stage.enqueue("held_sync", lease_seconds=2)
        ground.until_in(job_id, 1)
        until(lambda: Scrape.of(port).sum("lease_renewals_total") >= 1, "its lease is renewed")
        stalled.stall()
        with Process(url, *NOWHERE) as other:
            ground.until_in(job_id, 2)
            ground.go(job_id, 2)
            ground.until_state(job_id, "succeeded")
            found = until_counted(port_of(other), "lease_expirations_total", 1)
            assert found.sum("recoveries_total") == 1
            assert found.sum("jobs_quarantined_total") == 0
            assert found.sum("stale_writes_rejected_total") == 0
        ground.go(job_id, 1)
        stalled.wake()
        until(lambda: stage.refusals(job_id), "its write is refused")
        until(lambda: stalled.told("lease_lost") or stalled.told("stale_write_blocked"), "it knows")

        def all_counted() -> bool:
            found = Scrape.of(port)
            return all(
                found.sum("stale_writes_rejected_total", reason=reason, operation=operation) == 1
                for operation, _, _, reason in stage.refusals(job_id)
            )

        until(all_counted, "each refusal is counted, with its reason and what was refused")
        found = Scrape.of(port)
        assert found.sum("jobs_succeeded_total") == 0
        assert found.sum("leases_lost_total") == len(stalled.told("lease_lost"))


def test_a_poison_job_is_counted_as_recovered_and_then_quarantined(ground: Ground) -> None:
    stage = ground.stage
    with (
        stage.login("worker", "producer") as url,
        Process(url, *NOWHERE, "--processes", "2") as worker,
    ):
        port = port_of(worker)
        job_id = stage.enqueue("kills_its_process")
        ground.until_state(job_id, "quarantined")
        found = until_counted(port, "jobs_quarantined_total", 1)
        assert found.sum("recoveries_total") == 2
        assert found.sum("worker_process_deaths_total") == 2
        assert found.sum("jobs_claimed_total", task="kills_its_process") <= 3


# ── several processes ────────────────────────────────────────────────────────────────────────────


def test_several_processes_are_one_target_and_counters_outlive_their_process(
    ground: Ground,
) -> None:
    stage = ground.stage
    with (
        stage.login("worker", "producer") as url,
        Process(url, *NOWHERE, "--processes", "2") as worker,
    ):
        port = port_of(worker)
        assert len(worker.told("metrics_served")) == 1
        until_counted(port, "worker_processes", 2)
        for number in range(20):
            stage.enqueue("add", {"a": number, "b": 1})
        found = until_counted(port, "jobs_succeeded_total", 20)
        assert found.sum("concurrency") == 40
        children = {seen["pid"] for seen in worker.told("worker_started")}
        assert len(children) == 2
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        until(lambda: len(worker.told("process_died")) == 2, "both have died")
        after = Scrape.of(port)
        assert after.sum("jobs_succeeded_total") == 20, "what the dead had counted stays counted"
        assert after.sum("worker_process_deaths_total") == 2
        until_counted(port, "worker_processes", 2)  # their successors; the dead are no more
        stage.enqueue("add", {"a": 1, "b": 1})
        until_counted(port, "jobs_succeeded_total", 21)
        worker.terminate()
        assert worker.ended() == 0


def test_what_a_child_counts_in_its_last_second_arrives(ground: Ground) -> None:
    """It ends after so many jobs: the last line is the one that counts."""
    stage = ground.stage
    with (
        stage.login("worker", "producer") as url,
        Process(url, *NOWHERE, "--processes", "2", "--max-jobs", "3") as worker,
    ):
        for number in range(12):
            stage.enqueue("add", {"a": number, "b": 1})
        found = until_counted(port_of(worker), "jobs_succeeded_total", 12)
        assert found.sum("execution_seconds_count") == 12


def test_a_job_that_runs_alone_is_counted_by_its_process_and_claimed_once(ground: Ground) -> None:
    stage = ground.stage
    with stage.login("worker", "producer") as url, Process(url, *NOWHERE) as worker:
        worker.ready()
        job_id = stage.enqueue("add", {"a": 1, "b": 2}, max_crashes=2, lease_seconds=30)
        found = until_counted(port_of(worker), "jobs_succeeded_total", 1)
        again = stage.enqueue("held_long", max_crashes=2)
        ground.until_in(again, 1)
        stage.expire(again)
        worker.until("job_isolated", job_id=again)
        ground.until_in(again, 2)
        ground.go(again, 2)
        ground.until_state(again, "succeeded")
        found = until_counted(port_of(worker), "jobs_succeeded_total", 1, task="held_long")
        assert found.sum("jobs_claimed_total", task="held_long", queue="default") == 2
        assert found.sum("lease_acquisitions_total") == 4, "three claims, and one adopted"
        assert stage.state(job_id) == "succeeded"


# ── the reconciler, and how it is asked for ──────────────────────────────────────────────────────


def test_a_reconciler_says_when_it_has_last_worked_and_what_it_took_over(
    stage: Stage, tmp_path: Path
) -> None:
    job_id, _ = stage.running("gone")
    stage.expire(job_id)
    port = free_port()
    faultline = CommandLine(stage.url, tmp_path)
    process = faultline.start("reconcile", "--metrics-port", str(port), "--json")
    try:
        until(lambda: answers(port), "it listens")
        found = until_counted(port, "lease_expirations_total", 1)
        assert found.sum("recoveries_total") == 1
        first = found.sum("reconciler_last_round_timestamp_seconds")
        until(
            lambda: Scrape.of(port).sum("reconciler_last_round_timestamp_seconds") > first,
            "another round",
        )
        assert found.sum("database_seconds_count", verb="reconcile") >= 1
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert not answers(port)


def test_the_handlers_own_metrics_and_the_process_are_served_beside(
    stage: Stage, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(
        "from prometheus_client import Counter\nfrom faultline import App\n"
        "app, sold = App(), Counter('shop_sold', 'Things sold.')\n"
        "@app.task\ndef sell() -> None:\n    sold.inc(3)\n"
    )
    stage.enqueue("sell")
    with (
        stage.login("worker") as url,
        Process(url, *NOWHERE, app="shop:app", FOLDER=str(tmp_path)) as worker,
    ):
        port = port_of(worker)
        until(lambda: "shop_sold_total 3.0" in _text(port), "its own counter is served")
        assert "process_cpu_seconds_total" in _text(port)
        assert "python_info" in _text(port)


def _text(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return answer.read().decode()


def test_a_port_that_is_taken_is_one_sentence(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from faultline import App\napp = App()\n@app.task\ndef sell(): ...\n"
    )
    with stage.login("worker") as url, Process(url, *NOWHERE) as worker:
        taken = str(port_of(worker))
        faultline = CommandLine(url, tmp_path, directory=tmp_path)
        for command in (["worker", "shop:app"], ["reconcile"]):
            faultline(*command, "--metrics-port", taken, status=1)
            assert faultline.said.startswith("faultline: cannot serve metrics on 127.0.0.1 port ")
            assert faultline.said.count("\n") == 1


def test_without_the_extra_the_worker_says_what_to_install_and_works_without_a_port(
    stage: Stage, tmp_path: Path
) -> None:
    (tmp_path / "prometheus_client.py").write_text(
        "raise ModuleNotFoundError('No module named p', name='prometheus_client')\n"
    )
    (tmp_path / "shop.py").write_text(
        "from faultline import App\napp = App()\n@app.task\ndef sell() -> None: ...\n"
    )
    job_id = stage.enqueue("sell")
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "FAULTLINE_HOME": str(tmp_path),
        "FAULTLINE_DATABASE_URL": stage.url,
    }
    command = [sys.executable, "-m", "faultline", "worker", "shop:app", "--max-jobs", "1"]
    for more, status in (["--metrics-port", "0"], 1), ([], 0):
        done = subprocess.run(
            [*command, *more], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == status, done.stderr
        if status:
            assert done.stderr == (
                "faultline: this needs prometheus_client, which is not installed: "
                "pip install 'faultline-queue[metrics]'\n"
            )
    assert stage.state(job_id) == "succeeded"


def test_a_worker_exposes_nothing_that_only_the_database_knows(worker: Process) -> None:
    """Any number of workers would tell the same, and ask for it."""
    found = Scrape.of(port_of(worker))
    ours = {name for name in found.names if name.startswith("faultline_")}
    of_the_database = {name for name, metric in METRICS.items() if metric.where == "database"}
    assert ours
    assert ours & of_the_database == set()


def test_what_is_written_for_a_process_that_is_given_up_is_counted(ground: Ground) -> None:
    """A handler blocks the loop for ever: the keeper writes its failure."""
    with (
        ground.stage.login("worker", "producer") as url,
        Process(url, *NOWHERE, "--processes", "2", "--concurrency", "4") as worker,
    ):
        port = port_of(worker)
        job_id = ground.stage.enqueue("never_returns_and_blocks", max_attempts=1, lease_seconds=30)
        ground.until_state(job_id, "failed")
        found = until_counted(port, "jobs_failed_total", 1, task="never_returns_and_blocks")
    assert found.sum("jobs_succeeded_total") == 0
