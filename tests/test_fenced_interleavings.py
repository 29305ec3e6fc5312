"""Two connections against each construction by which a handler protects its own writes.

A opens, writes, closes and commits, as the fenced transaction, the step, the outbox, the gate and
the guard do; B takes the job over at each point in between. Leases move by their rows, order comes
from open transactions. Asserted every time: either what A wrote is there and nobody had taken the
job over before A's commit, or A was refused and nothing of it is there; never both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from faultline.call import Call, together, translated_errors
from faultline.errors import InvalidArgument, StaleLease, Unfenced
from faultline.protocol import Protocol
from tests.guarded import ISOLATIONS, LATE, Attempt, commit
from tests.stage import Stage

pytestmark = pytest.mark.both_servers

TABLES = """
create table effect (job_id uuid, token bigint, note text);
create table guarded (job_id uuid, token bigint, note text);
"""


@dataclass(frozen=True)
class Construction:
    """What A does first, and last before its COMMIT; None: nothing."""

    opening: Callable[[Protocol, Attempt], Call[Any]] | None
    closing: Callable[[Protocol, Attempt], Call[Any]] | None
    table: str = "effect"
    ends_the_job: bool = False


def emit(verbs: Protocol, attempt: Attempt) -> Call[Any]:
    headers = {"token": attempt[1], "job_id": str(attempt[0])}
    message = verbs.enqueue("relay:receipts", {"payload": {}}, headers=headers)
    return together([message, verbs.assert_fence(*attempt)])


CONSTRUCTIONS = {
    "transaction": Construction(
        lambda verbs, attempt: verbs.fence(*attempt),
        lambda verbs, attempt: verbs.assert_fence(*attempt),
    ),
    "completing": Construction(
        lambda verbs, attempt: verbs.fence(*attempt),
        lambda verbs, attempt: verbs.complete_one(*attempt, {"by": attempt[1]}),
        ends_the_job=True,
    ),
    "step": Construction(
        lambda verbs, attempt: verbs.begin_step(*attempt, "charge"),
        lambda verbs, attempt: verbs.record_step(*attempt, "charge", attempt[1]),
    ),
    "emit": Construction(lambda verbs, attempt: verbs.fence(*attempt), emit),
    "gate": Construction(None, lambda verbs, attempt: verbs.assert_fence(*attempt)),
    "guard": Construction(lambda verbs, attempt: verbs.fence(*attempt), None, "guarded"),
}
POINTS = ("before opening", "after opening", "after the write", "before the commit", "at the end")
# Which part of A's transaction is inside a savepoint, which is released.
SAVEPOINTS = ("none", "opening", "write", "closing", "all")
every_construction = pytest.mark.parametrize("name", CONSTRUCTIONS)


@pytest.fixture
def till(stage: Stage) -> Stage:
    stage.execute(TABLES)
    assert stage.verbs.guard("guarded").run(stage.conn) == 1
    return stage


class Play:
    """A's transaction, in one construction, and B's attempt to take the job over."""

    def __init__(
        self, stage: Stage, name: str, a: Connection[Any], attempt: Attempt | None = None
    ) -> None:
        self.stage = stage
        self.name = name
        self.way = CONSTRUCTIONS[name]
        self.a = a
        self.attempt = attempt or stage.running("A")
        self.rightful: Attempt | None = None
        a.execute("select count(*) from faultline.jobs")  # the snapshot, where there is one

    # ── A ────────────────────────────────────────────────────────────────────────────────────────

    def open(self) -> None:
        if self.way.opening is not None:
            self.way.opening(self.stage.verbs, self.attempt).run(self.a)

    def write(self, note: str = "kept") -> None:
        with translated_errors("faultline"):
            self.a.execute(
                f"insert into {self.way.table} values (%s, %s, %s)", (*self.attempt, note)
            )

    def close(self) -> None:
        if self.way.closing is not None:
            self.way.closing(self.stage.verbs, self.attempt).run(self.a)

    def commit(self) -> None:
        commit(self.a)

    def close_and_commit(self) -> None:
        self.close()
        self.commit()

    # ── B ────────────────────────────────────────────────────────────────────────────────────────

    def take_over(self) -> None:
        """If A lets it: whoever has passed its check holds its lease, and B does not wait."""
        job_id = self.attempt[0]
        expire = (
            "update {schema}.lease set expires_at = clock_timestamp() where job_id in "
            "(select job_id from {schema}.lease where job_id = %s for update skip locked)"
        )
        self.stage.execute("set lock_timeout = '5s'")
        self.stage.execute(expire, job_id)
        taken = self.stage.verbs.reclaim().run(self.stage.conn)
        # Also of a worker that is dead, without waiting for the expiry.
        taken += self.stage.verbs.reclaim_dead("A", [job_id]).run(self.stage.conn)
        if job_id in {item.job_id for item in taken} or self.stage.state(job_id) == "queued":
            leases = self.stage.claim("B", 1000)
            self.rightful = next((x.job_id, x.token) for x in leases if x.job_id == job_id)

    # ── what is there ────────────────────────────────────────────────────────────────────────────

    def effects(self) -> list[tuple[int, str]]:
        job_id = self.attempt[0]
        return self.stage.execute(
            f"select token, note from {self.way.table} where job_id = %s order by note", job_id
        )

    def left_behind(self) -> list[str]:
        """All that A's commit would have brought."""
        job_id, token = self.attempt
        stage = self.stage
        counts = {
            "rows": "select count(*) from effect where job_id = %s and token = %s",
            "guarded rows": "select count(*) from guarded where job_id = %s and token = %s",
            "steps": "select count(*) from {schema}.steps where job_id = %s and fencing_token = %s",
            "messages": "select count(*) from {schema}.job "
            "where (headers ->> 'job_id')::uuid = %s and (headers ->> 'token')::bigint = %s",
            "successes": "select count(*) from {schema}.attempts where job_id = %s "
            "and fencing_token = %s and outcome = 'succeeded'",
        }
        return [what for what, count in counts.items() if stage.value(count, job_id, token)]

    def ends_well(self) -> None:
        """B, whose job it is now, does it all in the same way."""
        assert self.rightful is not None
        b = Play(self.stage, self.name, self.a, self.rightful)
        for act in (b.open, b.write, b.close, b.commit):
            act()
        assert b.left_behind()
        assert b.effects() == [(self.rightful[1], "kept")]
        if not self.way.ends_the_job:
            assert self.stage.verbs.complete([self.rightful]).run(self.stage.conn) == []


def in_each_isolation(stage: Stage, name: str) -> Iterator[Play]:
    for isolation in ISOLATIONS:
        yield Play(stage, name, stage.connect(isolation=isolation))


def points_of(name: str) -> tuple[str, ...]:
    """The guard alone has no closing statement: its check is part of the COMMIT."""
    closing = CONSTRUCTIONS[name].closing
    return tuple(point for point in POINTS if closing or point != "before the commit")


def perform(play: Play, point: str, inside: str) -> BaseException | None:
    """A's transaction with the takeover at this point; what A was refused with, or None."""

    def savepoint(*parts: str) -> AbstractContextManager[Any]:
        return play.a.transaction() if inside in parts else nullcontext()

    def moment(here: str) -> None:
        if here == point:
            play.take_over()

    try:
        moment("before opening")
        with savepoint("all"):
            with savepoint("opening"):
                play.open()
            moment("after opening")
            with savepoint("write"):
                play.write()
            moment("after the write")
            with savepoint("closing"):
                play.close()
        moment("before the commit")
        play.commit()
    except LATE as refused:
        play.a.rollback()
        return refused
    return None


@every_construction
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_what_is_written_lands_before_a_takeover_or_not_at_all(
    till: Stage, name: str, isolation: str
) -> None:
    a = till.connect(isolation=isolation)
    for point in points_of(name):
        for inside in SAVEPOINTS:
            here = f"takeover {point}, savepoint around {inside}"
            play = Play(till, name, a)
            refused = perform(play, point, inside)
            if point in ("before the commit", "at the end"):
                assert refused is None, here
                assert play.rightful is None, f"{here}: somebody took over before the commit"
                assert play.effects() == [(play.attempt[1], "kept")], here
                play.take_over()
                assert (play.rightful is None) == play.way.ends_the_job, here
            else:
                assert play.rightful is not None, f"{here}: A holds up its own takeover"
                assert refused is not None, f"{here}: A was not refused"
                if isolation == "read committed":
                    assert isinstance(refused, StaleLease), here
                    assert refused.current_token == play.rightful[1], here
                assert play.left_behind() == [], here
                play.ends_well()
    assert till.value("select count(*) from {schema}.fence_tx") == 0
    assert till.violations() == []


@every_construction
def test_what_a_savepoint_took_back_is_not_there_and_the_rest_is_fenced(
    till: Stage, name: str
) -> None:
    for lost in (False, True):
        for play in in_each_isolation(till, name):
            play.open()
            play.write("kept")
            with play.a.transaction(force_rollback=True):
                play.write("undone")
            if lost:
                play.take_over()
                with pytest.raises(LATE):
                    play.close_and_commit()
                play.a.rollback()
                assert play.left_behind() == []
                play.ends_well()
            else:
                play.close_and_commit()
                assert play.effects() == [(play.attempt[1], "kept")]
    assert till.violations() == []


@pytest.mark.parametrize("name", sorted(CONSTRUCTIONS.keys() - {"gate"}))
def test_a_check_that_a_savepoint_took_back_is_made_again_by_the_commit(
    till: Stage, name: str
) -> None:
    """The gate by itself cannot do this: with the savepoint its lock is gone, and so is its word
    (see test_write_gate)."""
    for play in in_each_isolation(till, name):
        play.open()
        play.write()
        with play.a.transaction(force_rollback=True):
            play.close()
            if play.way.closing is not None:
                play.take_over()
                assert play.rightful is None
        play.take_over()
        assert play.rightful is not None
        with pytest.raises(LATE):
            play.commit()
        assert play.left_behind() == []
        play.ends_well()
    assert till.violations() == []


@every_construction
def test_a_fence_that_a_savepoint_took_back_lets_nothing_late_land(till: Stage, name: str) -> None:
    """The closing statement still checks; and where there is none, the guard lets nobody write."""
    for play in in_each_isolation(till, name):
        with play.a.transaction(force_rollback=True):
            play.open()
        if play.way.closing is None:
            with pytest.raises(Unfenced):
                play.write()
            play.a.rollback()
            play.take_over()
        else:
            play.write()
            play.take_over()
            with pytest.raises(LATE):
                play.close()
            play.a.rollback()
        assert play.left_behind() == []
        play.ends_well()
    assert till.violations() == []


@every_construction
@pytest.mark.parametrize("comes_to_nothing", [False, True])
def test_a_takeover_under_way_is_waited_for_by_the_check(
    till: Stage, name: str, comes_to_nothing: bool
) -> None:
    reclaimer = till.connect(isolation="read committed")
    for play in in_each_isolation(till, name):
        play.open()
        play.write()
        assert len(till.verbs.reclaim_dead("A", [play.attempt[0]]).run(reclaimer)) == 1
        call = play.way.closing(till.verbs, play.attempt) if play.way.closing else "commit"
        check = till.background(call, play.a).until_blocked()
        if comes_to_nothing:
            reclaimer.rollback()
            check.answer()
            play.commit()
            assert play.effects() == [(play.attempt[1], "kept")]
            continue
        reclaimer.commit()
        with pytest.raises((StaleLease, psycopg.Error)) as refused:
            check.answer()
        if isinstance(refused.value, psycopg.Error):
            assert refused.value.sqlstate in ("LF001", "40001")
        play.a.rollback()
        assert play.left_behind() == []
        play.take_over()  # the rest of it
        play.ends_well()
    assert till.violations() == []


def test_a_step_is_committed_by_one_of_two_that_both_found_it_undone(till: Stage) -> None:
    """Two transactions of one attempt: neither is stale, and still only one may commit."""
    for first in in_each_isolation(till, "step"):
        isolation = first.a.execute("show transaction_isolation").fetchone()
        assert isolation is not None
        second = Play(till, "step", till.connect(isolation=isolation[0]), first.attempt)
        for play in (first, second):
            play.open()
            play.write()
        first.close()
        record = till.verbs.record_step(*second.attempt, "charge", 0)
        waiting = till.background(record, second.a).until_blocked()
        first.commit()
        with pytest.raises((InvalidArgument, psycopg.errors.SerializationFailure)):
            waiting.answer()
        second.a.rollback()
        assert first.effects() == [(first.attempt[1], "kept")]
        steps = "select step, value from {schema}.steps where job_id = %s"
        assert till.execute(steps, first.attempt[0]) == [("charge", first.attempt[1])]


def test_a_step_that_is_done_is_not_done_again_by_whoever_takes_over(till: Stage) -> None:
    for play in in_each_isolation(till, "step"):
        assert perform(play, "at the end", "none") is None
        play.take_over()
        assert play.rightful is not None
        begun = till.verbs.begin_step(*play.rightful, "charge").run(play.a)
        assert (begun["done"], begun["value"]) == (True, play.attempt[1])
        with pytest.raises(InvalidArgument, match="is done already"):
            till.verbs.record_step(*play.rightful, "charge").run(play.a)
        play.a.rollback()
        assert till.verbs.complete([play.rightful]).run(till.conn) == []
    assert till.violations() == []
