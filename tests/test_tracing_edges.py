"""Tracing where something is missing, broken, left out or in a hurry; and over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any
from uuid import UUID

import pytest

from tests.serving import Serving
from tests.stage import Stage
from tests.tracing import Scene, collector, scene
from tests.workers import PATH, Ground, Process

__all__ = ["collector", "scene"]

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = PARENT[:-1] + "0"
TRACE_ID, SPAN_ID = PARENT.split("-")[1:3]


def run(url: str, code: str, **variables: str) -> str:
    """What a process without an SDK prints."""
    environment = {**os.environ, "PYTHONPATH": PATH, "FAULTLINE_DATABASE_URL": url, **variables}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


# ── nothing of it, or only the API ───────────────────────────────────────────────────────────────


def test_a_process_that_has_not_imported_opentelemetry_does_not_get_it_from_us(
    stage: Stage,
) -> None:
    Ground(stage)
    said = run(
        stage.url,
        "import sys\n"
        "from tests.playground import app, add_sync\n"
        "job = add_sync.enqueue(1, 2)\n"
        "app.run_worker(max_jobs=1, emit=lambda event: None)\n"
        "print(job.result(), [name for name in sys.modules if 'opentelemetry' in name])",
    )
    assert said == "3 []"


def test_without_an_sdk_a_context_is_passed_on_and_nothing_else_is_done(stage: Stage) -> None:
    """From a caller to a job, and from the job to what its handler sends."""
    Ground(stage)
    said = run(
        stage.url,
        "import sys\n"
        "import opentelemetry.trace\n"
        "from opentelemetry import propagate\n"
        "from opentelemetry.context import attach\n"
        "from tests.playground import app, enqueues_another\n"
        "enqueues_another.enqueue()\n"
        f"attach(propagate.extract({{'traceparent': '{PARENT}', 'tracestate': 'a=b'}}))\n"
        "enqueues_another.enqueue()\n"
        "app.run_worker(max_jobs=4, emit=lambda event: None)\n"
        "print('opentelemetry.sdk' in sys.modules)",
    )
    assert said == "False"
    carried = [row[0] for row in stage.execute("select headers from {schema}.job order by id")]
    with_it = {"traceparent": PARENT, "tracestate": "a=b"}
    assert [carried.count(each) for each in (None, with_it)] == [2, 2]


# ── what a job carries ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "headers",
    [
        None,
        {"traceparent": "nonsense"},
        {"traceparent": 7, "tracestate": ["x"], "baggage": {"a": 1}},
        {"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-01"},
        ["traceparent"],
    ],
)
def test_a_job_without_a_readable_context_begins_a_trace_of_its_own(
    scene: Scene, headers: Any
) -> None:
    job_id = scene.stage.enqueue("greet", {"name": "ann"}, queue="shop")
    if headers is not None:
        scene.stage.conn.execute(
            "update faultline.job set headers = %s::jsonb where id = %s",
            (json.dumps(headers), job_id),
        )
    scene.work(1)
    receive, process, settle = [scene.of(each, job_id) for each in ("receive", "process", "settle")]
    assert (process.parent_id, process.links) == ("", [])
    assert receive.parent_id == settle.parent_id == process.span_id
    assert receive.links == settle.links == []


@pytest.mark.parametrize("unreadable", ["tracestate", "baggage"])
def test_what_is_no_text_does_not_cost_a_job_its_context(scene: Scene, unreadable: str) -> None:
    headers = {"traceparent": PARENT, unreadable: 7}
    job_id = scene.stage.enqueue("greet", {"name": "ann"}, queue="shop", headers=headers)
    scene.work(1)
    assert scene.of("process", job_id).trace_id == TRACE_ID


def test_a_context_that_the_user_gives_is_not_touched(scene: Scene) -> None:
    """Nor is anything of the current one, its baggage for instance, put beside it."""
    job_id = scene.produce(
        "from opentelemetry.context import attach\n"
        "attach(baggage.set_baggage('customer', 'ann'))\n"
        "with tracer.start_as_current_span('checkout'):\n"
        f"    said = greet.options(headers={{'traceparent': '{PARENT}', 'x': 1}}).enqueue('a').id"
    )
    scene.work(1)
    headers = scene.stage.value("select headers from {schema}.job where id = %s", UUID(job_id))
    assert headers == {"traceparent": PARENT, "x": 1}
    assert scene.of("process", job_id).trace_id == TRACE_ID


@pytest.mark.parametrize("task", ["greet", "shout", "carry"])
def test_of_an_unsampled_job_nothing_is_exported_and_what_it_sends_is_unsampled_too(
    scene: Scene, task: str
) -> None:
    payload = {} if task == "carry" else {"name": "ann"}
    job_id = scene.stage.enqueue(task, payload, queue="shop", headers={"traceparent": UNSAMPLED})
    scene.work(2 if task == "carry" else 1)
    assert scene.spans() == []
    assert scene.stage.state(job_id) == "succeeded"
    for (headers,) in scene.stage.execute("select headers from {schema}.job"):
        assert headers["traceparent"].startswith(f"00-{TRACE_ID}-")
        assert headers["traceparent"].endswith("-00")


# ── how an attempt ends ──────────────────────────────────────────────────────────────────────────


def test_a_job_that_runs_alone_is_traced_by_its_own_process(scene: Scene) -> None:
    """Its context goes there in the headers; its parent has not run it and says nothing."""
    job: dict[str, Any] = {"task": "shout", "payload": {"name": "ann"}, "queue": "shop"}
    headers = {"traceparent": PARENT}
    job_id, _ = scene.stage.running("X", max_crashes=2, headers=headers, **job)
    scene.stage.expire(job_id)  # its first crash
    with scene.worker() as worker:
        worker.until("job_isolated", job_id=job_id)
        scene.until_state(job_id, "succeeded")
        worker.terminate()
        assert worker.ended() == 0
        process = scene.of("process", job_id, 2)
        assert (process.trace_id, process.parent_id) == (TRACE_ID, SPAN_ID)
        assert process.process != worker.pid
        assert "+alone" in process.attributes["messaging.client.id"]
        assert scene.of("settle", job_id, 2).attributes["messaging.destination.name"] == "shop"


def test_of_a_process_that_died_with_its_job_the_end_of_its_lease_is_told(scene: Scene) -> None:
    """Its own spans died with it."""
    headers = {"traceparent": PARENT}
    job_id, _ = scene.stage.running("X", task="kills_its_process", max_crashes=2, headers=headers)
    scene.stage.expire(job_id)  # its first crash
    with scene.worker() as worker:
        scene.until_state(job_id, "quarantined")
        worker.terminate()
        assert worker.ended() == 0
    settle = scene.of("settle", job_id, 2)
    assert (settle.trace_id, settle.status) == (TRACE_ID, "ERROR")
    assert settle.attributes["faultline.outcome"] == "expired"


def test_an_attempt_that_is_put_off_is_no_error(scene: Scene) -> None:
    job_id = scene.produce("said = app.enqueue('snoozes').id")
    scene.work(2)
    first, settle = scene.of("process", job_id, 1), scene.of("settle", job_id, 1)
    assert (first.status, first.events) == ("UNSET", [])
    assert settle.attributes["faultline.outcome"] == "snoozed"
    assert settle.attributes["faultline.delay_seconds"] >= 0


@pytest.mark.parametrize("task", ["too_slow", "never_returns"])
def test_a_timeout_is_an_error_and_a_handler_that_goes_on_is_left_behind(
    scene: Scene, task: str
) -> None:
    job_id = scene.produce(f"said = app.enqueue('{task}').id")
    with scene.worker() as worker:
        scene.until_state(UUID(job_id), "failed")
        worker.terminate()
        assert worker.ended() == 0
    process, settle = scene.of("process", job_id), scene.of("settle", job_id)
    assert process.status == "ERROR"
    # On the span that is open: a handler that stops at once is quicker than who says so.
    told = [event["name"] for event in [*process.events, *settle.events]]
    assert told[0] == "execution_timed_out"
    assert ("handler_abandoned" in told) == (task == "never_returns")
    assert settle.attributes["faultline.outcome"] == "failed"


def test_a_job_handed_back_at_a_shutdown_says_so(scene: Scene) -> None:
    job_id = UUID(scene.produce("said = app.enqueue('held_long').id"))
    with scene.worker() as worker:
        scene.until_in(job_id, 1)
        worker.terminate()
        worker.until("worker_draining")
        worker.terminate()
        assert worker.ended() == 0
    process, settle = scene.of("process", job_id), scene.of("settle", job_id)
    assert (process.status, process.attributes["faultline.told_to_stop"]) == ("UNSET", "shutdown")
    assert settle.attributes["faultline.outcome"] == "released"
    assert settle.attributes["faultline.reason"] == "shutdown"


def test_spans_are_not_lost_with_a_process_that_ends_over_a_thread_left_behind(
    scene: Scene,
) -> None:
    """It ends by os._exit: what was registered to be done at the end is not done."""
    job_id = UUID(scene.produce("said = app.enqueue('leaves_a_thread').id"))
    with scene.worker("--grace-seconds", "0") as worker:
        scene.until_in(job_id, 1)
        worker.terminate()
        assert worker.ended() == 0
    assert scene.of("process", job_id).attributes["faultline.told_to_stop"] == "shutdown"


def test_spans_are_not_lost_with_a_process_that_gives_itself_up(scene: Scene) -> None:
    job_id = UUID(scene.produce("said = app.enqueue('never_returns_and_blocks').id"))
    with scene.worker() as worker:
        assert worker.ended() == 75
    assert "handler_abandoned" in [e["name"] for e in scene.of("process", job_id).events]


def test_a_user_who_breaks_tracing_loses_spans_and_no_job(scene: Scene) -> None:
    job_id = scene.produce("said = app.enqueue('add', {'a': 1, 'b': 2}).id")
    with scene.worker(BROKEN_SAMPLER="1") as worker:
        scene.until_state(UUID(job_id), "succeeded")
        worker.terminate()
        assert worker.ended() == 0
        assert "could not be observed" in "".join(worker.errors)
    assert [span.name for span in scene.spans()] == ["send default"]


# ── over HTTP ────────────────────────────────────────────────────────────────────────────────────


JOB = {"task": "greet", "payload": {"name": "ann"}, "queue": "shop"}


@pytest.mark.parametrize("body", [JOB, {"jobs": [JOB, JOB]}])
def test_the_context_of_a_request_is_that_of_what_it_enqueues(
    scene: Scene, body: dict[str, Any]
) -> None:
    """Whether FastAPI makes a span for it, as it does since 2026, or not."""
    path, count = ("/jobs/batch", 2) if "jobs" in body else ("/jobs", 1)
    environment = {**scene.collector.environment, "PYTHONPATH": PATH}
    with Serving(scene.stage.url, "api", "tests.traced:app", **environment) as serving:
        assert serving.client.post(path, body, traceparent=PARENT).status == 201
        serving.terminate()
        assert serving.ended() == 0
    scene.work(count)
    send = scene.span(name="send shop")
    assert SPAN_ID in scene.above(send)
    processes = scene.spans(name="process greet")
    assert [span.parent_id for span in processes] == [send.span_id] * count
    assert {span.trace_id for span in scene.spans()} == {TRACE_ID}


def test_mounted_in_an_application_that_is_traced_itself_a_request_is_one_server_span(
    scene: Scene,
) -> None:
    scene.produce(
        "from fastapi import FastAPI\n"
        "from faultline.service import service\n"
        "from tests.serving import served\n"
        "inner, outer = service(app, trust=True), FastAPI()\n"
        "outer.mount('/faultline', inner); outer.state.access = inner.state.access\n"
        "with served(outer) as client:\n"
        f"    said = client.post('/faultline/jobs', {JOB}, traceparent='{PARENT}').body\n"
    )
    assert SPAN_ID in scene.above(scene.span(name="send shop"))
    assert len(scene.spans(kind="SERVER")) <= 1


def test_a_span_around_a_request_comes_before_what_its_headers_say(scene: Scene) -> None:
    scene.produce(
        f"with app.telemetry.tracing.asked({{'traceparent': '{PARENT}'}}): greet.enqueue('a')\n"
        "with tracer.start_as_current_span('around'):\n"
        f"    with app.telemetry.tracing.asked({{'traceparent': '{PARENT}'}}): shout.enqueue('b')\n"
    )
    first, second = scene.spans(name="send shop")
    assert (first.trace_id, first.parent_id) == (TRACE_ID, SPAN_ID)
    assert second.parent_id == scene.span(name="around").span_id


def test_an_opentelemetry_that_cannot_be_had_costs_no_job(scene: Scene) -> None:
    """It is told to use a propagator that is not installed, as happens with an environment that was
    made for another service."""
    broken = {"OTEL_PROPAGATORS": "no-such-propagator"}
    script = "from tests.half_traced import app; app.enqueue('add', dict(a=1, b=2))"
    variables = {**os.environ, "PYTHONPATH": PATH, "FAULTLINE_DATABASE_URL": scene.stage.url}
    done = subprocess.run(
        [sys.executable, "-c", script], env={**variables, **broken}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("something could not be observed") <= 1
    (job_id,) = [row[0] for row in scene.stage.execute("select id from {schema}.job")]
    with Process(scene.stage.url, app="tests.half_traced:app", **broken) as worker:
        worker.until("job_completed", job_id=job_id)
        assert not worker.told("database_lost")
