"""The service keeps to its OpenAPI: schemathesis over every operation, and what it once found.

`make contract` tries more. The stream is not among its operations, since it has no end:
test_service_inspector.py has it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from faultline import App
from faultline.service import service
from proofs.contract import try_all
from tests.serving import Client, served
from tests.stage import Stage

CHARGE = {"task": "charge", "payload": {"order_id": 7}}


@pytest.fixture
def api(stage: Stage) -> Iterator[Client]:
    with served(service(App(stage.url))) as client:
        yield client


def test_no_request_makes_it_fail_or_say_what_it_does_not_document(stage: Stage) -> None:
    tried = try_all(stage.url, examples=8, seed=1)
    assert tried.held, tried.said
    spec = service(App(stage.url)).openapi()
    operations = [path for path, methods in spec["paths"].items() for _ in methods]
    assert tried.operations == len(operations) - 1, tried.said
    assert tried.cases > 500
    assert stage.value("select count(*) from {schema}.job") > 50
    assert stage.violations() == []


def test_every_operation_documents_its_problems_in_their_own_shape(api: Client) -> None:
    spec = api.get("/openapi.json").body
    schemas = spec["components"]["schemas"]
    assert set(schemas["Problem"]["required"]) == {"type", "title", "status", "detail"}
    assert "HTTPValidationError" not in schemas
    for path, methods in spec["paths"].items():
        for method, route in methods.items():
            said = route["responses"]
            if path == "/livez":  # says one thing to everybody
                assert set(said) == {"200"}
                continue
            assert "503" in said, (method, path)
            if path != "/health":
                assert {"401", "403", "429"} <= set(said), (method, path)
            for status in set(said) - {"200", "201"}:
                body = said[status]["content"]["application/problem+json"]
                assert body["schema"] == {"$ref": "#/components/schemas/Problem"}, (method, path)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"backoff_cap_seconds": False}, "backoff_cap_seconds"),
        ({"delay_seconds": "5"}, "delay_seconds"),
        ({"run_at": 0}, "run_at"),
        ({"run_at": "1700000000"}, "run_at"),
        ({"max_crashes": 1.5}, "max_crashes"),
        ({"max_crashes": 1e300}, "max_crashes"),
    ],
)
def test_what_only_looks_like_the_right_type_is_refused(
    api: Client, change: dict[str, object], field: str
) -> None:
    problem = api.post("/jobs", {**CHARGE, **change}).problem(422, "invalid_request")
    assert [error["field"] for error in problem["errors"]] == [field]


def test_a_text_with_a_nul_is_a_wrong_field(stage: Stage, api: Client) -> None:
    job_id = stage.enqueue()
    cancel = api.post(f"/jobs/{job_id}/cancel", {"reason": "a\0b"})
    for answer in (
        cancel,
        *(api.post("/jobs", {**CHARGE, name: "a\0b"}) for name in ("task", "queue")),
        api.post("/jobs", {**CHARGE, "idempotency_key": "a\0b"}),
        api.get("/jobs?task=a%00b"),
    ):
        assert len(answer.problem(422, "invalid_request")["errors"]) == 1
    assert stage.state(job_id) == "queued"


def test_a_whole_number_may_be_written_with_a_point(stage: Stage, api: Client) -> None:
    answer = api.post("/jobs", {**CHARGE, "priority": 5.0, "max_attempts": 2.0, "delay_seconds": 1})
    assert answer.status == 201
    assert stage.execute("select priority, max_attempts from {schema}.jobs") == [(5, 2)]


def test_a_method_that_a_path_does_not_have_is_said_with_those_that_it_has(api: Client) -> None:
    for method, path, allowed in (
        ("OPTIONS", "/jobs", "GET, POST"),
        ("GET", "/jobs/batch", "POST"),
        ("DELETE", "/jobs/01980f2e-6c1b-7c3a-9d55-0b6f5b1e7a42", "GET"),
    ):
        answer = api(method, path)
        answer.problem(405, "method_not_allowed")
        assert answer.headers["allow"] == allowed
