"""Endings that meet somebody: an open transaction of the handler's own that holds the lease, or an
ending that the attempt has already.

Connections play the worker and its handler. Nobody waits for long, nobody is called stale who was
not late, and a step is never later than the end of its attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from faultline.call import Call
from faultline.errors import LockedOut
from faultline.protocol import Protocol
from faultline.story import MOST_RENEWALS
from tests.stage import Stage

pytestmark = pytest.mark.both_servers

Attempts = list[tuple[UUID, int]]
SETTLE: dict[str, Callable[[Protocol, Attempts], Call[Any]]] = {
    "complete": lambda verbs, batch: verbs.complete(batch),
    "swap": lambda verbs, batch: verbs.swap(batch, None, "A", [], max_jobs=1),
    "fail": lambda verbs, batch: verbs.fail(batch),
    "snooze": lambda verbs, batch: verbs.snooze(batch, [60.0] * len(batch)),
    "release": lambda verbs, batch: verbs.release(batch),
    "cancel_attempt": lambda verbs, batch: verbs.cancel_attempt(batch),
}
every_verb = pytest.mark.parametrize("verb", SETTLE)


# ── somebody holds the lease ─────────────────────────────────────────────────────────────────────


@every_verb
def test_an_ending_does_not_wait_for_long_for_whoever_holds_the_lease(
    stage: Stage, verb: str
) -> None:
    free, held = stage.running("A"), stage.running("A")
    handler = stage.connect(isolation="read committed")
    stage.verbs.assert_fence(*held).run(handler)
    stage.conn.execute("set statement_timeout = '10s'")
    with pytest.raises(LockedOut):
        SETTLE[verb](stage.verbs, [free, held]).run(stage.conn)
    assert stage.outcomes(free[0]) == []
    assert stage.verbs.busy([free, held]).run(stage.conn) == [held[0]]
    SETTLE[verb](stage.verbs, [free]).run(stage.conn)
    assert len(stage.outcomes(free[0])) == 1
    handler.rollback()
    assert stage.verbs.busy([held]).run(stage.conn) == []
    SETTLE[verb](stage.verbs, [held]).run(stage.conn)
    assert len(stage.outcomes(held[0])) == 1
    assert stage.refusals(held[0]) == stage.violations() == []


def test_busy_is_what_any_open_transaction_holds_and_nothing_else(stage: Stage) -> None:
    gated, completing, renewed, free, gone = (stage.running("A") for _ in range(5))
    one, other, keeper = (stage.connect(isolation="read committed") for _ in range(3))
    stage.verbs.assert_fence(*gated).run(one)
    stage.verbs.complete_one(*completing).run(other)
    stage.verbs.renew([renewed]).run(keeper)
    stage.verbs.complete([gone]).run(stage.conn)
    asked = [gated, completing, renewed, free, gone, (uuid4(), 1)]
    held = {gated[0], completing[0], renewed[0]}
    assert set(stage.verbs.busy(asked).run(stage.conn)) == held
    assert stage.verbs.busy([(gated[0], gated[1] + 1)]).run(stage.conn) == []  # not its lease
    assert stage.verbs.busy([]).run(stage.conn) == []


# ── a step, and the end of its attempt ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("verb", [*SETTLE, "complete_one"])
def test_an_ending_that_waited_for_a_step_is_later_than_the_step(stage: Stage, verb: str) -> None:
    stage.be_patient()
    attempt = stage.running("A")
    handler = stage.connect(isolation="read committed")
    stage.verbs.assert_fence(*attempt).run(handler)
    call = SETTLE.get(verb, lambda verbs, batch: verbs.complete_one(*batch[0]))
    ending = stage.background(call(stage.verbs, [attempt]), stage.connect()).until_blocked()
    stage.verbs.record_step(*attempt, "paid").run(handler)
    handler.commit()
    ending.answer()
    assert len(stage.outcomes(attempt[0])) == 1
    assert stage.violations() == []


# ── the attempt has an ending ────────────────────────────────────────────────────────────────────


@every_verb
@pytest.mark.parametrize("first", ["complete_one", "fail", "release"])
def test_an_attempt_that_ended_itself_is_told_so_and_not_called_stale(
    stage: Stage, verb: str, first: str
) -> None:
    attempt = stage.running("A")
    if first == "complete_one":
        stage.verbs.complete_one(*attempt).run(stage.conn)
    else:
        SETTLE[first](stage.verbs, [attempt]).run(stage.conn)
    answer = SETTLE[verb](stage.verbs, [attempt]).run(stage.conn)
    (told,) = answer[0] if verb == "swap" else answer
    assert (told.job_id, told.token, told.late_seconds) == (*attempt, None)
    assert len(stage.outcomes(attempt[0])) == 1
    assert stage.refusals(attempt[0]) == []


@every_verb
@pytest.mark.parametrize("reclaimed", [True, False])
def test_an_attempt_whose_lease_ran_out_is_called_stale_however_often_it_comes(
    stage: Stage, verb: str, reclaimed: bool
) -> None:
    attempt = stage.running("A")
    stage.expire(attempt[0])
    if reclaimed:
        stage.verbs.reclaim().run(stage.conn)
    for _ in range(2):
        SETTLE[verb](stage.verbs, [attempt]).run(stage.conn)
    operation = {"swap": "complete", "cancel_attempt": "cancel"}.get(verb, verb)
    assert stage.refusals(attempt[0]) == [(operation, 1, 1, "lease_expired")] * 2


def test_a_renewal_answers_with_just_the_refusal_that_it_recorded(stage: Stage) -> None:
    stale, ended = stage.running("A"), stage.running("A")
    rightful = stage.take_over(stale[0], "B")
    stage.verbs.complete([ended]).run(stage.conn)
    answers = stage.verbs.renew([stale, ended, rightful]).run(stage.conn)
    assert {(x.job_id, x.token, x.verdict, x.reason) for x in answers} == {
        (*stale, "lost", "token_mismatch"),
        (*ended, "lost", None),
        (*rightful, "renewed", None),
    }
    (lost,) = [x for x in answers if x.reason]
    (row,) = stage.reading.refusals(stage.conn, stale[0])
    assert (row["operation"], row["stale_token"]) == ("renew", stale[1])
    for field in ("current_token", "reason", "late_seconds"):
        assert getattr(lost, field) == row[field]
    assert stage.refusals(ended[0]) == []


# ── what is kept of renewals ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("verb", [*SETTLE, "complete_one", "reclaim", "reclaim_dead"])
def test_an_attempt_inherits_when_its_lease_was_renewed_however_it_ends(
    stage: Stage, verb: str
) -> None:
    attempt, short = stage.running("A"), stage.running("A")
    for _ in range(3):
        stage.verbs.renew([attempt]).run(stage.conn)
    lease = stage.reading.lease(stage.conn, attempt[0])
    assert lease is not None
    renewals = lease["renewals"]
    assert len(renewals) == 3
    assert lease["claimed_at"] < renewals[0] < renewals[1] < renewals[2] < lease["expires_at"]
    if verb == "complete_one":
        for one in (attempt, short):
            stage.verbs.complete_one(*one).run(stage.conn)
    elif verb == "reclaim_dead":
        stage.verbs.reclaim_dead("A").run(stage.conn)
    elif verb == "reclaim":
        stage.expire(attempt[0], short[0])
        stage.verbs.reclaim().run(stage.conn)
    else:
        SETTLE[verb](stage.verbs, [attempt, short]).run(stage.conn)
    assert stage.reading.attempts(stage.conn, attempt[0])[0]["renewals"] == renewals
    assert stage.reading.attempts(stage.conn, short[0])[0]["renewals"] is None


def test_a_lease_keeps_its_latest_renewals_and_no_more_than_so_many(stage: Stage) -> None:
    attempt = stage.running("A")

    def kept() -> list[datetime]:
        lease = stage.reading.lease(stage.conn, attempt[0])
        assert lease is not None
        return list(lease["renewals"])

    for _ in range(MOST_RENEWALS):
        stage.verbs.renew([attempt]).run(stage.conn)
    before = kept()
    for _ in range(2):
        stage.verbs.renew([attempt]).run(stage.conn)
    assert len(before) == len(kept()) == MOST_RENEWALS
    assert kept()[:-2] == before[2:]


# ── what is reported ─────────────────────────────────────────────────────────────────────────────


def test_nobody_can_report_a_refusal_of_what_cannot_have_been_late(stage: Stage) -> None:
    live, done = stage.running("A"), stage.running("A")
    stage.verbs.complete([done]).run(stage.conn)
    for attempt in ((uuid4(), 7), (live[0], live[1] + 98), live, done, (done[0], done[1] + 1)):
        assert stage.verbs.report_refusal(*attempt, "slander").run(stage.conn) is None
    assert stage.value("select count(*) from {schema}.refusal") == 0


@pytest.mark.parametrize("how", ["expired", "burnt", "taken over", "given up"])
def test_whoever_was_late_can_be_reported(stage: Stage, how: str) -> None:
    attempt = stage.running("A")
    if how == "given up":  # its worker has ended it, and its handler goes on
        stage.verbs.fail([attempt]).run(stage.conn)
    else:
        stage.expire(attempt[0])
    if how in ("burnt", "taken over"):
        stage.verbs.reclaim().run(stage.conn)
    if how == "taken over":
        stage.claim("B")
    reported = stage.verbs.report_refusal(*attempt, "commit").run(stage.conn)
    assert reported is not None
    assert stage.refusals(attempt[0]) == [
        ("commit", attempt[1], reported.current_token, reported.reason)
    ]
