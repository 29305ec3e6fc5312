"""How far a lane has been read is remembered, and what was committed late is found all the same.

Method: a pump on a real session, one claim a step, by a clock that the test moves. A job is late
that is enqueued before others and committed while these are claimed: its seq is lower than where
the next claim starts. The backlog is longer than what is claimed, so that no claim comes back short
and looks anew because of that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from faultline.errors import InvalidArgument
from faultline.ids import Ids
from faultline.jobs import Lease
from faultline.observer import Observer
from faultline.worker.lanes import LONGEST_PAUSE_SECONDS, REFRESH_SECONDS, SWEEP_SHARE
from tests.stage import Stage
from tests.told import Told

pytestmark = pytest.mark.both_servers

BACKLOG = 100
# By which verb it claims → how many, and whether those before have ended by then.
VERBS = {"claim": (2, False), "claim_one": (1, False), "swap": (2, True)}
SEVERAL = ["claim", "swap"]


class Clock(Observer):
    """What a pump takes for the time: it stands but while a claim is made, and as the test says."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.claim_seconds = 0.0
        self.verbs: set[str] = set()

    def monotonic(self) -> float:
        return self.now

    def called(self, verb: str, _: float, *, failed: bool) -> None:
        assert not failed
        if verb in VERBS:
            self.verbs.add(verb)
            self.now += self.claim_seconds


class Reader:
    """A pump that claims, again and again."""

    def __init__(self, stage: Stage, clock: Clock, room: int, *, ends: bool) -> None:
        self._clock = clock
        self._ends = ends
        self._taken: list[Lease] = []
        self.pump = Told(stage, room, observer=clock)
        self.pump.on_start = self._taken.extend

    async def claims(self, *, seconds: float = 0.0) -> list[UUID]:
        """The jobs of its next claim, which takes so long."""
        if self._ends:
            self.pump.ends(self._taken)
        self._taken.clear()
        self._clock.claim_seconds = seconds
        await self.pump.step()
        assert self._taken, "the backlog is not empty"
        return [lease.job_id for lease in self._taken]


class Late:
    """A job that is enqueued now, and committed when it `comes`."""

    def __init__(self, stage: Stage, **options: Any) -> None:
        self._conn = stage.connect(isolation="read committed")
        self.job_id = stage.verbs.enqueue("work", **options).run(self._conn)

    def comes(self) -> None:
        self._conn.commit()


Scene = Callable[[Reader], Awaitable[None]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in ("lanes", "pump"):
        monkeypatch.setattr(f"faultline.worker.{module}.time", clock)
    return clock


def play(stage: Stage, clock: Clock, scene: Scene, verb: str = "claim", room: int = 0) -> None:
    """With a pump that claims by this verb; what comes late has been enqueued by now."""
    usual, ends = VERBS[verb]

    async def run() -> None:
        reader = Reader(stage, clock, room or usual, ends=ends)
        try:
            await scene(reader)
        finally:
            await reader.pump.close()

    stage.verbs.enqueue_many("work", Ids().many(BACKLOG), [{}] * BACKLOG).run(stage.conn)
    asyncio.run(run())
    assert verb in clock.verbs


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_committed_late_is_claimed_though_its_lane_never_becomes_empty(
    stage: Stage, clock: Clock, verb: str
) -> None:
    stage.running()  # so that the lane is there
    late = Late(stage)

    async def scene(reader: Reader) -> None:
        for _ in range(3):
            await reader.claims()
        late.comes()
        claimed = []
        for _ in range(10):
            clock.now += REFRESH_SECONDS / 5
            claimed += await reader.claims()
        assert late.job_id in claimed

    play(stage, clock, scene, verb)


@pytest.mark.parametrize("verb", VERBS)
def test_a_claim_does_not_walk_past_what_earlier_ones_have_left_dead(
    stage: Stage, clock: Clock, verb: str
) -> None:
    """What is there all the same, committed late, shows where it has begun."""
    stage.running()
    late = Late(stage)

    async def scene(reader: Reader) -> None:
        await reader.claims()
        late.comes()
        for _ in range(10):
            assert late.job_id not in await reader.claims()

    play(stage, clock, scene, verb)


@pytest.mark.parametrize("verb", SEVERAL)
def test_a_claim_begins_with_the_first_of_the_last_batch_not_behind_it(
    stage: Stage, clock: Clock, verb: str
) -> None:
    """Of a batch, some come back, and some that were enqueued among them are committed later."""
    stage.running()
    before = Late(stage)
    first = stage.enqueue()
    among = Late(stage)
    second = stage.enqueue()

    async def scene(reader: Reader) -> None:
        assert await reader.claims() == [first, second]
        before.comes()
        among.comes()
        claimed = await reader.claims()
        assert among.job_id in claimed
        assert before.job_id not in claimed

    play(stage, clock, scene, verb)


@pytest.mark.parametrize("verb", SEVERAL)
def test_each_lane_of_a_batch_is_read_on_from_its_own_first_job(
    stage: Stage, clock: Clock, verb: str
) -> None:
    before, jobs, among = [], [], []
    priorities = (9, 1)
    for priority in priorities:
        stage.running(priority=priority)
    for priority in priorities:
        before.append(Late(stage, priority=priority))
        jobs.append(stage.enqueue(priority=priority))
        among.append(Late(stage, priority=priority))
        jobs.append(stage.enqueue(priority=priority))

    async def scene(reader: Reader) -> None:
        assert sorted(await reader.claims()) == sorted(jobs)
        for late in (*before, *among):
            late.comes()
        claimed = await reader.claims()
        assert {late.job_id for late in among} <= set(claimed)
        assert not {late.job_id for late in before} & set(claimed)

    play(stage, clock, scene, verb, room=4)


# ── what sweeps may cost ─────────────────────────────────────────────────────────────────────────


LONG = 0.9  # seconds; the next claim comes before it is time for another sweep


async def sweeps(reader: Reader, clock: Clock, times: int, seconds: float) -> None:
    """So often, each in so long, and a second passes; other claims take no time."""
    for _ in range(times):
        await reader.claims(seconds=seconds)
        await reader.claims()
        clock.now += REFRESH_SECONDS


def test_sweeps_that_take_long_are_made_the_more_rarely(stage: Stage, clock: Clock) -> None:
    stage.running()
    late, took = Late(stage), 0.3

    async def scene(reader: Reader) -> None:
        await sweeps(reader, clock, 2, took)
        late.comes()
        assert late.job_id not in await reader.claims()
        clock.now += took / SWEEP_SHARE
        assert late.job_id in await reader.claims()

    play(stage, clock, scene)


def test_one_slow_sweep_is_a_stall_and_does_not_put_off_the_next(
    stage: Stage, clock: Clock
) -> None:
    stage.running()
    late = Late(stage)

    async def scene(reader: Reader) -> None:
        await sweeps(reader, clock, 1, LONG)
        late.comes()
        assert late.job_id in await reader.claims()

    play(stage, clock, scene)


def test_where_every_claim_takes_long_a_sweep_is_not_held_to_cost_more(
    stage: Stage, clock: Clock
) -> None:
    stage.running()
    late = Late(stage)

    async def scene(reader: Reader) -> None:
        for _ in range(20):
            await reader.claims(seconds=0.3)
        late.comes()
        claimed = []
        for _ in range(5):
            claimed += await reader.claims(seconds=0.3)
        assert late.job_id in claimed

    play(stage, clock, scene)


def test_however_long_sweeps_take_one_is_made_after_a_while(stage: Stage, clock: Clock) -> None:
    stage.running()
    late = Late(stage)

    async def scene(reader: Reader) -> None:
        await sweeps(reader, clock, 2, LONG)
        assert LONG / SWEEP_SHARE > LONGEST_PAUSE_SECONDS + 2 * REFRESH_SECONDS
        clock.now += LONGEST_PAUSE_SECONDS
        late.comes()
        assert late.job_id in await reader.claims()

    play(stage, clock, scene)


def test_who_is_told_of_a_job_sweeps_at_once_however_long_that_takes(
    stage: Stage, clock: Clock
) -> None:
    stage.running()
    late = Late(stage)

    async def scene(reader: Reader) -> None:
        await sweeps(reader, clock, 2, LONG)
        late.comes()
        assert late.job_id not in await reader.claims()
        reader.pump.hears("default")
        assert late.job_id in await reader.claims()

    play(stage, clock, scene)


# ── how many there may be ────────────────────────────────────────────────────────────────────────


def fill(stage: Stage, priorities: range, queue: str = "default") -> None:
    """A ready job of each of these priorities."""
    stage.execute(
        "select {schema}.enqueue('work', queue => %s, priority => p) "
        "from generate_series(%s::int, %s::int) p",
        queue,
        priorities.start,
        priorities.stop - 1,
    )


def asked_for(stage: Stage, *queues: str) -> list[int]:
    """The priorities of the lanes that a worker of these queues asks for."""
    return [lane.priority for lane in stage.verbs.lanes(queues or ["default"]).run(stage.conn)]


def cancel_all(stage: Stage) -> None:
    stage.execute("select {schema}.cancel(array(select job_id from {schema}.ready))")


def test_idle_lanes_are_left_out_where_there_are_many(stage: Stage) -> None:
    fill(stage, range(20))
    cancel_all(stage)
    assert asked_for(stage) == [*range(19, -1, -1)], "few lanes cost nothing"
    fill(stage, range(20, 21))
    assert asked_for(stage) == [20, 0], "and the lane of priority 0, so that the queue is known"
    cancel_all(stage)
    assert asked_for(stage) == [0]
    late = stage.enqueue(priority=7)
    assert asked_for(stage) == [7, 0]
    assert [lease.job_id for lease in stage.claim()] == [late]


def test_queue_without_priority_0_is_known_by_its_highest_lane(stage: Stage) -> None:
    fill(stage, range(-30, -5))
    cancel_all(stage)
    assert asked_for(stage) == [-6]


def test_history_of_a_job_outlives_the_use_of_its_lane(stage: Stage) -> None:
    job_id, token = stage.running(priority=5, max_attempts=1)
    stage.verbs.fail([(job_id, token)]).run(stage.conn)
    fill(stage, range(10, 40))
    assert 5 not in asked_for(stage)
    assert stage.state(job_id) == "failed"
    stage.verbs.requeue([job_id]).run(stage.conn)
    assert 5 in asked_for(stage)


def test_queue_has_at_most_1000_lanes_in_use(stage: Stage) -> None:
    fill(stage, range(1000))
    with pytest.raises(InvalidArgument, match="jobs of 1,000 priorities waiting"):
        stage.enqueue(priority=1000)
    with pytest.raises(InvalidArgument, match="jobs of 1,000 priorities waiting"):
        stage.verbs.enqueue_many("work", [uuid4()], [{}], priority=1000).run(stage.conn)
    with pytest.raises(InvalidArgument, match="jobs of 1,000 priorities waiting"):
        stage.enqueue(priority=1000, idempotency_key="k")
    stage.enqueue(priority=999)  # in use already
    stage.claim(max_jobs=2)
    stage.enqueue(priority=1000)  # lane 999 is idle now
    stage.enqueue(priority=1001, queue="another")


def test_first_hundred_lanes_are_never_refused(stage: Stage) -> None:
    stage.enqueue(priority=-1)
    cancel_all(stage)
    fill(stage, range(1000))
    stage.enqueue(priority=-1)
    assert len(asked_for(stage)) == 1000, (
        "the highest; the others are asked for when these are idle"
    )
    assert -1 not in asked_for(stage)


def test_lanes_of_other_queues_do_not_count(stage: Stage) -> None:
    fill(stage, range(30), "crowded")
    stage.enqueue()
    assert asked_for(stage) == [0]
    assert asked_for(stage, "default", "crowded") == [*range(29, 0, -1), 0, 0]


def test_later_lane_is_counted_again_when_it_was_idle(stage: Stage) -> None:
    fill(stage, range(1, 200))
    cancel_all(stage)
    fill(stage, range(1000, 2000))
    with pytest.raises(InvalidArgument, match="jobs of 1,000 priorities waiting"):
        stage.enqueue(priority=150)
    with pytest.raises(InvalidArgument, match="jobs of 1,000 priorities waiting"):
        stage.verbs.enqueue_many("work", [uuid4()], [{}], priority=150).run(stage.conn)
