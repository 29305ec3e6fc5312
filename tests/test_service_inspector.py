"""What the inspector shows, compared with what was done: leases, workers, refusals, timelines,
rates, and the stream of changes."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest

from faultline import App
from faultline.service import service, watch
from tests.serving import Client, Serving, served
from tests.stage import DEADLINE_SECONDS, Stage, until

pytestmark = pytest.mark.both_servers


@pytest.fixture
def api(stage: Stage) -> Iterator[Client]:
    with served(service(App(stage.url))) as client:
        yield client


def test_leases_are_what_runs_and_the_next_to_expire_comes_first(stage: Stage, api: Client) -> None:
    slow, slow_token = stage.running("A", lease_seconds=3600)
    quick, _ = stage.running("B", lease_seconds=5, queue="billing")
    body = api.get("/api/leases").body
    assert [lease["job_id"] for lease in body["leases"]] == [str(quick), str(slow)]
    assert body["more"] is False
    lease = body["leases"][1]
    assert (lease["worker"], lease["fencing_token"], lease["task"]) == ("A", slow_token, "work")
    assert 3000 < lease["remaining_seconds"] <= 3600
    assert api.get("/api/leases?limit=1").body["more"] is True
    api.get("/api/leases?limit=0").problem(422, "invalid_request")


def test_workers_and_queues_are_as_the_views_show_them(stage: Stage, api: Client) -> None:
    stage.verbs.beat("A", ["billing"], {"concurrency": 3}).run(stage.conn)
    stage.running("A", queue="billing")
    (worker,) = api.get("/api/workers").body["workers"]
    assert (worker["worker"], worker["queues"], worker["leases"]) == ("A", ["billing"], 1)
    assert worker["details"] == {"concurrency": 3}
    (queue,) = api.get("/api/queues").body["queues"]
    assert (queue["queue"], queue["running"]) == ("billing", 1)


def refused(stage: Stage) -> UUID:
    """A job whose first worker has come back late."""
    job_id, token = stage.running("A")
    stage.take_over(job_id)
    assert len(stage.verbs.complete([(job_id, token)]).run(stage.conn)) == 1
    return job_id


def test_refusals_are_read_page_by_page_and_for_one_job(stage: Stage, api: Client) -> None:
    jobs = [str(refused(stage)) for _ in range(3)]
    first = api.get("/api/refusals?limit=2").body
    assert [row["job_id"] for row in first["refusals"]] == [jobs[2], jobs[1]]
    rest = api.get(f"/api/refusals?limit=2&cursor={first['next_cursor']}").body
    assert [row["job_id"] for row in rest["refusals"]] == [jobs[0]]
    assert rest["next_cursor"] is None
    (own,) = api.get(f"/api/refusals?job_id={jobs[1]}").body["refusals"]
    assert (own["stale_token"], own["current_token"], own["operation"]) == (1, 2, "complete")
    for query in ("cursor=-1", "cursor=x", f"cursor={2**63}", "limit=1001", "job_id=1"):
        api.get(f"/api/refusals?{query}").problem(422, "invalid_request")


def test_a_timeline_tells_the_takeover_and_the_refusal_in_order(stage: Stage, api: Client) -> None:
    job_id = refused(stage)
    for _ in range(2):
        stage.verbs.renew([(job_id, 2)]).run(stage.conn)
    stage.verbs.complete([(job_id, 2)]).run(stage.conn)
    body = api.get(f"/api/jobs/{job_id}/timeline").body
    assert body["state"] == "succeeded"
    told = [(moment["token"], moment["kind"], moment["worker"]) for moment in body["moments"]]
    assert sorted(told) == sorted(
        [
            (0, "enqueued", None),
            (1, "claimed", "A"),
            (1, "lease_expired", "A"),
            (1, "expired", "A"),
            (2, "claimed", "B"),
            (2, "renewed", "B"),
            (1, "refused", "A"),
            (2, "succeeded", "B"),
        ]
    )
    kinds = [kind for _, kind, _ in told]
    assert kinds.index("expired") < kinds.index("refused") < kinds.index("succeeded")
    api.get(f"/api/jobs/{uuid4()}/timeline").problem(404, "job_not_found")


def test_throughput_is_what_was_enqueued_since(stage: Stage, api: Client) -> None:
    assert api.get("/api/throughput").body["per_second"] is None
    until(lambda: api.get("/api/throughput").body["seconds"], "it has looked twice")
    stage.verbs.enqueue_many("charge", [uuid4() for _ in range(500)], [{}] * 500).run(stage.conn)
    rates = until(
        lambda: (
            (body := api.get("/api/throughput?seconds=600").body)["per_second"]["enqueued"] and body
        ),
        "the counters have moved",
    )
    assert rates["per_second"]["enqueued"] * rates["seconds"] == pytest.approx(500)
    assert rates["per_second"]["refused"] == 0
    api.get("/api/throughput?seconds=0").problem(422, "invalid_request")


# ── the stream ───────────────────────────────────────────────────────────────────────────────────


class Stream:
    """Server-sent events, as they come."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self._answer = answer

    def next(self) -> tuple[str, str | None, Any]:
        """The kind, the id and the data of the next event."""
        facts: dict[str, str] = {}
        while line := self._answer.readline().decode():
            name, _, value = line.rstrip("\n").partition(": ")
            if name:
                facts[name] = value
            elif "data" in facts:
                return facts["event"], facts.get("id"), json.loads(facts["data"])
        raise EOFError

    def until(self, kind: str, condition: Any = bool) -> Any:
        """The next of this kind for which that holds."""
        while True:
            event, _, data = self.next()
            if event == kind and condition(data):
                return data


@contextmanager
def streaming(client: Client, **headers: str) -> Iterator[Stream]:
    conn = http.client.HTTPConnection(client.host, client.port, timeout=DEADLINE_SECONDS)
    conn.request("GET", "/api/stream", headers={n.replace("_", "-"): v for n, v in headers.items()})
    answer = conn.getresponse()
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    yield Stream(answer)
    answer.close()
    conn.close()


def test_a_stream_says_what_is_and_then_what_changes(stage: Stage, api: Client) -> None:
    stage.enqueue(queue="billing")
    with streaming(api) as stream:
        first = {stream.next()[0] for _ in range(4)}
        assert first == {"queues", "leases", "workers", "risk"}
        job_id, _ = stage.running(queue="mail")
        queues = stream.until("queues", lambda data: len(data["queues"]) == 2)
        assert {queue["running"] for queue in queues["queues"]} == {1}
        with streaming(api) as other:  # who comes later is told the same at once
            leases = other.until("leases", lambda data: data["leases"])
            assert str(job_id) in {lease["job_id"] for lease in leases["leases"]}


def test_a_stream_has_each_refusal_and_those_that_a_reader_missed(
    stage: Stage, api: Client
) -> None:
    before = refused(stage)
    with streaming(api) as stream:
        stream.until("queues")
        job_id = refused(stage)
        assert stream.until("refusal")["job_id"] == str(job_id), "not the one from before"
        first = stage.value("select min(id) from {schema}.refusals where job_id = %s", before)
        with streaming(api, Last_Event_ID=str(first)) as other:
            assert other.until("refusal")["job_id"] == str(job_id)
        for nonsense in ("x", "-1", "9" * 5000, "²"):
            with streaming(api, Last_Event_ID=nonsense) as other:
                other.until("queues")


def test_a_reader_that_comes_back_to_a_service_started_anew_has_missed_nothing(
    stage: Stage,
) -> None:
    first, second = refused(stage), refused(stage)
    seen = stage.value("select id from {schema}.refusals where job_id = %s", first)
    with (
        served(service(App(stage.url))) as client,
        streaming(client, Last_Event_ID=str(seen)) as stream,
    ):
        assert stream.until("refusal")["job_id"] == str(second)


def test_a_stream_says_that_nothing_can_be_seen_and_goes_on(stage: Stage, api: Client) -> None:
    with streaming(api) as stream:
        stream.until("queues")
        stage.execute("alter view {schema}.depths rename to hidden")
        assert "faultline migrate" in stream.until("trouble")["detail"]
        stage.execute("alter view {schema}.hidden rename to depths")
        assert stream.until("queues")["queues"] == [], "all is told again"
        stage.execute("alter view {schema}.depths rename to hidden")
        stream.until("trouble")
        stage.execute("alter view {schema}.hidden rename to depths")


def test_there_are_only_so_many_streams(
    stage: Stage, api: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "MAX_SEATS", 1)
    with streaming(api) as stream:
        stream.until("queues")
        api.get("/api/stream").problem(503, "too_many_streams")


def test_nobody_looks_when_nobody_watches(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "IDLE_SECONDS", 0.5)
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.01)
    web = service(App(stage.url))
    with served(web) as client:
        with streaming(client) as stream:
            stream.until("queues")
            assert web.state.watch._thread is not None
        until(lambda: web.state.watch._thread is None, "it looks no more")
        with streaming(client) as stream:
            stream.until("queues")


def test_sigterm_ends_a_stream_at_once(stage: Stage) -> None:
    with Serving(stage.url, "inspector", "serve") as serving, streaming(serving.client) as stream:
        stream.until("queues")
        serving.terminate()
        with pytest.raises(EOFError):
            stream.until("nothing like this")
        assert serving.ended() == 0
        assert "Traceback" not in serving.written
