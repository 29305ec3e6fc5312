"""Tasks: what `@app.task` registers, and how its jobs are sent, one at a time and in bulk."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

import faultline
from faultline import (
    App,
    Backoff,
    Context,
    DuplicateTask,
    IdempotencyConflict,
    InvalidArgument,
    PayloadTooLarge,
    WrongArguments,
)
from faultline.enqueueing import CHUNK
from tests.stage import Stage

NOBODY = "postgresql://nobody@127.0.0.1:1/none"  # whoever talks to it fails


@pytest.fixture
def app(stage: Stage) -> Iterator[App]:
    with App(stage.url) as app:
        yield app


def stored(stage: Stage, job_id: UUID) -> dict[str, Any]:
    columns = (
        "task, payload, headers, max_attempts, max_crashes, lease_seconds, backoff_seconds, "
        "backoff_cap_seconds"
    )
    row = stage.execute(
        f"select {columns}, queue, priority from {{schema}}.job join {{schema}}.lane using (lane) "
        "where id = %s",
        job_id,
    )[0]
    return dict(zip([*columns.split(", "), "queue", "priority"], row, strict=True))


# ── registration ─────────────────────────────────────────────────────────────────────────────────


def test_a_task_is_known_by_the_name_of_its_function_and_still_is_that_function() -> None:
    app = App(NOBODY)

    @app.task
    def resize(path: str, width: int = 100) -> str:
        """Make it smaller."""
        return f"{path} {width}"

    @app.task(queue="billing", name="shop.charge", timeout_seconds=9)
    async def charge(ctx: Context, order_id: int) -> int:
        return order_id

    assert dict(app.tasks) == {"resize": resize, "shop.charge": charge}
    assert app.queues == ["billing", "default"]
    assert (resize.name, resize.queue, resize.is_async, resize.wants_context) == (
        "resize", "default", False, False,
    )  # fmt: skip
    assert (charge.name, charge.queue, charge.is_async, charge.wants_context) == (
        "shop.charge", "billing", True, True,
    )  # fmt: skip
    assert (resize.timeout_seconds, charge.timeout_seconds) == (None, 9.0)
    assert resize("cat.png") == "cat.png 100"
    assert asyncio.run(charge(Context(uuid4(), 1), 7)) == 7
    assert resize.__doc__ == "Make it smaller."
    assert "test_tasks.py:" in repr(resize)
    with pytest.raises(TypeError):
        app.tasks["other"] = resize


def test_a_type_defined_beside_its_task_in_a_function_is_found() -> None:
    app = App(NOBODY)

    @dataclass
    class Local:
        n: int

    @app.task
    def bare(x: Local) -> None: ...

    @app.task(queue="q")
    def called(x: Local) -> None: ...

    for task in (bare, called):
        assert task.arguments.load({"x": {"n": 1}}) == {"x": Local(1)}


def test_two_tasks_of_one_name_are_refused_with_both_places() -> None:
    app = App(NOBODY)

    @app.task
    def charge() -> None: ...

    first = charge.place
    with pytest.raises(DuplicateTask) as caught:

        @app.task(name="charge")
        def other() -> None: ...

    assert first in str(caught.value)
    assert caught.value.places[0] == first
    assert caught.value.places[1].startswith(f"{__file__}:")
    assert app.tasks["charge"] is charge


def generator() -> Iterator[int]:
    yield 1


class Thing:
    pass


@pytest.mark.parametrize(
    ("handler", "options", "sentence"),
    [
        (lambda: None, {}, "<lambda> has no name to be found by: give it one"),
        (functools.partial(print), {}, "must have 1 to 255 characters"),
        (generator, {}, "task 'generator' is a generator"),
        (Thing, {}, "task 'Thing' is not a function"),
        (7, {"name": "seven"}, "task 'seven' is not a function"),
        (print, {"name": "x" * 256}, "must have 1 to 255 characters"),
        (stored, {"queue": ""}, "option queue is '', it must be text of 1 to 128 characters"),
        (stored, {"max_attempts": 0}, "option max_attempts is 0, it must be a whole number from 1"),
        (stored, {"max_crashes": True}, "option max_crashes is True"),
        (stored, {"lease_seconds": 0}, "option lease_seconds is 0, it must be seconds from 0.001"),
        (stored, {"priority": 1.5}, "option priority is 1.5, it must be a whole number"),
        (stored, {"retry": 3}, "option retry is 3, it must be a Backoff"),
        (stored, {"timeout_seconds": 0}, "timeout_seconds is 0, it must be more, or None"),
        (stored, {"timeout_seconds": "9"}, "timeout_seconds is '9', it must be seconds from 0"),
    ],
)
def test_what_cannot_be_a_task_is_refused_where_it_is_written(
    handler: Any, options: dict[str, Any], sentence: str
) -> None:
    app = App(NOBODY)
    with pytest.raises(InvalidArgument) as caught:
        app.task(**options)(handler)
    assert sentence in str(caught.value)
    assert not app.tasks


@pytest.mark.parametrize(
    ("base", "cap"), [(-1, 300), (2, float("nan")), ("2", 300), (True, 300), (2, 2e9)]
)
def test_a_backoff_that_makes_no_sense_is_refused(base: Any, cap: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"Backoff: (base|cap) is .*, it must be seconds"):
        Backoff(base, cap)


def test_what_a_handler_raises_to_decide_carries_seconds() -> None:
    assert faultline.Retry(after=timedelta(minutes=1)).after == 60
    assert faultline.Retry().after is None
    assert faultline.Snooze(seconds=30).seconds == 30
    assert faultline.Cancel("sold out").reason == "sold out"
    for wrong in (-1, float("inf"), "soon", None):
        with pytest.raises(InvalidArgument, match="Snooze: seconds is"):
            faultline.Snooze(wrong)
    assert not issubclass(faultline.Retry, faultline.FaultlineError)


# ── one job ──────────────────────────────────────────────────────────────────────────────────────


def test_a_job_is_stored_with_what_its_task_says(app: App, stage: Stage) -> None:
    @app.task(queue="billing", max_attempts=7, max_crashes=2, lease_seconds=9, priority=3,
              retry=Backoff(base=1, cap=60))  # fmt: skip
    def charge(order_id: int, note: str = "") -> None: ...

    assert stored(stage, charge.enqueue(7).id) == {
        "task": "charge", "payload": {"order_id": 7}, "headers": None, "max_attempts": 7,
        "max_crashes": 2, "lease_seconds": 9.0, "backoff_seconds": 1.0, "backoff_cap_seconds": 60.0,
        "queue": "billing", "priority": 3,
    }  # fmt: skip


def test_options_of_one_enqueue_win_over_the_task_and_leave_it_alone(
    app: App, stage: Stage
) -> None:
    @app.task(queue="billing", max_attempts=7)
    def charge(order_id: int) -> None: ...

    vip = charge.options(queue="vip", priority=5, headers={"trace": "a"}, max_attempts=None)
    job = vip.options(priority=6, lease_seconds=2, retry=Backoff(3, 4)).enqueue(order_id=7)
    row = stored(stage, job.id)
    assert (row["queue"], row["priority"], row["headers"]) == ("vip", 6, {"trace": "a"})
    assert (row["max_attempts"], row["lease_seconds"], row["backoff_cap_seconds"]) == (7, 2.0, 4.0)
    assert stored(stage, charge.enqueue(7).id)["queue"] == "billing"


def test_a_delay_and_a_moment_schedule_the_job(app: App) -> None:
    @app.task
    def work() -> None: ...

    at = datetime(2100, 1, 1, tzinfo=UTC)
    assert work.options(delay_seconds=60).enqueue().status().state == "scheduled"
    assert work.options(delay_seconds=timedelta(hours=1)).enqueue().status().state == "scheduled"
    assert work.options(run_at=at).enqueue().status().next_run_at == at
    assert work.enqueue().status().state == "queued"


def test_an_idempotency_key_gives_the_first_job_back_and_no_other_payload(app: App) -> None:
    @app.task
    def charge(order_id: int) -> None: ...

    once = charge.options(idempotency_key="order-7")
    first = once.enqueue(7)
    assert once.enqueue(order_id=7) == first
    with pytest.raises(IdempotencyConflict):
        once.enqueue(8)


def test_the_async_twin_does_the_same(app: App, stage: Stage) -> None:
    @app.task
    def charge(order_id: int) -> None: ...

    async def main() -> list[Any]:
        one = await charge.options(idempotency_key="k").aenqueue(order_id=7)
        many = await charge.aenqueue_many([{"order_id": 1}, {"order_id": 2}])
        named = await app.aenqueue("charge", {"order_id": 3})
        return [one, *many, named]

    jobs = asyncio.run(main())
    assert [stored(stage, job.id)["payload"]["order_id"] for job in jobs] == [7, 1, 2, 3]


def test_wrong_arguments_and_options_are_refused_before_any_database_is_asked() -> None:
    app = App(NOBODY)

    @app.task
    def charge(order_id: int) -> None: ...

    for wrong in (
        lambda: charge.enqueue("7"),
        lambda: charge.enqueue(),
        lambda: charge.enqueue(1, 2),
    ):
        with pytest.raises(TypeError, match="charge"):
            wrong()
    with pytest.raises(InvalidArgument, match="argument 'order_id'"):
        app.enqueue("charge", {"order_id": object()})
    with pytest.raises(WrongArguments, match="argument 'order_id'"):
        asyncio.run(charge.aenqueue("7"))
    with pytest.raises(WrongArguments, match="item 1: task 'charge': argument 'order_id' is 'x'"):
        charge.enqueue_many([{"order_id": 1}, {"order_id": "x"}])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"colour": "red"}, "unknown option colour: the options are queue, priority, delay_sec"),
        ({"priority": "high"}, "option priority is 'high', it must be a whole number"),
        ({"priority": 2**31}, "option priority is 2147483648"),
        ({"delay_seconds": -1}, "option delay_seconds is -1, it must be seconds from 0"),
        ({"run_at": datetime(2100, 1, 1)}, "it must be a datetime with a time zone"),
        ({"run_at": "tomorrow"}, "option run_at is 'tomorrow'"),
        ({"idempotency_key": ""}, "option idempotency_key is '', it must be text of 1 to 255"),
        ({"headers": [1]}, "option headers is [1], it must be a dict"),
        ({"headers": {"a": object()}}, "option headers at ['a'] is of type object"),
        ({"queue": "x" * 129}, "it must be text of 1 to 128 characters"),
        ({"notify": 1}, "option notify is 1, it must be True or False"),
    ],
)
def test_an_option_that_is_wrong_is_one_sentence_at_once(
    options: dict[str, Any], sentence: str
) -> None:
    app = App(NOBODY)

    @app.task
    def charge(order_id: int) -> None: ...

    for use in (
        lambda: charge.options(**options),
        lambda: app.enqueue("charge", {"order_id": 1}, **options),
        lambda: app.enqueue("unknown", {}, **options),
    ):
        with pytest.raises(InvalidArgument) as caught:
            use()
        assert sentence in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_payload_over_the_limit_is_refused_by_the_database(app: App) -> None:
    @app.task
    def work(text: str) -> None: ...

    with pytest.raises(PayloadTooLarge, match="store the data elsewhere"):
        work.enqueue(text="x" * 2_000_000)


# ── many ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_batch_keeps_the_order_of_its_items_whatever_their_options(
    app: App, stage: Stage
) -> None:
    @app.task
    def charge(order_id: int) -> None: ...

    special = charge.options(priority=5, headers={"a": [1]})
    items: list[Any] = [
        {"order_id": 0},
        special.options(idempotency_key="k").item(order_id=1),
        {"order_id": 2},
        special.item(3),
        charge.item(4),
    ]
    jobs = charge.options(queue="vip").enqueue_many(iter(items))
    rows = [stored(stage, job.id) for job in jobs]
    assert [row["payload"]["order_id"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["priority"] for row in rows] == [0, 5, 0, 5, 0]
    assert {row["queue"] for row in rows} == {"vip"}
    assert special.options(queue="vip", idempotency_key="k").enqueue(1) == jobs[1]
    assert stage.violations() == []


def test_a_batch_larger_than_a_call_is_still_all_or_nothing(app: App, stage: Stage) -> None:
    @app.task
    def work(n: int) -> None: ...

    count = 2 * CHUNK + 1
    jobs = work.enqueue_many({"n": n} for n in range(count))
    assert len({job.id for job in jobs}) == count
    assert stored(stage, jobs[-1].id)["payload"] == {"n": count - 1}
    work.options(idempotency_key="taken").enqueue(-1)
    refused = [*({"n": n} for n in range(CHUNK)), work.options(idempotency_key="taken").item(5)]
    with pytest.raises(IdempotencyConflict):
        work.enqueue_many(refused)
    assert stage.value("select count(*) from {schema}.job") == count + 1


def test_an_empty_batch_is_no_batch(app: App, stage: Stage) -> None:
    @app.task
    def work(n: int) -> None: ...

    assert work.enqueue_many([]) == []
    assert asyncio.run(work.aenqueue_many([])) == []
    assert work.options(connection=stage.conn).enqueue_many([]) == []


def test_a_batch_that_cannot_be_meant_is_refused() -> None:
    app = App(NOBODY)

    @app.task
    def work(n: int) -> None: ...

    @app.task
    def other(n: int) -> None: ...

    for batch, items, sentence in (
        (work, [7], "item 0 is 7: give a dict with the arguments, or work.item"),
        (work, [{"n": 1}, other.item(2)], "item 1 is one of task 'other', this is 'work'"),
        (work, [work.options(connection=1).item(2)], "item 0 has a connection"),
        (work.options(idempotency_key="k"), [{"n": 1}], "idempotency_key names one job"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            batch.enqueue_many(items)
        assert sentence in str(caught.value)


def test_items_with_the_same_options_go_in_one_call(app: App) -> None:
    from faultline.enqueueing import Batch

    @app.task
    def work(n: int) -> None: ...

    keyed = [work.options(idempotency_key=str(n)).item(n) for n in range(10)]
    batch = Batch(work, {}, [*keyed, {"n": 11}, work.options(priority=0).item(12)])
    assert len(batch.calls(app._producer)) == 1
    batch = Batch(work, {}, [*keyed, *(work.options(priority=1).item(n) for n in range(10))])
    assert len(batch.calls(app._producer)) == 2
