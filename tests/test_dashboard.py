"""The dashboard without a browser: every page in every situation, who may see and do what, and
that nothing in a job becomes part of a page."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlencode
from uuid import UUID, uuid4

import pytest

from faultline import App
from faultline.service import service
from faultline.service.dashboard.stalling import Stalling
from tests.serving import READ_TOKEN, TOKEN, Answer, Client, served
from tests.stage import Stage, until

pytestmark = pytest.mark.both_servers

PAGES = ("", "/jobs", "/workers", "/refusals", "/queues", "/health")
MARKUP = "<script>alert('x')</script><img src=x onerror=alert(1)>\"'"


@pytest.fixture
def web(stage: Stage) -> Iterator[Client]:
    with served(service(App(stage.url))) as client:
        yield client


@pytest.fixture
def guarded(stage: Stage) -> Iterator[Client]:
    with served(service(App(stage.url), token=TOKEN, read_token=READ_TOKEN)) as client:
        yield client


def page(client: Client, path: str, **headers: str) -> str:
    answer = client.get(f"/dashboard{path}", **headers)
    assert answer.status == 200, answer
    assert answer.headers["content-type"].startswith("text/html")
    return answer.text


def submit(client: Client, path: str, **fields: object) -> Answer:
    """As a page's form does."""
    headers = fields.pop("headers", {})
    return client(
        "POST",
        f"/dashboard{path}",
        raw=urlencode(fields, doseq=True).encode(),
        Content_Type="application/x-www-form-urlencoded",
        **headers,  # type: ignore[arg-type]
    )


def refused(stage: Stage) -> UUID:
    """A job whose first worker has come back late."""
    job_id, token = stage.running("A")
    stage.take_over(job_id)
    assert len(stage.verbs.complete([(job_id, token)]).run(stage.conn)) == 1
    return job_id


# ── pages ────────────────────────────────────────────────────────────────────────────────────────


def test_an_empty_installation_says_what_to_do_next(web: Client) -> None:
    assert "faultline enqueue" in page(web, "")
    assert "faultline enqueue" in page(web, "/jobs")
    assert "faultline worker" in page(web, "/workers")
    assert "faultline demo" in page(web, "/refusals")
    assert "faultline enqueue" in page(web, "/queues")
    assert "Check now" in page(web, "/health")
    assert "All hold" in page(web, "/health?check=true")
    home = web.get("/")
    assert (home.status, home.headers["location"]) == (303, "/dashboard")


def test_the_pages_show_what_is_there(stage: Stage, web: Client) -> None:
    stage.verbs.beat("host-a:1", ["default"], {"pid": 1, "host": "a"}).run(stage.conn)
    running, _ = stage.running("host-a:1", queue="billing")
    stale = refused(stage)
    assert "recent refusals" in page(web, "")
    assert str(running) in page(web, "/workers")
    for path in ("", "/refusals"):
        assert str(stale) in page(web, path)
    listed = page(web, "/jobs?state=running&queue=billing")
    assert str(running) in listed
    assert str(stale) not in listed
    told = page(web, f"/jobs/{stale}")
    for words in ("token 1", "token 2", "1 stale write refused", "REFUSED: complete"):
        assert words in told
    assert "billing" in page(web, "/queues")
    for path in PAGES:  # its parts are kept fresh by the same address
        assert "<html" not in page(web, f"{path}?part=x")


def test_a_job_with_a_payload_too_large_to_print_has_a_page(stage: Stage, web: Client) -> None:
    job_id = stage.undeliverable()
    told = page(web, f"/jobs/{job_id}")
    assert "Parked: undeliverable" in told
    assert "store the data elsewhere" in told
    assert "bytes of text: left out" in told
    assert str(job_id) in page(web, "/jobs")


def test_a_list_goes_on_where_the_page_before_ended(stage: Stage, web: Client) -> None:
    jobs = [str(stage.enqueue()) for _ in range(55)]
    first = page(web, "/jobs?state=queued")
    found = re.search(r'href="(/dashboard/jobs\?[^"]*cursor=[^"]*)"', first)
    assert found is not None
    second = page(web, found[1].removeprefix("/dashboard").replace("&amp;", "&"))
    shown = [job for text in (first, second) for job in jobs if f'job-{job}"' in text]
    assert sorted(shown) == sorted(jobs)


def test_a_job_is_found_by_its_id(stage: Stage, web: Client) -> None:
    job_id = stage.enqueue()
    answer = web.get(f"/dashboard/jobs?find={job_id}")
    assert (answer.status, answer.headers["location"]) == (303, f"/dashboard/jobs/{job_id}")
    web.get("/dashboard/jobs?find=nothing").problem(422, "invalid_argument")
    web.get(f"/dashboard/jobs/{uuid4()}").problem(404, "job_not_found")
    web.get("/dashboard/static/nothing.js").problem(404, "not_found")
    web.get("/dashboard/static/..%2f__init__.py").problem(404, "not_found")


HTML = {"Accept": "text/html,application/xhtml+xml"}


def test_a_person_who_asks_for_what_is_not_there_gets_a_page(web: Client) -> None:
    for path, status in (
        (f"/jobs/{uuid4()}", 404),
        ("/nothing", 404),
        ("/jobs?find=…26fb12", 422),
        ("/jobs?state=nonsense", 422),
        ("/jobs?cursor=x", 422),
    ):
        answer = web.get(f"/dashboard{quote(path, safe='/?=&')}", **HTML)
        assert (answer.status, answer.headers["content-type"][:9]) == (status, "text/html"), path
        assert "<nav" in answer.text
    assert "paste it whole" in web.get("/dashboard/jobs?find=x", **HTML).text


def test_one_odd_worker_hides_nobody(stage: Stage, web: Client) -> None:
    odd: list[dict[str, object]] = [{"pid": [1]}, {"pid": {"a": 1}, "host": None}, {}]
    for number, details in enumerate(odd):
        stage.verbs.beat(f"odd-{number}", ["default"], details).run(stage.conn)
    assert page(web, "/workers").count("odd-") >= 3


def test_whatever_is_in_a_job_is_shown_as_text(stage: Stage, web: Client) -> None:
    stage.verbs.beat(MARKUP, [MARKUP], {"pid": MARKUP, "host": MARKUP}).run(stage.conn)
    job_id, token = stage.running(MARKUP, task=MARKUP, queue=MARKUP, payload={MARKUP: [MARKUP]})
    pages = [page(web, path) for path in (*PAGES, f"/jobs/{job_id}")]
    error = {"type": MARKUP, "message": MARKUP, "traceback": MARKUP}
    stage.verbs.fail([(job_id, token)], [error], dead=[True]).run(stage.conn)
    pages += [page(web, path) for path in ("", "/jobs?state=failed", f"/jobs/{job_id}")]
    assert any("&lt;script&gt;alert" in text for text in pages)
    for text in pages:
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        # Not as part of an attribute either: every quotation mark of it is written out.
        assert 'onerror=alert(1)>"' not in text


def test_a_page_loads_nothing_from_elsewhere_and_runs_no_script_of_its_own(web: Client) -> None:
    answer = web.get("/dashboard")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    addresses = re.findall(r'(?:src|href|action)="([^"]*)"', answer.text)
    assert addresses
    assert [a for a in addresses if not a.startswith(("/", "#"))] == []
    assert re.findall(r"<script(?! src=)", answer.text) == []
    assert re.findall(r"\son\w+=|\sstyle=", answer.text) == []
    for name in ("dashboard.js", "dashboard.css", "htmx.min.js", "uPlot.iife.min.js", "icon.svg"):
        assert web.get(f"/dashboard/static/{name}").status == 200


# ── who ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_browser_signs_in_with_a_token_and_keeps_it_as_a_cookie(guarded: Client) -> None:
    for path in ("/dashboard", "/dashboard/jobs", "/"):
        answer = guarded.get(path)
        assert answer.status == 303
        assert answer.headers["location"].startswith("/dashboard/sign-in?next=")
    assert "Token" in page(guarded, "/sign-in")
    wrong = submit(guarded, "/sign-in", token="x" * 20)
    assert wrong.status == 401
    assert "not a token" in wrong.text
    assert "set-cookie" not in wrong.headers
    right = submit(guarded, "/sign-in", token=READ_TOKEN)
    assert (right.status, right.headers["location"]) == (303, "/dashboard")
    cookie = right.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    given = cookie.partition(";")[0]
    assert "Overview" in page(guarded, "", Cookie=given)
    out = submit(guarded, "/sign-out", headers={"Cookie": given})
    assert 'faultline_token=""' in out.headers["set-cookie"]


def test_who_signs_in_comes_where_he_wanted_to_go_and_nowhere_else(guarded: Client) -> None:
    asked = guarded.get("/dashboard/jobs?state=failed&task=a%20b")
    path = asked.headers["location"].removeprefix("/dashboard")
    assert submit(guarded, path, token=TOKEN).headers["location"] == (
        "/dashboard/jobs?state=failed&task=a%20b"
    )
    for elsewhere in ("https://elsewhere.example", "//elsewhere.example", "/dashboard\\..\\x", ""):
        path = f"/sign-in?{urlencode({'next': elsewhere})}"
        assert submit(guarded, path, token=TOKEN).headers["location"] == "/dashboard"


def test_an_old_cookie_that_is_sent_again_and_again_is_one_wrong_token(guarded: Client) -> None:
    for _ in range(20):
        assert (
            guarded.get("/dashboard", Cookie="faultline_token=an-old-one-of-yesterday").status
            == 303
        )
    assert guarded.bearing(TOKEN).get("/jobs").status == 200


def test_the_page_that_asks_for_a_token_is_as_closed_as_the_others(guarded: Client) -> None:
    headers = guarded.get("/dashboard/sign-in").headers
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["cache-control"] == "no-store"


def test_who_guesses_at_the_page_is_not_heard_for_a_while(guarded: Client) -> None:
    for n in range(10):
        assert submit(guarded, "/sign-in", token=f"guess-number-{n}-of-many").status == 401
    late = submit(guarded, "/sign-in", token=TOKEN)
    assert late.status == 401
    assert "wait" in late.text


def test_who_may_only_read_sees_no_button_and_cannot_press_one(
    stage: Stage, guarded: Client
) -> None:
    job_id = stage.enqueue()
    reads, writes = (f"faultline_token={token}" for token in (READ_TOKEN, TOKEN))
    assert 'value="cancel"' not in page(guarded, f"/jobs/{job_id}", Cookie=reads)
    assert 'value="cancel"' in page(guarded, f"/jobs/{job_id}", Cookie=writes)
    act = {"id": job_id, "act": "cancel"}
    submit(guarded, "/jobs", headers={"Cookie": reads}, **act).problem(403, "read_only_token")
    assert stage.state(job_id) == "queued"
    assert "1 job cancelled" in submit(guarded, "/jobs", headers={"Cookie": writes}, **act).text


def test_a_page_of_another_site_presses_no_button(stage: Stage, guarded: Client) -> None:
    job_id = stage.enqueue()
    for origin in ("https://elsewhere.example", "null"):
        theirs = {"Cookie": f"faultline_token={TOKEN}", "Origin": origin}
        answer = submit(guarded, "/jobs", headers=theirs, id=job_id, act="cancel")
        answer.problem(403, "another_site")
        submit(guarded, "/sign-in", headers={"Origin": origin}, token=TOKEN).problem(
            403, "another_site"
        )
    assert stage.state(job_id) == "queued"
    own = {"Cookie": f"faultline_token={TOKEN}", "Origin": f"http://{guarded.host}:{guarded.port}"}
    assert submit(guarded, "/jobs", headers=own, id=job_id, act="cancel").status == 200


def test_an_inspector_that_changes_nothing_has_no_button(stage: Stage) -> None:
    job_id = stage.enqueue()
    with served(service(App(stage.url), enqueue=False, change=False)) as client:
        assert 'value="cancel"' not in page(client, f"/jobs/{job_id}")
        assert "Pause" not in page(client, "/queues")
        assert submit(client, "/jobs", id=job_id, act="cancel").status in (404, 405)
    assert stage.state(job_id) == "queued"


# ── what the buttons do ──────────────────────────────────────────────────────────────────────────


def dead(stage: Stage, **options: object) -> UUID:
    job_id, token = stage.running("A", **options)
    stage.verbs.fail([(job_id, token)], dead=[True]).run(stage.conn)
    return job_id


def test_the_chosen_jobs_are_tried_again_and_the_others_are_not(stage: Stage, web: Client) -> None:
    first, second, third = (dead(stage) for _ in range(3))
    done, token = stage.running("A")
    stage.verbs.complete([(done, token)]).run(stage.conn)
    said = submit(web, "/jobs", id=[first, second, done], act="retry").text
    assert "2 jobs will be tried again now; 1 job left alone" in said
    assert [stage.state(job) for job in (first, second, third)] == ["queued", "queued", "failed"]


def test_all_that_match_are_tried_again(stage: Stage, web: Client) -> None:
    ours = [dead(stage, queue="billing") for _ in range(3)]
    other = dead(stage)
    fields = {"all": "yes", "act": "retry", "state": "failed", "queue": "billing"}
    assert "3 jobs will be tried again" in submit(web, "/jobs", **fields).text
    assert {stage.state(job) for job in ours} == {"queued"}
    assert stage.state(other) == "failed"


def test_cancelling_says_what_became_of_each(stage: Stage, web: Client) -> None:
    runs, _ = stage.running("A")
    ended = dead(stage)
    waits = stage.enqueue()
    said = submit(web, "/jobs", id=[waits, runs, ended], act="cancel").text
    assert "1 job cancelled; 1 job running and asked to stop; 1 job had ended already" in said
    assert "nothing was done" in submit(web, "/jobs", act="cancel").text
    assert "1 job not found" in submit(web, "/jobs", id=uuid4(), act="cancel").text
    assert submit(web, "/jobs", id=[uuid4()] * 6000, act="cancel").status == 413


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/jobs", {"id": "nothing", "act": "retry"}),
        ("/jobs", {"id": str(uuid4()), "act": "destroy"}),
        ("/jobs", {"all": "yes", "act": "cancel"}),
        ("/queues", {"queue": "default", "act": "destroy"}),
        ("/workers", {"pid": "1", "act": "stall"}),
        ("/workers", {"pid": "²", "act": "stall"}),
    ],
)
def test_what_cannot_be_done_is_said(
    stage: Stage, web: Client, path: str, fields: dict[str, str]
) -> None:
    job_id = stage.enqueue()
    submit(web, path, **fields).problem(422, "invalid_argument")
    assert stage.state(job_id) == "queued"


def test_a_queue_is_paused_and_resumed(stage: Stage, web: Client) -> None:
    stage.enqueue(queue="billing")
    assert "paused" in submit(web, "/queues", queue="billing", act="pause").text
    assert stage.claim("A") == []
    assert "Resume" in page(web, "/queues")
    assert "claimed from again" in submit(web, "/queues", queue="billing", act="resume").text
    assert len(stage.claim("A")) == 1


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_only_a_process_that_was_started_for_it_can_be_stalled(stage: Stage) -> None:
    ours, other = (
        subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) for _ in range(2)
    )
    stalling = Stalling(lambda: [ours.pid] if ours.poll() is None else [])
    try:
        with served(service(App(stage.url), stalling=stalling)) as client:
            details = {"pid": ours.pid, "host": stalling.host}
            stage.verbs.beat("A", ["default"], details).run(stage.conn)
            assert "Stall this worker" in page(client, "/workers")
            answer = submit(client, "/workers", pid=other.pid, act="stall")
            answer.problem(422, "invalid_argument")
            assert "is stopped" in submit(client, "/workers", pid=ours.pid, act="stall").text
            until(lambda: state_of(ours.pid) == "T", "it is stopped")
            assert "Resume" in page(client, "/workers")
            assert "goes on" in submit(client, "/workers", pid=ours.pid, act="resume").text
            until(lambda: state_of(ours.pid) != "T", "it goes on")
            assert state_of(other.pid) != "T"
            stalling.stall(ours.pid)
            stalling.resume_all()
            until(lambda: state_of(ours.pid) != "T", "it goes on at the end")
    finally:
        for process in (ours, other):
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
    assert stalling.stalled() == {}
    assert not stalling.stall(ours.pid)
