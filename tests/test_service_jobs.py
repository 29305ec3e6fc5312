"""Jobs over HTTP: what each request does to the database, on a real server and a real process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from faultline import App
from faultline.service import service
from tests.serving import Client, Serving, served
from tests.stage import Stage

pytestmark = pytest.mark.both_servers
CHARGE = {"task": "charge", "payload": {"order_id": 7}}


@pytest.fixture
def api(stage: Stage) -> Iterator[Client]:
    with served(service(App(stage.url))) as client:
        yield client


def test_a_job_that_is_posted_is_there_with_all_it_was_given(stage: Stage, api: Client) -> None:
    given = {
        **CHARGE,
        "queue": "billing",
        "priority": 3,
        "delay_seconds": 60,
        "headers": {"trace": "x"},
        "max_attempts": 9,
        "max_crashes": 2,
        "lease_seconds": 7,
        "backoff_seconds": 1,
        "backoff_cap_seconds": 5,
    }
    answer = api.post("/jobs", given)
    assert answer.status == 201
    job_id = UUID(answer.body["id"])
    assert answer.body == {"id": str(job_id), "created": True}
    assert answer.headers["location"] == f"/jobs/{job_id}"
    job = stage.job(job_id)
    assert (job["state"], job["queue"], job["priority"]) == ("scheduled", "billing", 3)
    due = job["next_run_at"].timestamp()
    assert job["payload"] == {"order_id": 7}
    assert job["headers"] == {"trace": "x", "faultline-due": pytest.approx(due)}
    assert (job["max_attempts"], job["max_crashes"]) == (9, 2)
    assert stage.execute(
        "select lease_seconds, backoff_seconds, backoff_cap_seconds from {schema}.job"
    ) == [(7, 1, 5)]


def test_what_is_asked_of_a_job_is_what_the_view_shows(stage: Stage, api: Client) -> None:
    job_id = UUID(api.post("/jobs", CHARGE).body["id"])
    (lease,) = stage.claim()
    stage.verbs.complete([(job_id, lease.token)], [{"charged": 7}]).run(stage.conn)
    body = api.get(f"/jobs/{job_id}").body
    assert (body["state"], body["payload"], body["result"], body["fencing_token"]) == (
        "succeeded",
        {"order_id": 7},
        {"charged": 7},
        1,
    )
    assert set(body) == set(stage.job(job_id))


def test_a_payload_too_large_to_print_is_left_out(stage: Stage, api: Client) -> None:
    job_id = stage.undeliverable()
    answer = api.get(f"/jobs/{job_id}")
    assert answer.status == 200
    assert answer.body["payload_bytes"] > 1_000_000_000
    assert "bytes of text: left out" in answer.body["payload"]["unreadable"]
    assert answer.body["quarantine_reason"] == "undeliverable"
    assert [job["id"] for job in api.get("/jobs").body["jobs"]] == [str(job_id)]


@pytest.mark.parametrize("in_header", [True, False])
def test_a_key_makes_it_one_job_and_another_payload_a_conflict(
    stage: Stage, api: Client, in_header: bool
) -> None:
    def send(order_id: int):
        job = {"task": "charge", "payload": {"order_id": order_id}}
        if in_header:
            return api.post("/jobs", job, Idempotency_Key='"order-7"')
        return api.post("/jobs", {**job, "idempotency_key": "order-7"})

    first, again = send(7), send(7)
    assert (first.status, again.status) == (201, 200)
    assert again.body == {"id": first.body["id"], "created": False}
    conflict = send(8).problem(409, "idempotency_conflict")
    assert (conflict["job_id"], conflict["key"]) == (first.body["id"], "order-7")
    assert stage.value("select count(*) from {schema}.job") == 1


def test_of_many_that_send_one_key_at_once_exactly_one_is_told_that_it_made_the_job(
    stage: Stage, api: Client
) -> None:
    with ThreadPoolExecutor(8) as threads:
        calls = [
            threads.submit(api.post, "/jobs", CHARGE, Idempotency_Key="order-7") for _ in range(24)
        ]
        answers = [call.result() for call in calls]
    assert sorted(answer.status for answer in answers) == [*[200] * 23, 201]
    assert len({answer.body["id"] for answer in answers}) == 1
    assert stage.value("select count(*) from {schema}.job") == 1


def test_two_keys_that_differ_are_refused_before_anything_is_enqueued(
    stage: Stage, api: Client
) -> None:
    job = {**CHARGE, "idempotency_key": "one"}
    problem = api.post("/jobs", job, Idempotency_Key="two").problem(422, "invalid_request")
    assert problem["errors"][0]["field"] == "idempotency-key"
    api.post("/jobs", CHARGE, Idempotency_Key='""').problem(422, "invalid_request")
    batch = {"jobs": [CHARGE]}
    api.post("/jobs/batch", batch, Idempotency_Key="one").problem(422, "invalid_request")
    assert stage.value("select count(*) from {schema}.job") == 0


def test_a_batch_is_accepted_in_its_order_whatever_the_tasks_and_options(
    stage: Stage, api: Client
) -> None:
    first = api.post("/jobs", {**CHARGE, "idempotency_key": "order-7"}).body["id"]
    jobs = [
        {"task": "charge", "payload": {"n": 0}},
        {"task": "ship", "payload": {"n": 1}, "queue": "store"},
        {**CHARGE, "idempotency_key": "order-7"},
        {"task": "charge", "payload": {"n": 3}, "priority": 5},
        {"task": "charge", "payload": {"n": 4}},
    ]
    answer = api.post("/jobs/batch", {"jobs": jobs})
    assert answer.status == 201
    accepted = answer.body["jobs"]
    assert [job["created"] for job in accepted] == [True, True, False, True, True]
    assert accepted[2]["id"] == first
    for job, sent in zip(accepted, jobs, strict=True):
        there = stage.job(UUID(job["id"]))
        assert (there["task"], there["payload"]) == (sent["task"], sent["payload"])
    again = api.post("/jobs/batch", {"jobs": [{**CHARGE, "idempotency_key": "order-7"}]})
    assert (again.status, again.body["jobs"]) == (200, [{"id": first, "created": False}])


def test_a_batch_with_one_bad_job_enqueues_nothing_and_says_which(
    stage: Stage, api: Client
) -> None:
    bad = {"task": "charge", "queue": "", "nonsense": 1}
    problem = api.post("/jobs/batch", {"jobs": [CHARGE, bad]}).problem(422, "invalid_request")
    assert {error["field"] for error in problem["errors"]} == {"jobs.1.queue", "jobs.1.nonsense"}
    api.post("/jobs", {**CHARGE, "idempotency_key": "k"})
    other = {"task": "charge", "payload": {"order_id": 8}, "idempotency_key": "k"}
    api.post("/jobs/batch", {"jobs": [CHARGE, other]}).problem(409, "idempotency_conflict")
    assert stage.value("select count(*) from {schema}.job") == 1


def test_pages_lead_through_all_jobs_once_while_others_come_and_go(
    stage: Stage, api: Client
) -> None:
    ids = [str(stage.enqueue("charge", {"n": n})) for n in range(7)]
    seen: list[str] = []
    path = "/jobs?limit=3"
    while True:
        page = api.get(path).body
        seen += [job["id"] for job in page["jobs"]]
        stage.enqueue("charge")  # newer: not on a later page
        if page["next_cursor"] is None:
            break
        path = f"/jobs?limit=3&cursor={page['next_cursor']}"
    assert seen == sorted(ids, reverse=True)
    assert "payload" not in page["jobs"][0]


def test_a_list_can_be_narrowed_by_state_queue_and_task(stage: Stage, api: Client) -> None:
    running, _ = stage.running(queue="busy")
    dead, dead_token = stage.running(queue="busy")
    stage.verbs.fail([(dead, dead_token)], dead=[True]).run(stage.conn)
    again, again_token = stage.running(queue="busy")
    stage.verbs.fail([(again, again_token)], dead=[True]).run(stage.conn)
    stage.verbs.requeue([again]).run(stage.conn)
    waiting = str(stage.enqueue("charge", queue="billing"))
    other = str(stage.enqueue("ship", queue="billing"))
    later = str(stage.enqueue("charge", delay_seconds=60))

    def ids(query: str) -> list[str]:
        return [job["id"] for job in api.get(f"/jobs?{query}").body["jobs"]]

    assert ids("state=running") == [str(running)]
    assert ids("state=failed") == [str(dead)]
    assert ids("state=scheduled") == [later]
    assert sorted(ids("queue=billing")) == sorted([other, waiting])
    assert ids("queue=billing&task=charge") == [waiting]
    assert ids("state=queued&queue=busy") == [str(again)]
    assert ids("state=succeeded") == ids("state=quarantined") == ids("task=none") == []


def test_a_failed_job_that_was_requeued_takes_no_place_on_a_page_of_failed_ones(
    stage: Stage, api: Client
) -> None:
    for _ in range(3):
        job_id, token = stage.running()
        stage.verbs.fail([(job_id, token)], dead=[True]).run(stage.conn)
    newest, second = (job["id"] for job in api.get("/jobs?state=failed&limit=2").body["jobs"])
    stage.verbs.requeue([UUID(newest)]).run(stage.conn)
    page = api.get("/jobs?state=failed&limit=1").body
    assert [job["id"] for job in page["jobs"]] == [second]


def test_a_job_that_is_not_there_is_not_found_whatever_is_asked(api: Client) -> None:
    missing = uuid4()
    for answer in (
        api.get(f"/jobs/{missing}"),
        api.post(f"/jobs/{missing}/retry"),
        api.post(f"/jobs/{missing}/cancel"),
    ):
        assert answer.problem(404, "job_not_found")["job_id"] == str(missing)
    api.get("/jobs/7").problem(422, "invalid_request")
    api.get("/nothing").problem(404, "not_found")
    api("DELETE", "/jobs").problem(405, "method_not_allowed")


def test_retry_makes_a_scheduled_job_due_and_gives_a_dead_one_another_life(
    stage: Stage, api: Client
) -> None:
    later = stage.enqueue(delay_seconds=60)
    assert api.post(f"/jobs/{later}/retry").body == {"id": str(later), "outcome": "due"}
    dead, token = stage.running(queue="other")
    stage.verbs.fail([(dead, token)], dead=[True]).run(stage.conn)
    assert api.post(f"/jobs/{dead}/retry").body == {"id": str(dead), "outcome": "requeued"}
    problem = api.post(f"/jobs/{dead}/retry").problem(409, "wrong_state")
    assert problem["state"] == "queued"


def test_cancel_ends_a_waiting_job_asks_a_running_one_and_is_harmless_again(
    stage: Stage, api: Client
) -> None:
    waiting = stage.enqueue()
    answer = api.post(f"/jobs/{waiting}/cancel", {"reason": "customer left"})
    assert answer.body == {"id": str(waiting), "outcome": "cancelled"}
    assert stage.job(waiting)["error"] == {"reason": "customer left"}
    assert api.post(f"/jobs/{waiting}/cancel").body["outcome"] == "finished"
    running, _ = stage.running()
    assert api.post(f"/jobs/{running}/cancel").body["outcome"] == "requested"
    assert stage.job(running)["cancel_reason"] == "cancelled"
    api.post(f"/jobs/{running}/cancel", {"why": "?"}).problem(422, "invalid_request")


def test_depth_says_how_much_waits_where(stage: Stage, api: Client) -> None:
    assert api.get("/queue/depth").body["queues"] == []
    stage.running(queue="mail")
    stage.enqueue(queue="billing")
    stage.enqueue(queue="billing", priority=5)
    stage.enqueue(queue="billing", delay_seconds=60)
    stage.verbs.pause("mail").run(stage.conn)
    counts = {"queued": 0, "scheduled": 0, "running": 0, "quarantined": 0, "capped": False}
    assert api.get("/queue/depth").body == {
        "queues": [
            {**counts, "queue": "billing", "paused": False, "queued": 2, "scheduled": 1},
            {**counts, "queue": "mail", "paused": True, "running": 1},
        ],
        **counts,
        "queued": 2,
        "scheduled": 1,
        "running": 1,
    }


def test_depth_counts_only_so_far_and_says_so(stage: Stage, api: Client) -> None:
    many = "generate_series(1, 10001)"
    stage.execute(
        f"select {{schema}}.enqueue_many('a', array(select {{schema}}.new_id() from {many}), "
        f"(select jsonb_agg('{{}}'::jsonb) from {many}))"
    )
    (queue,) = api.get("/queue/depth").body["queues"]
    assert (queue["queued"], queue["capped"]) == (10_000, True)


APP = """
from faultline import App

app = App()

@app.task(queue="billing", max_attempts=2)
def charge(order_id: int) -> None: ...
"""


def test_with_an_app_its_defaults_and_its_checks_apply(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    with Serving(stage.url, "api", "shop:app", home=tmp_path) as serving:
        job_id = UUID(serving.client.post("/jobs", CHARGE).body["id"])
        job = stage.job(job_id)
        assert (job["queue"], job["max_attempts"]) == ("billing", 2)
        wrong = {"task": "charge", "payload": {"order": 7}}
        problem = serving.client.post("/jobs", wrong).problem(422, "invalid_argument")
        assert "order_id" in problem["detail"]
        problem = serving.client.post("/jobs/batch", {"jobs": [CHARGE, wrong]}).problem(
            422, "invalid_request"
        )
        assert problem["errors"][0]["field"] == "jobs.1"
        assert serving.client.post("/jobs", {"task": "elsewhere"}).status == 201


def test_openapi_describes_every_route_with_an_example(api: Client) -> None:
    spec = api.get("/openapi.json").body
    assert {"/health", "/jobs", "/jobs/batch", "/jobs/{job_id}", "/queue/depth"} <= set(
        spec["paths"]
    )
    for path, methods in spec["paths"].items():
        for method, route in methods.items():
            assert route.get("description"), (method, path)
    examples = ("NewJob", "Batch", "Reason", "Accepted", "Changed", "Overview", "Depth", "Health")
    for name in (*examples, "Lease", "Worker", "Refusal", "Moment", "Risk"):
        assert spec["components"]["schemas"][name]["examples"], name
