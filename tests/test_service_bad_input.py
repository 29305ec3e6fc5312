"""What is wrong in a request, odd or too large: refused by name, and the service goes on."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator

import pytest

from faultline import App
from faultline.service import service
from tests.serving import Client, served
from tests.stage import Stage

CHARGE = {"task": "charge", "payload": {"order_id": 7}}


@pytest.fixture
def api(stage: Stage) -> Iterator[Client]:
    with served(service(App(stage.url))) as client:
        yield client


@pytest.mark.parametrize("value", ["9" * 5000, *("[" * n + "]" * n for n in (200, 700, 970, 3000))])
def test_a_payload_that_python_cannot_read_does_not_hide_its_job(
    stage: Stage, api: Client, value: str
) -> None:
    """A job of the release before: SQL could store in it what PostgreSQL can."""
    job_id = stage.value("select {schema}.enqueue('odd')")
    change = "update {schema}.job set payload = %s::jsonb, payload_bytes = null where id = %s"
    stage.execute(change, f'{{"n": {value}}}', job_id)
    answer = api.get(f"/jobs/{job_id}")
    assert answer.status == 200
    assert '"state":"queued"' in answer.text  # this process may not be able to read all of it
    assert api.get(f"/api/jobs/{job_id}/timeline").status == 200
    assert api.get("/jobs").body["jobs"][0]["id"] == str(job_id)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"task": ""}, "task"),
        ({"task": "x" * 256}, "task"),
        ({"task": 7}, "task"),
        ({"payload": [1]}, "payload"),
        ({"queue": "q" * 129}, "queue"),
        ({"priority": 2**31}, "priority"),
        ({"priority": "5"}, "priority"),
        ({"priority": True}, "priority"),
        ({"delay_seconds": -1}, "delay_seconds"),
        ({"run_at": "2030-01-01T00:00:00"}, "run_at"),
        ({"run_at": "tomorrow"}, "run_at"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"lease_seconds": 0}, "lease_seconds"),
        ({"idempotency_key": "k" * 256}, "idempotency_key"),
        ({"quue": "billing"}, "quue"),
    ],
)
def test_a_wrong_field_is_named_and_nothing_of_it_is_repeated(
    api: Client, change: dict[str, object], field: str
) -> None:
    answer = api.post("/jobs", {**CHARGE, **change})
    problem = answer.problem(422, "invalid_request")
    assert [error["field"] for error in problem["errors"]] == [field]
    assert "xxxx" not in answer.text
    assert "kkkk" not in answer.text


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'{"task": "charge", "payload": {"n": NaN}}',
        b'{"task": "charge", "payload": {"n": Infinity}}',
        b'{"task": "charge", "payload": {"n": "\\u0000"}}',
        b'{"task": "charge", "payload": {"n": "\\ud800"}}',
        b'{"task": "ch\\u0000arge"}',
        b'{"task": "charge", "payload": {"n": "\xff"}}',
        b'{"task": "charge", "payload": {"n": ' + b"9" * 5000 + b"}}",
        b'{"task": "charge", "payload": {"n": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
        b'{"task": "charge", "headers": {"n": ' + b"[" * 950 + b"]" * 950 + b"}}",
    ],
)
def test_a_body_that_is_no_job_is_refused_and_the_service_goes_on(
    stage: Stage, api: Client, raw: bytes
) -> None:
    answer = api("POST", "/jobs", raw=raw)
    assert answer.status in (400, 422), answer
    assert answer.headers["content-type"] == "application/problem+json"
    assert stage.value("select count(*) from {schema}.job") == 0
    assert api.post("/jobs", CHARGE).status == 201


def test_a_body_of_another_type_is_refused(api: Client) -> None:
    raw = json.dumps(CHARGE).encode()
    answer = api("POST", "/jobs", raw=raw, Content_Type="text/plain")
    answer.problem(422, "invalid_request")


def test_a_payload_over_the_limit_and_a_body_over_it_are_too_large(
    stage: Stage, api: Client
) -> None:
    job = {"task": "charge", "payload": {"text": "x" * (2 << 20)}}
    api.post("/jobs", job).problem(413, "payload_too_large")
    job = {"task": "charge", "payload": {"text": "x" * (9 << 20)}}
    api.post("/jobs", job).problem(413, "body_too_large")
    assert stage.value("select count(*) from {schema}.job") == 0


def test_a_body_that_does_not_say_how_long_it_is_is_cut_off_at_the_limit(stage: Stage) -> None:
    with served(service(App(stage.url), max_body_bytes=1000)) as client:
        chunk = b"%x\r\n%s\r\n" % (900, b" " * 900)
        with socket.create_connection((client.host, client.port), timeout=60) as conn:
            conn.sendall(
                b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n" + chunk + chunk
            )
            answer = http.client.HTTPResponse(conn)
            answer.begin()
            assert answer.status == 413
            assert json.loads(answer.read())["type"] == "faultline:body_too_large"
            answer.close()


@pytest.mark.parametrize(
    "query", ["state=lost", "state=", "cursor=1", "limit=0", "limit=501", "limit=x", "queue=%00"]
)
def test_a_query_that_makes_no_sense_is_a_problem(api: Client, query: str) -> None:
    answer = api.get(f"/jobs?{query}")
    assert answer.status == 422, answer
    assert answer.headers["content-type"] == "application/problem+json"
