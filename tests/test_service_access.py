"""Who may call the service, and as whom it acts in the database."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from faultline import App
from faultline.access import Access, Role
from faultline.call import Call
from faultline.errors import InvalidArgument
from faultline.service import service, tokens
from faultline.service.tokens import Failures, Tokens, is_loopback
from tests.command import CommandLine
from tests.pooler import needs_pgbouncer, pgbouncer
from tests.serving import READ_TOKEN, TOKEN, Client, served
from tests.stage import Stage

CHARGE = {"task": "charge", "payload": {"order_id": 7}}


@pytest.fixture
def guarded(stage: Stage) -> Iterator[Client]:
    web = service(App(stage.url), token=TOKEN, read_token=READ_TOKEN)
    with served(web) as client:
        yield client


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────


def test_without_a_token_only_the_probes_answer(guarded: Client) -> None:
    assert guarded.get("/health").status == 200
    assert guarded.get("/livez").body == {"status": "ok"}
    guarded.post("/livez", {}).problem(401, "unauthorised")
    for method, path in (("GET", "/jobs"), ("POST", "/jobs"), ("GET", "/openapi.json")):
        answer = guarded(method, path)
        answer.problem(401, "unauthorised")
        assert answer.headers["www-authenticate"] == "Bearer"
    guarded.get("/jobs", Authorization=f"Basic {TOKEN}").problem(401, "unauthorised")
    guarded.get("/nothing/such").problem(401, "unauthorised")


def test_the_read_token_asks_and_only_the_other_changes(stage: Stage, guarded: Client) -> None:
    reader, writer = guarded.bearing(READ_TOKEN), guarded.bearing(TOKEN)
    assert reader.get("/jobs").status == 200
    for path in ("/jobs", "/jobs/batch", f"/jobs/{uuid4()}/cancel"):
        reader.post(path, CHARGE).problem(403, "read_only_token")
    assert stage.value("select count(*) from {schema}.job") == 0
    assert writer.post("/jobs", CHARGE).status == 201
    assert writer.get("/jobs").status == 200


def test_an_address_that_keeps_guessing_is_not_heard_for_a_while(guarded: Client) -> None:
    for n in range(tokens.MAX_FAILURES):
        guarded.bearing(f"guess number {n}").get("/jobs").problem(401, "unauthorised")
    answer = guarded.bearing("another guess").get("/jobs")
    answer.problem(429, "too_many_wrong_tokens")
    assert 1 <= int(answer.headers["retry-after"]) <= tokens.WINDOW_SECONDS
    guarded.bearing(TOKEN).get("/jobs").problem(429, "too_many_wrong_tokens")
    assert guarded.get("/health").status == 200


def test_failures_are_forgotten_after_a_while_and_never_fill_the_memory() -> None:
    now = 1000.0
    failures = Failures(lambda: now)
    for _ in range(tokens.MAX_FAILURES):
        assert failures.wait_seconds("a") == 0
        failures.add("a")
    assert failures.wait_seconds("a") == tokens.WINDOW_SECONDS
    assert failures.wait_seconds("b") == 0
    now += tokens.WINDOW_SECONDS + 1
    assert failures.wait_seconds("a") == 0
    for n in range(tokens.MAX_ADDRESSES + 10):
        failures.add(str(n))
    assert len(failures._counts) == tokens.MAX_ADDRESSES


def test_a_token_that_can_be_guessed_or_says_two_things_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="shorter than 16"):
        Tokens("secret")
    with pytest.raises(InvalidArgument, match="the same"):
        Tokens(TOKEN, TOKEN)
    assert TOKEN not in repr(Tokens(TOKEN))
    assert Tokens(read_token=READ_TOKEN).judge(READ_TOKEN) == (True, False)
    assert Tokens(TOKEN).judge("") == Tokens(TOKEN).judge("é" * 32) == (False, False)


def test_tokens_are_compared_in_constant_time_whatever_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both of them, each time, as digests of one length: how long it takes tells nothing."""
    both = Tokens(TOKEN, READ_TOKEN)
    compared: list[tuple[bytes, bytes]] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return a == b

    monkeypatch.setattr(tokens.hmac, "compare_digest", compare)
    given = {TOKEN: (True, True), READ_TOKEN: (True, False), "x": (False, False)}
    for text, expected in given.items():
        compared.clear()
        assert both.judge(text) == expected
        assert [(len(a), len(b)) for a, b in compared] == [(32, 32), (32, 32)]


# ── without a token ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def open_service(stage: Stage) -> Iterator[Client]:
    with served(service(App(stage.url))) as client:
        yield client


@pytest.mark.parametrize(
    "host", ["evil.example", "192.0.2.7:8000", "", "127.0.0.1.evil.example", "[", "a b"]
)
def test_without_a_token_another_name_for_this_machine_is_refused(
    open_service: Client, host: str
) -> None:
    """A page of another site can point its own name here."""
    open_service.get("/jobs", Host=host).problem(403, "no_token_is_set")
    assert open_service.get("/jobs", Host="localhost:8000").status == 200
    assert open_service.get("/jobs", Host="[::1]:8000").status == 200


def test_without_a_token_a_page_of_another_site_cannot_change_anything(
    stage: Stage, open_service: Client
) -> None:
    job_id = stage.enqueue()
    path = f"/jobs/{job_id}/cancel"
    open_service.post(path, Origin="https://evil.example").problem(403, "another_site")
    open_service.post(path, Origin="null").problem(403, "another_site")
    open_service.post(path, Origin="http://[").problem(403, "another_site")
    assert stage.state(job_id) == "queued"
    own = f"http://127.0.0.1:{open_service.port}"
    assert open_service.post(path, Origin=own).status == 200


def test_no_answer_lets_a_page_of_another_site_read_it(guarded: Client) -> None:
    answer = guarded.bearing(TOKEN).get("/jobs", Origin="https://evil.example")
    assert not [name for name in answer.headers if name.startswith("access-control")]
    preflight = guarded("OPTIONS", "/jobs", Origin="https://evil.example")
    assert preflight.status == 401


def test_without_a_token_a_request_from_another_machine_is_refused(stage: Stage) -> None:
    """This machine by an address that others could come from, too."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; tells which address would be used
        except OSError:
            pytest.skip("this machine has no other address")
        address = probe.getsockname()[0]
    if is_loopback(address):
        pytest.skip("this machine has no other address")
    with served(service(App(stage.url)), host=address) as client:
        client.get("/jobs", Host="localhost").problem(403, "no_token_is_set")
        assert client.get("/health").status == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
@pytest.mark.parametrize("command", [("api",), ("inspector", "serve")], ids=" ".join)
def test_it_does_not_listen_beyond_this_machine_without_a_token(
    database: str, tmp_path: Path, host: str, command: tuple[str, ...]
) -> None:
    faultline = CommandLine(database, tmp_path)
    faultline(*command, "--host", host, status=1)
    assert faultline.said.startswith(f"faultline: listening on {host} lets others in: set ")
    assert faultline.said.count("\n") == 1


def test_trusted_it_leaves_the_judgement_to_the_application_around_it(stage: Stage) -> None:
    with served(service(App(stage.url), token=TOKEN, trust=True)) as client:
        assert client.get("/jobs", Host="shop.example").status == 200


def test_mounted_in_an_application_it_is_guarded_there_too(stage: Stage) -> None:
    from fastapi import FastAPI

    web = FastAPI()
    inner = service(App(stage.url), token=TOKEN)
    web.mount("/queue", inner)
    web.state.access = inner.state.access
    with served(web) as client:
        assert client.get("/queue/health").status == 200
        client.get("/queue/jobs").problem(401, "unauthorised")
        answer = client.bearing(TOKEN).post("/queue/jobs", CHARGE)
        assert answer.status == 201
        assert answer.headers["location"] == f"/queue/jobs/{answer.body['id']}"
        assert client.bearing(TOKEN).get(answer.headers["location"]).status == 200


# ── roles ────────────────────────────────────────────────────────────────────────────────────────


def test_each_request_has_the_least_role_that_will_do_and_leaves_none_behind(stage: Stage) -> None:
    asked = "select current_user::text, current_setting('transaction_read_only')"
    access = Access(App(stage.url))

    def acting(role: Role) -> tuple[str, str]:
        return access.act(role, Call("faultline", "ask", asked, (), lambda rows: rows[0]))

    assert access.read(lambda _, conn: conn.execute(asked).fetchone()) == ("faultline_reader", "on")
    assert acting("producer") == ("faultline_producer", "off")
    assert acting("operator") == ("faultline_operator", "off")
    own = stage.value("select current_user::text")
    assert access.server(lambda conn: conn.execute(asked).fetchone()) == (own, "on")
    access.close()


@pytest.mark.both_servers
def test_a_login_that_may_only_read_reads_and_is_told_the_grant_for_the_rest(
    stage: Stage,
) -> None:
    job_id = stage.enqueue()
    with stage.login("reader") as url, served(service(App(url))) as client:
        assert client.get("/health").status == 200
        assert client.get(f"/jobs/{job_id}").status == 200
        assert client.get("/queue/depth").status == 200
        problem = client.post("/jobs", CHARGE).problem(403, "not_permitted")
        assert "may not call enqueue in schema" in problem["detail"]
        assert "GRANT faultline_producer TO" in problem["detail"]
        problem = client.post(f"/jobs/{job_id}/cancel").problem(403, "not_permitted")
        assert "GRANT faultline_operator TO" in problem["detail"]
    assert stage.state(job_id) == "queued"


@pytest.mark.both_servers
def test_a_login_in_the_three_roles_is_enough_for_everything(stage: Stage) -> None:
    with (
        stage.login("reader", "producer", "operator") as url,
        served(service(App(url))) as client,
    ):
        job_id = client.post("/jobs", CHARGE).body["id"]
        assert client.get(f"/jobs/{job_id}").body["state"] == "queued"
        assert client.post("/jobs/batch", {"jobs": [CHARGE]}).status == 201
        assert client.post(f"/jobs/{job_id}/cancel").body["outcome"] == "cancelled"


@needs_pgbouncer
def test_a_role_never_reaches_a_stranger_through_a_pooler(stage: Stage) -> None:
    with pgbouncer(stage.url) as url, served(service(App(url))) as client:
        job_id = client.post("/jobs", CHARGE).body["id"]
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(client.get, [f"/jobs/{job_id}", "/queue/depth", "/api/risk"] * 4))
        assert client.post(f"/jobs/{job_id}/cancel").status == 200
        for _ in range(6):
            with psycopg.connect(url, autocommit=True, prepare_threshold=None) as stranger:
                row = stranger.execute("select current_user = session_user").fetchone()
                assert row == (True,)
