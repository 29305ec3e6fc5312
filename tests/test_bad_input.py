"""Wrong arguments: one clear sentence each, and nothing written, lost or half done.

Where there is a Python way to say the wrong thing it is used; the rest goes in as plain SQL,
because any driver may call the functions. test_bad_connection.py has the databases that are not
there.
"""

from __future__ import annotations

import decimal
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
import pytest

from faultline.errors import InvalidArgument, PayloadTooLarge, SchemaMismatch
from faultline.protocol import Call, Protocol
from tests.stage import Stage

pytestmark = pytest.mark.both_servers
NAN, INFINITE = float("nan"), float("inf")


def written(stage: Stage) -> dict[str, int]:
    """How many rows there are in each place that a verb may write to."""
    places = (
        "job",
        "ready",
        "scheduled",
        "lease",
        "attempt",
        "refusal",
        "quarantine",
        "idempotency",
    )
    counts = {p: stage.value(f"select count(*) from {{schema}}.{p}") for p in places}
    return {place: rows for place, rows in counts.items() if rows}


def rejected(stage: Stage, call: Callable[[], Call[Any]] | Call[Any], *facts: str) -> None:
    """The call raises InvalidArgument with these facts in one line, and writes nothing."""
    before = written(stage)
    with pytest.raises(InvalidArgument) as caught:
        (call if isinstance(call, Call) else call()).run(stage.conn)
    said = str(caught.value)
    assert "\n" not in said
    for fact in facts:
        assert fact in said, said
    assert written(stage) == before


def in_sql(statement: str, *parameters: Any) -> Call[list[tuple[Any, ...]]]:
    text = f"select * from faultline.{statement}"
    return Call("faultline", statement, text, parameters, lambda rows: rows)


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────

CIRCULAR: list[Any] = []
CIRCULAR.append(CIRCULAR)
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]
NOT_JSON: dict[str, tuple[Any, str]] = {
    "object": (object(), "object is not JSON serializable"),
    "NaN": (NAN, "not JSON compliant"),
    "infinite": (-INFINITE, "not JSON compliant"),
    "set": ({1}, "set is not JSON serializable"),
    "bytes": (b"x", "bytes is not JSON serializable"),
    "datetime": (datetime(2026, 1, 1, tzinfo=UTC), "datetime is not JSON serializable"),
    "decimal": (decimal.Decimal(1), "Decimal is not JSON serializable"),
    "tuple key": ({(1, 2): 3}, "keys must be"),
    "circular": (CIRCULAR, "Circular reference"),
    "too deep": (DEEP, "recursion"),
    "lone surrogate": ("\ud800", "surrogates not allowed"),
    "NUL": ("a\u0000b", "\\u0000"),
}


@pytest.mark.parametrize("name", NOT_JSON)
def test_what_is_not_json_is_rejected_wherever_json_goes_in(stage: Stage, name: str) -> None:
    value, fact = NOT_JSON[name]
    verbs, attempt = stage.verbs, stage.running()
    new_id = stage.value("select {schema}.new_id()")
    rejected(stage, lambda: verbs.enqueue("t", {"deep": [value]}), fact)
    rejected(stage, lambda: verbs.enqueue("t", value), fact)
    rejected(stage, lambda: verbs.enqueue("t", headers={"h": value}), fact)
    rejected(stage, lambda: verbs.enqueue_many("t", [new_id], [value]), fact)
    rejected(stage, lambda: verbs.complete([attempt], [value]), fact)
    rejected(stage, lambda: verbs.complete_one(*attempt, value), fact)
    rejected(stage, lambda: verbs.fail([attempt], [value]), fact)
    assert stage.verbs.complete([attempt], [1]).run(stage.conn) == []


def test_keys_that_are_numbers_become_text_as_json_has_it(stage: Stage) -> None:
    job_id = stage.enqueue(payload={7: "a", None: "b", False: "c"})
    assert stage.job(job_id)["payload"] == {"7": "a", "null": "b", "false": "c"}


def test_a_payload_over_the_limit_is_refused_alone_and_among_many(stage: Stage) -> None:
    limit = 1_048_576
    big = {"text": "x" * limit}
    ids = [row[0] for row in stage.execute("select {schema}.new_id() from generate_series(1, 3)")]
    for call in (
        stage.verbs.enqueue("t", big, idempotency_key="k"),
        stage.verbs.enqueue_many("t", ids, [{}, big, {}], idempotency_keys=list("abc")),
    ):
        with pytest.raises(PayloadTooLarge, match=rf"has 104\d{{4}} bytes .*limit is {limit}"):
            call.run(stage.conn)
    assert written(stage) == {}
    many_small = [{"text": "x" * 400_000}] * 3  # together over it, each within
    assert stage.verbs.enqueue_many("t", ids, many_small).run(stage.conn) == ids
    with pytest.raises(PayloadTooLarge):  # in a queue that is known
        stage.verbs.enqueue("t", big, job_id=stage.value("select {schema}.new_id()")).run(
            stage.conn
        )


def test_the_payload_limit_can_be_raised(stage: Stage) -> None:
    stage.execute("update {schema}.setting set payload_limit_bytes = 3000000")
    job_id = stage.enqueue(payload="x" * 2_000_000)
    assert len(stage.job(job_id)["payload"]) == 2_000_000


def test_the_payload_limit_can_be_lowered_to_what_is_let_through_unseen(stage: Stage) -> None:
    with pytest.raises(psycopg.errors.CheckViolation, match="at_least_2048_bytes"):
        stage.execute("update {schema}.setting set payload_limit_bytes = 2047")
    stage.execute("update {schema}.setting set payload_limit_bytes = 2048")
    stage.enqueue()  # its queue is known now
    size = "select pg_column_size(%s::jsonb)"
    for length, fits in ((2_030, True), (2_070, False)):
        payload = "x" * length
        assert (stage.value(size, json.dumps(payload)) <= 2048) is fits
        job_id = stage.value("select {schema}.new_id()")
        call = stage.verbs.enqueue("t", payload, job_id=job_id)
        if fits:
            assert call.run(stage.conn) == job_id
        else:
            with pytest.raises(PayloadTooLarge):
                call.run(stage.conn)
            assert stage.value("select count(*) from {schema}.job where id = %s", job_id) == 0


# ── the options of a job ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        *(({"delay_seconds": s}, "delay_seconds is") for s in (-1, NAN, INFINITE, -INFINITE, 2e10)),
        *(({"lease_seconds": s}, "lease_seconds is") for s in (0, -1, NAN, INFINITE, 2e6)),
        *(({"backoff_seconds": s}, "backoff_seconds is") for s in (-1, NAN, INFINITE)),
        *(({"backoff_cap_seconds": s}, "backoff_cap_seconds") for s in (-1, NAN, INFINITE)),
        *(({"max_attempts": n}, "max_attempts is") for n in (0, -1)),
        ({"max_crashes": 0}, "max_crashes is 0"),
        *(({"run_at": t}, "run_at is") for t in ("infinity", "-infinity", "290000-01-01")),
        ({"run_at": "soon"}, "soon"),
        *(({"queue": name}, "1 to 128 characters") for name in ("", "q" * 129)),
        ({"queue": "a\x00b"}, "NUL"),
        ({"queue": "\ud800"}, "not Unicode"),
        ({"priority": 2**40}, "out of range"),
        ({"priority": "high"}, "high"),
    ],
    ids=str,
)
def test_an_option_out_of_its_range_is_rejected(
    stage: Stage, options: dict[str, Any], fact: str
) -> None:
    new_id = stage.value("select {schema}.new_id()")
    rejected(stage, stage.verbs.enqueue("t", **options), fact)
    rejected(stage, stage.verbs.enqueue_many("t", [new_id], [{}], **options), fact)
    assert stage.queues() == []


def test_a_moment_without_a_time_zone_is_rejected_because_nobody_knows_when_it_is(
    stage: Stage,
) -> None:
    with pytest.raises(InvalidArgument, match="without a time zone"):
        stage.enqueue(run_at=datetime(2030, 1, 1))


@pytest.mark.parametrize("task", ["", "t" * 256])
def test_a_task_without_a_usable_name_is_rejected(stage: Stage, task: str) -> None:
    rejected(stage, stage.verbs.enqueue(task), "task name", "1 to 255 characters")
    rejected(stage, stage.verbs.enqueue_many(task, [], []), "task name")


@pytest.mark.parametrize("key", ["", "k" * 256])
def test_an_idempotency_key_without_a_usable_length_is_rejected(stage: Stage, key: str) -> None:
    new_id = stage.value("select {schema}.new_id()")
    rejected(stage, stage.verbs.enqueue("t", idempotency_key=key), "1 to 255 characters")
    many = stage.verbs.enqueue_many("t", [new_id], [{}], idempotency_keys=[key])
    rejected(stage, many, "1 to 255 characters")


@pytest.mark.parametrize("name", ["colour", "idempotency_keys", "id"])
def test_an_unknown_option_is_named_together_with_those_there_are(stage: Stage, name: str) -> None:
    rejected(stage, lambda: stage.verbs.enqueue("t", **{name: 1}), name, "lease_seconds")


def test_the_option_of_one_job_is_none_of_a_batch(stage: Stage) -> None:
    rejected(
        stage,
        lambda: stage.verbs.enqueue_many("t", [], [], idempotency_key="k"),
        "unknown option idempotency_key:",
        "idempotency_keys",
    )


@pytest.mark.parametrize(
    "arguments",
    [
        "null",
        "'t', null",
        "'t', queue => null",
        "'t', priority => null",
        "'t', delay_seconds => null",
        "'t', max_attempts => null",
        "'t', max_crashes => null",
        "'t', lease_seconds => null",
        "'t', backoff_seconds => null",
        "'t', backoff_cap_seconds => null",
    ],
)
def test_a_null_from_sql_is_rejected_and_not_taken_for_a_value(
    stage: Stage, arguments: str
) -> None:
    rejected(stage, in_sql(f"enqueue({arguments})"))


@pytest.mark.parametrize(
    "arguments",
    [
        "'t', array[{id}, {id}], '[1]'",
        "'t', array[{id}], '[1, 2]'",
        "'t', array[{id}], '{{\"a\": 1}}'",
        "'t', array[{id}], null",
        "'t', null, '[1]'",
        "'t', array[{id}], '[1]', idempotency_keys => array['a', 'b']",
        "'t', array[{id}, {id}], '[1, 2]', idempotency_keys => array['a']",
    ],
)
def test_a_batch_whose_columns_do_not_match_is_rejected_whole(stage: Stage, arguments: str) -> None:
    rejected(stage, in_sql(f"enqueue_many({arguments.format(id='faultline.new_id()')})"), "as many")


def test_a_null_among_the_ids_gets_an_id(stage: Stage) -> None:
    [[ids]] = in_sql("enqueue_many('t', array[null, null]::uuid[], '[1, 2]')").run(stage.conn)
    assert len(set(ids)) == 2
    assert [stage.job(job_id)["payload"] for job_id in ids] == [1, 2]


# ── attempts ─────────────────────────────────────────────────────────────────────────────────────

SETTLING = {
    "complete": "",
    "fail": "",
    "snooze": ", array[1.0, 1.0]",
    "release": "",
    "cancel_attempt": "",
    "execute": "",
    "renew": "",
}


@pytest.mark.parametrize("verb", SETTLING)
def test_jobs_and_tokens_that_do_not_pair_up_are_rejected_and_the_leases_stay(
    stage: Stage, verb: str
) -> None:
    (a, first), (b, second) = stage.running(), stage.running()
    columns: list[tuple[list[UUID | None], list[int | None]]] = [
        ([a, b], [first]),
        ([a], [first, second]),
        ([a, b], []),
        ([a, None], [first, second]),
        ([a, b], [first, None]),
    ]
    for ids, tokens in columns:
        call = in_sql(f"{verb}(%s::uuid[], %s::bigint[]{SETTLING[verb]})", ids, tokens)
        rejected(stage, call, "job_ids and tokens")
    out_of_range = in_sql(f"{verb}(%s::uuid[], %s::bigint[]{SETTLING[verb]})", [a], [2**70])
    rejected(stage, out_of_range, "out of range")
    assert stage.state(a) == stage.state(b) == "running"
    assert in_sql(f"{verb}(null, null{', null' if SETTLING[verb] else ''})").run(stage.conn) == []


def test_what_is_said_about_attempts_is_said_about_each(stage: Stage) -> None:
    verbs, pair = stage.verbs, [stage.running(), stage.running()]
    rejected(stage, verbs.complete(pair, [1]), "as many elements")
    rejected(stage, verbs.complete(pair, [1, 2, 3]), "as many elements")
    rejected(stage, verbs.fail(pair, ["no"]), "as many elements")
    rejected(stage, verbs.fail(pair, delays=[1]), "as many elements")
    rejected(stage, verbs.fail(pair, dead=[True]), "as many elements")
    rejected(stage, verbs.snooze(pair, [1]), "as many elements")
    columns = ([pair[0][0]], [pair[0][1]])
    rejected(stage, in_sql("complete(%s, %s, '{\"a\": 1}')", *columns), "JSON array")
    assert verbs.complete(pair, [1, 2]).run(stage.conn) == []


@pytest.mark.parametrize("delay", [-1.0, NAN, INFINITE, -INFINITE, 2e10])
def test_a_delay_that_is_no_time_is_rejected_and_the_lease_stays(
    stage: Stage, delay: float
) -> None:
    good, bad = stage.running(), stage.running()
    rejected(stage, stage.verbs.fail([good, bad], delays=[1.0, delay]), "delay")
    rejected(stage, stage.verbs.snooze([good, bad], [1.0, delay]), "delay")
    assert stage.verbs.complete([good, bad]).run(stage.conn) == []


def twice(stage: Stage) -> tuple[tuple[UUID, int], tuple[UUID, int]]:
    """The same worker was leased the same job again, and brings its stale attempt along."""
    stale = stage.running("A")
    return stale, stage.take_over(stale[0], "A")


@pytest.mark.parametrize("verb", SETTLING)
def test_a_stale_attempt_beside_the_live_one_of_the_same_job_is_called_stale(
    stage: Stage, verb: str
) -> None:
    both = twice(stage)
    more = ([60.0, 60.0],) if verb == "snooze" else ()
    answers = getattr(stage.verbs, verb)(both, *more).run(stage.conn)
    refused = [a for a in answers if getattr(a, "verdict", "lost") == "lost"]
    assert [(answer.job_id, answer.token) for answer in refused] == [both[0]]
    assert [row[1] for row in stage.refusals(both[0][0])] == [both[0][1]]
    assert stage.violations() == []


def test_each_attempt_gets_its_own_error_and_delay_also_beside_a_stale_one(stage: Stage) -> None:
    both = twice(stage)
    stage.verbs.fail(both, ["stale", "live"], delays=[9e9, 60.0]).run(stage.conn)
    assert stage.reading.attempts(stage.conn, both[0][0])[-1]["error"] == "live"
    assert stage.job(both[0][0])["next_run_at"].year < 2100


def test_the_same_attempt_twice_in_a_batch_ends_once_and_is_not_stale(stage: Stage) -> None:
    attempt = stage.running()
    assert stage.verbs.complete([attempt, attempt], [1, 2]).run(stage.conn) == []
    assert stage.outcomes(attempt[0]) == [(1, "succeeded")]


# ── workers and operators ────────────────────────────────────────────────────────────────────────


def test_a_claim_for_no_lane_or_no_room_answers_with_nothing(stage: Stage) -> None:
    job_id = stage.enqueue()
    verbs, lanes = stage.verbs, [stage.value("select lane from {schema}.lane")]
    assert verbs.claim("A", []).run(stage.conn) == []
    assert verbs.claim("A", [-1, 2**31 - 1]).run(stage.conn) == []
    assert verbs.claim("A", lanes, max_jobs=0).run(stage.conn) == []
    assert in_sql("claim('A', null)").run(stage.conn)[0][0] is None
    assert in_sql("claim('A', array[null]::integer[])").run(stage.conn)[0][0] is None
    assert stage.state(job_id) == "queued"
    leases = in_sql("claim('A', %s, 5, array[null, 7]::bigint[])", lanes).run(stage.conn)
    assert leases[0][0] == [job_id]


@pytest.mark.parametrize("verb", ["claim('A', '{1}', ", "reclaim(", "promote("])
@pytest.mark.parametrize("max_jobs", ["-1", "null"])
def test_a_batch_of_less_than_nothing_or_without_end_is_rejected(
    stage: Stage, verb: str, max_jobs: str
) -> None:
    stage.enqueue()
    rejected(stage, in_sql(f"{verb}{max_jobs})"), "max_jobs is", "from 0 on")


def test_a_batch_larger_than_a_number_can_say_is_no_missing_installation(stage: Stage) -> None:
    for call in (stage.verbs.reclaim(2**40), stage.verbs.promote(2**40)):
        rejected(stage, call, "out of range")


@pytest.mark.parametrize("worker", ["", "w" * 256, None])
def test_a_worker_without_a_usable_name_is_rejected(stage: Stage, worker: Any) -> None:
    stage.enqueue()
    fact = "1 to 255 characters"
    rejected(stage, stage.verbs.claim(worker, [1]), fact)
    rejected(stage, stage.verbs.beat(worker, ["default"]), fact)
    rejected(stage, stage.verbs.sleep(worker, ["default"], 1), fact)


@pytest.mark.parametrize("seconds", [-1.0, NAN, INFINITE])
def test_a_sleep_that_is_no_time_is_rejected(stage: Stage, seconds: float) -> None:
    rejected(stage, stage.verbs.sleep("A", ["default"], seconds), "seconds is")


def test_pausing_a_queue_that_does_not_exist_is_rejected(stage: Stage) -> None:
    rejected(stage, stage.verbs.pause("nobody"), "there is no queue 'nobody'")


def test_a_verb_that_the_installation_does_not_have_says_to_migrate(stage: Stage) -> None:
    with pytest.raises(SchemaMismatch, match=r"'elsewhere'.* run `faultline migrate`"):
        Protocol("elsewhere").enqueue("t").run(stage.conn)
    stage.execute("drop function {schema}.snooze")
    with pytest.raises(SchemaMismatch, match="or not one of this version"):
        stage.verbs.snooze([stage.running()], [1.0]).run(stage.conn)
