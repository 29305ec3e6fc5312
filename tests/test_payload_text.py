"""The text of payloads is bounded: at enqueue on every path, and again by a claim.

`jsonb` stores a number such as 1e131071 in 16 bytes and prints 131,072. A job from before the
bound is made by moving its row: its payload is replaced, and its `payload_bytes` is unknown.
"""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import psycopg
import pytest

from faultline.errors import PayloadTooLarge
from tests.stage import Stage

pytestmark = pytest.mark.both_servers

MOST = 64 * 1024 * 1024  # bytes of text that a claim answers with
# Payloads that print much more than they store, and what enqueue says of each.
HUGE = {
    "a number of 131,072 digits": ("1e131071::numeric", "LF003"),
    "8,300 of them, more than the server can print": (
        "(select jsonb_agg(1e131071::numeric) from generate_series(1, 8300))",
        "LF003",
    ),
    "120 of them, stored in 2 kB": (
        "(select jsonb_agg(1e131071::numeric) from generate_series(1, 120))",
        "LF003",
    ),
    "a number with 16,383 decimals": ("round(1::numeric, 16383)", "LF003"),
    "a number with 4,301 digits": ("1e4300::numeric", "LF003"),
    "60,000 numbers of 4,300 digits": (
        "(select jsonb_agg(1e4299::numeric) from generate_series(1, 60000))",
        "LF004",
    ),
    "control characters": ("repeat(chr(1), 200000)", "LF004"),
    "plain text": ("repeat('a', 1048576)", "LF004"),
}
PATHS = {
    "enqueue": "select {schema}.enqueue('work', %s)",
    "enqueue with a key": "select {schema}.enqueue('work', %s, idempotency_key => 'k')",
    "enqueue with headers": "select {schema}.enqueue('work', '{{}}', headers => %s)",
    "enqueue_many": "select {schema}.enqueue_many('work', array[{schema}.new_id()], "
    "jsonb_build_array(%s))",
    "enqueue_many with keys": "select {schema}.enqueue_many('work', array[{schema}.new_id()], "
    "jsonb_build_array(%s), idempotency_keys => array['k'])",
    "enqueue_many with headers": "select {schema}.enqueue_many('work', array[{schema}.new_id()], "
    "'[1]', headers => %s)",
}


def as_before(stage: Stage, job_id: UUID, payload: str = "payload") -> None:
    """The job is one of the release before, with this payload."""
    stage.execute(
        f"update {{schema}}.job set payload = {payload}, payload_bytes = null where id = %s", job_id
    )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("made", HUGE)
def test_text_over_the_limit_is_refused_at_enqueue(stage: Stage, path: str, made: str) -> None:
    value, sqlstate = HUGE[made]
    statement = PATHS[path].replace("{{}}", "{}") % f"jsonb_build_object('x', {value})"
    with pytest.raises(psycopg.Error) as raised:
        stage.execute(statement)
    assert raised.value.sqlstate == sqlstate
    assert stage.value("select count(*) from {schema}.job") == 0


def test_compressed_payload_is_measured_as_text(stage: Stage) -> None:
    stage.execute("create table kept (payload jsonb)")
    stage.execute(
        "insert into kept select jsonb_build_object('x', jsonb_agg(1e4299::numeric)) "
        "from generate_series(1, 60000)"
    )
    with pytest.raises(psycopg.Error) as raised:
        stage.execute("select {schema}.enqueue('work', payload) from kept")
    assert raised.value.sqlstate == "LF004"


def test_largest_payload_passes_and_one_byte_more_is_refused(stage: Stage) -> None:
    largest = "x" * (1024 * 1024 - 2)  # and two quotes
    assert stage.state(stage.enqueue(payload=largest)) == "queued"
    with pytest.raises(PayloadTooLarge, match=r"1048577 bytes.* the limit is 1048576"):
        stage.enqueue(payload=largest + "x")
    with pytest.raises(PayloadTooLarge):
        stage.enqueue(payload=largest, headers={})


def test_number_of_4300_digits_passes_and_one_more_is_refused(stage: Stage) -> None:
    stage.execute("select {schema}.enqueue('work', to_jsonb(-1e4299::numeric))")
    with pytest.raises(psycopg.Error, match="more than 4,300 digits"):
        stage.execute(
            "select {schema}.enqueue_many('work', array[{schema}.new_id(), {schema}.new_id()], "
            "jsonb_build_array(1, -1e4300::numeric))"
        )
    assert stage.value("select count(*) from {schema}.job") == 1


def test_text_above_the_lowest_limit_is_refused_on_the_short_way(stage: Stage) -> None:
    """A job with an id, whose payload is stored in 1 kB and prints 6 kB."""
    stage.execute("update {schema}.setting set payload_limit_bytes = 2048")
    with pytest.raises(psycopg.Error) as raised:
        stage.execute(
            "select {schema}.enqueue('work', to_jsonb(repeat(chr(1), 1000)), "
            "id => {schema}.new_id())"
        )
    assert raised.value.sqlstate == "LF004"


def test_stored_size_above_the_limit_is_no_reason_to_refuse(stage: Stage) -> None:
    numbers = [1] * 300_000  # 900,000 bytes of text, four times as much as stored
    assert stage.state(stage.enqueue(payload=numbers)) == "queued"


def test_payload_limit_has_bounds(stage: Stage) -> None:
    for bytes_ in (2047, 16 * 1024 * 1024 + 1):
        with pytest.raises(psycopg.errors.CheckViolation):
            stage.execute(f"update {{schema}}.setting set payload_limit_bytes = {bytes_}")


@pytest.mark.parametrize("verb", ["claim", "claim_one"])
def test_job_too_large_for_any_claim_is_quarantined_and_neighbours_run(
    stage: Stage, verb: str
) -> None:
    poison, first, second = stage.enqueue(), stage.enqueue(), stage.enqueue()
    as_before(
        stage,
        poison,
        "jsonb_build_object('x', (select jsonb_agg(1e131071::numeric) "
        "from generate_series(1, 8300)))",
    )
    as_before(stage, first)
    claimed = [lease.job_id for lease in stage.claim(max_jobs=10 if verb == "claim" else 1)]
    assert claimed == ([first, second] if verb == "claim" else [first])
    assert stage.value("select state from {schema}.jobs where id = %s", poison) == "quarantined"
    (parked,) = stage.execute("select reason, evidence from {schema}.quarantined")
    assert parked[0] == "undeliverable"
    assert parked[1]["text_bytes"] > MOST
    assert stage.outcomes(poison) == []  # no attempt was made
    assert stage.violations() == []


def test_claim_answers_with_at_most_64_mib_and_leaves_the_rest_in_place(stage: Stage) -> None:
    payload = json.dumps("x" * 1_000_000)
    stage.execute("select {schema}.enqueue('work', %s::jsonb) from generate_series(1, 80)", payload)
    small = stage.enqueue()
    order = [row[0] for row in stage.execute("select job_id from {schema}.ready order by seq")]
    lanes = [lane.lane for lane in stage.verbs.lanes(["default"]).run(stage.conn)]
    claimed: list[UUID] = []
    while batch := raw_claim(stage, lanes, 100):
        ids, text, tokens = batch
        assert len(text) <= MOST
        assert len(json.loads(text)) == len(ids)
        assert set(tokens) == {1}, "no token was given out for a job that went back"
        claimed += ids
    assert claimed == order, "each job once, in order"
    assert claimed[-1] == small
    assert stage.violations() == []


@pytest.mark.parametrize("jobs", [1, 10])
def test_workers_are_notified_of_jobs_that_a_claim_had_to_leave(stage: Stage, jobs: int) -> None:
    poison = stage.enqueue()
    huge = "(select jsonb_agg(1e131071::numeric) from generate_series(1, 600))"
    as_before(stage, poison, huge)
    stage.execute("select {schema}.sleep('B', array['default'], 60)")
    idle = stage.connect()
    idle.execute("listen faultline")
    assert stage.claim("A", jobs) == []
    heard = next(idle.notifies(timeout=60), None)
    assert heard is not None
    assert heard.payload == "default"


def test_jobs_that_went_back_keep_place_token_and_counts(stage: Stage) -> None:
    job_id, token = stage.running()
    stage.verbs.release([(job_id, token)]).run(stage.conn)
    big = [stage.enqueue(payload="x" * 1_000_000) for _ in range(70)]
    before = stage.execute("select * from {schema}.ready order by seq")
    lanes = [lane.lane for lane in stage.verbs.lanes(["default"]).run(stage.conn)]
    batch = raw_claim(stage, lanes, 71)
    assert batch is not None
    assert batch[0][0] == job_id
    left = stage.execute("select * from {schema}.ready order by seq")
    assert left == before[len(batch[0]) :]
    assert {row[2] for row in left} < set(big)


def test_row_without_job_or_with_a_lease_is_quarantined_beside_large_ones(stage: Stage) -> None:
    large = [stage.enqueue(payload="x" * 1_000_000) for _ in range(66)]
    missing, leased = stage.enqueue(), stage.enqueue()
    stage.execute("delete from {schema}.job where id = %s", missing)
    forged = "insert into {schema}.lease select job_id, 7, seq, now() + '1 hour', now(), lane, 0, "
    stage.execute(
        forged + "0, 0, 30, true, 'B', null from {schema}.ready where job_id = %s", leased
    )
    claimed: list[UUID] = []
    while leases := stage.claim(max_jobs=100):
        claimed += [lease.job_id for lease in leases]
    assert claimed == large
    reasons = dict(stage.execute("select job_id, reason from {schema}.quarantined"))
    assert reasons == {missing: "job_missing", leased: "lease_already_held"}


def raw_claim(
    stage: Stage, lanes: list[int], jobs: int
) -> tuple[list[UUID], str, list[int]] | None:
    """Jobs, payloads as sent, and tokens of one claim; None if there is nothing."""
    row: tuple[Any, ...] = stage.execute(
        "select job_ids, payloads, tokens from {schema}.claim('A', %s, %s)", lanes, jobs
    )[0]
    return None if row[0] is None else (row[0], row[1], row[2])
