"""A payload, a key, a token, the database's password: each is a canary, and no log of the service
has one, at any level and whatever goes wrong; nor has an answer to somebody who did not send it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import pytest

from faultline import App
from faultline.service import service
from tests.serving import READ_TOKEN, TOKEN, Client, Serving, served
from tests.stage import Stage

PAYLOAD = "canary-payload-4242"
KEY = "canary-key-4242"
NAME = "canary-name-4242"  # in a path, a query, a field that does not exist
GUESS = "canary-guess-4242-4242"
PASSWORD = "canary-password-4242"
SECRETS = (PAYLOAD, KEY, NAME, GUESS, PASSWORD, TOKEN, READ_TOKEN)
ENVIRONMENT = {"FAULTLINE_API_TOKEN": TOKEN, "FAULTLINE_API_READ_TOKEN": READ_TOKEN}
JOB = {"task": "charge", "payload": {"card": PAYLOAD}, "headers": {"h": PAYLOAD}}
AWAY = f"postgresql://shop:{PASSWORD}@127.0.0.1:1/none"


@contextmanager
def login(stage: Stage) -> Iterator[str]:
    """The URL of a user whose password is a canary."""
    name = f"user_{uuid4().hex}"
    roles = ", ".join(f"{stage.schema}_{role}" for role in ("reader", "producer", "operator"))
    stage.conn.execute(f"create role {name} login password '{PASSWORD}' in role {roles}")
    parts = urlsplit(stage.url)
    address = parts.netloc.rpartition("@")[2]
    yield urlunsplit(parts._replace(netloc=f"{name}:{PASSWORD}@{address}"))
    stage.conn.execute(f"drop role {name}")


def send_everything(client: Client) -> list[str]:
    """All that can be right and wrong; what was answered to requests that failed."""
    wrong = [
        client.post("/jobs", {**JOB, "queue": PAYLOAD * 20}),
        client.post("/jobs", {**JOB, "priority": PAYLOAD}),
        client.post("/jobs", {**JOB, "payload": [PAYLOAD]}),
        client.post("/jobs", {**JOB, "payload": {"card": f"{PAYLOAD}\0"}}),
        client.post("/jobs", {**JOB, "idempotency_key": KEY * 40}),
        client.post("/jobs", JOB, Idempotency_Key=KEY * 40),
        client.post("/jobs/batch", {"jobs": [JOB, {**JOB, "priority": PAYLOAD}]}),
        client("POST", "/jobs", raw=b'{"task": "' + PAYLOAD.encode()),
        client("POST", "/jobs", raw=PAYLOAD.encode() + b"\xff"),
        client("POST", "/jobs", raw=PAYLOAD.encode(), Content_Type="text/plain"),
        client.get("/jobs", Authorization=f"Basic {TOKEN}"),
        client.bearing(GUESS).get("/jobs"),
        client.bearing(READ_TOKEN).post("/jobs", JOB),
    ]
    assert {answer.status for answer in wrong} <= {400, 401, 403, 413, 422, 503}, wrong
    for path in (f"/jobs/{NAME}", f"/jobs?queue={NAME}&cursor={NAME}", f"/{NAME}"):
        client.get(path)
    client.post("/jobs", {**JOB, NAME: NAME})
    client("TRACE", "/jobs", raw=PAYLOAD.encode())
    client.get("/health")
    return [answer.text for answer in wrong]


def break_it(stage: Stage, client: Client) -> None:
    """A bug, or what looks like one, whose message quotes what is stored."""
    stage.execute("alter table {schema}.refusal drop constraint a_refusal_has_a_known_reason")
    stage.execute(
        "insert into {schema}.refusal (job_id, stale_token, reason, operation, at) "
        "values (gen_random_uuid(), 1, %s, 'complete', clock_timestamp())",
        PAYLOAD,
    )
    answer = client.get("/api/refusals")
    answer.problem(500, "unexpected_error")
    assert PAYLOAD not in answer.text


def use(stage: Stage, client: Client) -> list[str]:
    job_id = client.post("/jobs", JOB, Idempotency_Key=KEY).body["id"]
    conflict = client.post("/jobs", {**JOB, "payload": {"n": 8}}, Idempotency_Key=KEY)
    assert conflict.problem(409, "idempotency_conflict")["key"] == KEY  # to who sent it
    assert client.get(f"/jobs/{job_id}").body["payload"] == {"card": PAYLOAD}
    client.post(f"/jobs/{job_id}/cancel", {"reason": PAYLOAD})
    answers = send_everything(client)
    break_it(stage, client)
    return answers


def assert_no_secret_in(text: str) -> None:
    assert [secret for secret in SECRETS if secret in text] == []


def test_the_log_of_the_process_has_none(stage: Stage) -> None:
    with login(stage) as url, Serving(url, **ENVIRONMENT) as serving:
        answers = use(stage, serving.client)
        serving.terminate()
        assert serving.ended() == 0
    assert serving.written.count("POST /jobs") >= 5
    assert "unexpected ValidationError in " in serving.written
    assert_no_secret_in(serving.written)
    assert_no_secret_in("".join(answers))


@pytest.fixture
def everything_logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Every logger there is, at every level. Only uvicorn's own line for each request is left out:
    `faultline api` turns it off, as the test of the process shows."""
    caplog.set_level(logging.CRITICAL, "uvicorn.access")  # first: it is also the handler's level
    caplog.set_level(logging.DEBUG)
    for name in ("faultline", "faultline.service", "psycopg", "psycopg.pool", "uvicorn.error"):
        caplog.set_level(logging.DEBUG, name)
    return caplog


def test_no_logger_has_any_at_any_level(
    stage: Stage, everything_logged: pytest.LogCaptureFixture
) -> None:
    with login(stage) as url:
        web = service(App(url), token=TOKEN, read_token=READ_TOKEN)
        with served(web) as client:
            use(stage, client.bearing(TOKEN))
    levels = {record.levelno for record in everything_logged.records}
    assert {logging.DEBUG, logging.INFO, logging.ERROR} <= levels
    assert_no_secret_in(everything_logged.text)


def test_nothing_has_any_while_the_database_is_away(
    everything_logged: pytest.LogCaptureFixture,
) -> None:
    with Serving(AWAY, **ENVIRONMENT) as serving:
        answers = send_everything(serving.client)
        answer = serving.client.post("/jobs", JOB, Idempotency_Key=KEY)
        answer.problem(503, "database_unavailable")
        answers += [answer.text, serving.client.get("/health").text]
        serving.client.get("/api/throughput")
        serving.terminate()
        assert serving.ended() == 0
    assert "POST /jobs 503" in serving.written
    assert_no_secret_in(serving.written)
    assert_no_secret_in("".join(answers))
    with served(service(App(AWAY), token=TOKEN, read_token=READ_TOKEN)) as client:
        send_everything(client.bearing(TOKEN))
        client.bearing(TOKEN).post("/jobs", JOB).problem(503, "database_unavailable")
    assert "POST /jobs 503" in everything_logged.text
    assert_no_secret_in(everything_logged.text)
