"""Traces as they leave: real producers and workers, and a receiver of OTLP in another process."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.tracing import BLOCKED, Scene, collector, scene
from tests.workers import Process

__all__ = ["collector", "scene"]


@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize("task", ["greet", "shout"])
def test_a_job_is_one_trace_across_processes_from_enqueue_to_settle(
    scene: Scene, task: str, processes: str
) -> None:
    job_id = scene.produce(
        f"with tracer.start_as_current_span('checkout'): said = {task}.enqueue('ann').id"
    )
    with scene.worker("--processes", processes) as worker:
        scene.until_state(UUID(job_id), "succeeded")
        worker.terminate()
        assert worker.ended() == 0
    checkout, send = scene.span(name="checkout"), scene.span(name="send shop")
    receive, process, settle = [scene.of(each, job_id) for each in ("receive", "process", "settle")]
    own = scene.span(name={"greet": "greeting", "shout": "shouting"}[task])
    everything = [checkout, send, receive, process, own, settle]
    assert len(scene.spans()) == len(everything)
    assert {span.trace_id for span in everything} == {checkout.trace_id}
    assert [span.name for span in everything[2:]] == [
        *("receive shop", f"process {task}", own.name, "settle shop")
    ]
    assert send.parent_id == checkout.span_id
    assert own.parent_id == process.span_id
    for span in (receive, process, settle):
        assert span.parent_id == send.span_id
        assert [tuple(link) for link in span.links] == [send.context]
        assert span.attributes["messaging.message.id"] == job_id
        assert span.attributes["faultline.attempt"] == 1
        assert span.attributes["messaging.client.id"]
    assert [span.kind for span in (send, receive, process, settle)] == [
        *("PRODUCER", "CLIENT", "CONSUMER", "CLIENT")
    ]
    assert {span.status for span in everything} == {"UNSET"}
    assert send.process != process.process == receive.process == settle.process
    assert receive.began < receive.ended <= process.began <= own.began
    assert own.ended <= process.ended == settle.began < settle.ended


def test_the_attributes_are_those_of_the_messaging_conventions(scene: Scene) -> None:
    job_id = scene.produce("said = greet.enqueue('ann').id")
    scene.work(1)
    for operation, span in {
        "send": scene.span(name="send shop"),
        **{each: scene.of(each, job_id) for each in ("receive", "process", "settle")},
    }.items():
        assert (
            span.attributes.items()
            >= {
                "messaging.system": "faultline",
                "messaging.operation.name": operation,
                "messaging.operation.type": operation,
                "messaging.destination.name": "shop",
                "messaging.message.id": job_id,
                "faultline.task": "greet",
            }.items()
        )
    assert scene.of("settle", job_id).attributes["faultline.outcome"] == "succeeded"


def test_a_batch_is_one_send_and_each_of_its_jobs_a_child_of_it(scene: Scene) -> None:
    ids = scene.produce(
        "said = [job.id for job in greet.enqueue_many([{'name': 'a'}, {'name': 'b'}])]"
    )
    scene.work(2)
    send = scene.span(name="send shop")
    assert send.attributes["messaging.batch.message_count"] == 2
    assert "messaging.message.id" not in send.attributes
    assert {scene.of("process", job_id).parent_id for job_id in ids} == {send.span_id}


def test_what_a_handler_sends_is_a_child_of_its_span(scene: Scene) -> None:
    job_id = scene.produce("said = fan_out.enqueue(['a', 'b']).id")
    scene.work(3)
    outer = scene.of("process", job_id)
    inner = scene.span(name="send shop", parent_id=outer.span_id)
    assert len(scene.spans(name="process greet", parent_id=inner.span_id)) == 2
    assert {span.trace_id for span in scene.spans()} == {outer.trace_id}


def test_a_handlers_own_commit_settles_it_and_its_messages_go_on_in_the_trace(
    scene: Scene,
) -> None:
    job_id = scene.produce("said = keep.enqueue('ann').id")
    scene.work(2)
    process, told = scene.of("process", job_id), scene.span(name="process relay:kept")
    assert process.attributes["faultline.outcome"] == "succeeded"
    assert told.parent_id == process.span_id
    assert [tuple(link) for link in told.links] == [process.context]
    settled = [span.attributes["messaging.message.id"] for span in scene.spans(name="settle shop")]
    assert settled == [], "there was nothing left to write"


def test_baggage_travels_too_and_the_current_span_is_the_handlers(scene: Scene) -> None:
    job_id = scene.produce(
        "from opentelemetry.context import attach\n"
        "attach(baggage.set_baggage('customer', 'ann')); said = carry.enqueue().id"
    )
    scene.work(2)
    assert scene.stage.job(UUID(job_id))["result"] == scene.of("process", job_id).span_id
    assert "ANN" in [row[0] for row in scene.stage.execute("select result from faultline.jobs")]


# ── what goes wrong ──────────────────────────────────────────────────────────────────────────────


def test_a_failure_is_an_error_with_the_jobs_own_message_and_the_next_attempt_is_beside_it(
    scene: Scene,
) -> None:
    job_id = scene.produce("said = stumble.enqueue('canary-4711').id")
    scene.work(2)
    first, second = scene.of("process", job_id, 1), scene.of("process", job_id, 2)
    assert (first.status, first.said, second.status) == ("ERROR", "stumbled", "UNSET")
    assert first.attributes["error.type"] == "ValueError"
    told = first.event("exception")
    assert (told["exception.type"], told["exception.message"]) == ("ValueError", "stumbled")
    assert "tests/traced.py" in told["exception.stacktrace"]
    assert first.parent_id == second.parent_id == scene.span(name="send shop").span_id
    assert [scene.of("settle", job_id, n).attributes["faultline.outcome"] for n in (1, 2)] == [
        *("failed", "succeeded")
    ]
    assert (first.attributes["faultline.attempt"], second.attributes["faultline.attempt"]) == (1, 2)
    assert "canary-4711" not in str(scene.spans()), "no payload is in a span"


def test_a_payload_that_does_not_fit_is_not_quoted(scene: Scene) -> None:
    job_id = scene.produce("said = app.enqueue('greet', {'name': 'ann'}).id")
    scene.stage.execute(
        "update faultline.job set payload = %s where id = %s", '{"name": ["canary-4711"]}', job_id
    )
    scene.work(1)
    settle = scene.of("settle", job_id)
    assert (settle.status, settle.attributes["faultline.outcome"]) == ("ERROR", "failed")
    assert "canary-4711" not in str(scene.spans())


@pytest.mark.parametrize("task", ["duel_async", "duel_sync", "inside_a_transaction"])
def test_both_attempts_of_a_takeover_are_in_the_trace_and_the_refused_write_with_both_tokens(
    scene: Scene, task: str
) -> None:
    job_id = UUID(scene.produce(f"said = app.enqueue('{task}').id"))
    with scene.worker() as stalled, scene.worker().ready() as other:
        taken_over(scene, job_id, stalled, other)
    first, second = scene.of("process", job_id, 1), scene.of("process", job_id, 2)
    send = scene.span(name="send default")
    assert first.process != second.process
    assert first.context != second.context
    assert first.parent_id == second.parent_id == send.span_id
    assert (first.status, second.status) == ("ERROR", "UNSET")
    # It is told so by the renewal, by its own write, or when it hands the job back: who is first.
    # That the lease is lost may be said too late for any span of it, where its own write was first.
    late = [span for span in scene.spans() if span.attributes.get("faultline.token") == 1]
    refused = [(span, event) for span in late for event in span.events if event["name"] == BLOCKED]
    assert refused
    for span, event in refused:
        facts = event["attributes"]
        assert (facts["faultline.stale_token"], facts["faultline.current_token"]) == (1, 2)
        assert facts["faultline.reason"] == "token_mismatch"
        assert facts["faultline.operation"]
        assert span.status == "ERROR"
    # A renewal that was under way when the worker ended has nobody left to tell it.
    assert len(refused) <= scene.stage.value("select count(*) from {schema}.refusal")
    assert scene.of("settle", job_id, 2).attributes["faultline.outcome"] == "succeeded"


def test_a_handlers_own_write_that_is_refused_is_an_event_of_its_span(scene: Scene) -> None:
    """Its lease runs out in the database only, and is looked after again in half a minute."""
    job_id = UUID(scene.produce("said = write_late.enqueue().id"))
    with scene.worker() as worker:
        scene.until_in(job_id, 1)
        scene.stage.expire(job_id)
        scene.go(job_id, 1)
        worker.until(BLOCKED, job_id=job_id)
        worker.terminate()
        assert worker.ended() == 0
    process, settle = scene.of("process", job_id), scene.of("settle", job_id)
    facts = process.event(BLOCKED, stale_token=1, operation="assert_fence")
    # The worker's own reconciler may have taken it over in between.
    assert facts["faultline.reason"] in ("lease_expired", "token_mismatch")
    assert (process.status, process.attributes["error.type"]) == ("ERROR", "StaleLease")
    assert settle.attributes["faultline.outcome"] == "refused"
    assert settle.events == [], "it is told once"


def test_a_renewal_that_is_refused_while_the_handler_runs_is_an_event_of_its_span(
    scene: Scene,
) -> None:
    job_id = UUID(scene.produce("said = write_late.options(lease_seconds=1.5).enqueue().id"))
    with scene.worker() as worker:
        scene.until_in(job_id, 1)
        scene.stage.expire(job_id)
        worker.until(BLOCKED, job_id=job_id, operation="renew")
        scene.go(job_id, 1)
        scene.until_state(job_id, "succeeded")
        worker.terminate()
        assert worker.ended() == 0
    process = scene.of("process", job_id)
    assert process.event(BLOCKED, stale_token=1, operation="renew")
    assert process.status == "ERROR"


def test_a_success_that_comes_too_late_is_refused_in_its_settle_span(scene: Scene) -> None:
    job_id = UUID(scene.produce("said = app.enqueue('duel_returns').id"))
    with scene.worker() as stalled, scene.worker().ready() as other:
        taken_over(scene, job_id, stalled, other)
    settle = scene.of("settle", job_id, 1)
    assert (settle.status, settle.attributes["faultline.outcome"]) == ("ERROR", "refused")
    facts = settle.event(BLOCKED, operation="complete")
    assert (facts["faultline.stale_token"], facts["faultline.current_token"]) == (1, 2)
    assert facts["faultline.late_seconds"] > 0


def taken_over(scene: Scene, job_id: UUID, stalled: Process, other: Process) -> None:
    """The first to claim it is stopped inside; the other completes it; then the first goes on."""
    holder = stalled if has_begun(scene, job_id, stalled, other) else other
    rescuer = other if holder is stalled else stalled
    holder.stall()
    scene.go(job_id, 2)
    scene.until_state(job_id, "succeeded")
    scene.go(job_id, 1)
    holder.wake()
    holder.until(BLOCKED, job_id=job_id)
    for worker in (holder, rescuer):
        worker.terminate()
        assert worker.ended() == 0
        assert "traced" not in "".join(worker.errors)


def has_begun(scene: Scene, job_id: UUID, one: Process, other: Process) -> bool:
    """Whether it was the one that has begun it."""
    scene.until_in(job_id, 1)
    started = [worker.told("execution_started", job_id=job_id) for worker in (one, other)]
    assert any(started)
    return bool(started[0])
