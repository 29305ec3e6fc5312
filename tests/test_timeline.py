"""The life of a job in time, and as text: from records as the views give them, without a database.
`tests/test_jobs_command.py` draws real ones."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from faultline.cli.jobs.drawing import ASCII, UNICODE, Symbols, drawn, symbols_for
from faultline.story import moments
from faultline.timeline import MOST_ROWS, Axis, Life, life

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def attempt(token: int, claimed: float, ended: float, outcome: str, **more: Any) -> dict[str, Any]:
    return {
        "fencing_token": token,
        "worker": f"worker-{token}",
        "claimed_at": at(claimed),
        "at": at(ended),
        "lease_expired_at": None,
        "renewals": None,
        "outcome": outcome,
        "final": outcome == "succeeded",
        **more,
    }


def refusal(token: int, second: float, operation: str = "complete") -> dict[str, Any]:
    return {
        "stale_token": token,
        "current_token": token + 1,
        "at": at(second),
        "operation": operation,
        "late_seconds": 1.0,
    }


def lived(
    *attempts: dict[str, Any],
    lease: dict[str, Any] | None = None,
    steps: list[dict[str, Any]] | None = None,
    refusals: list[dict[str, Any]] | None = None,
    now: float = 100.0,
) -> Life:
    ended = attempts[-1]["at"] if attempts and attempts[-1]["final"] else None
    job = {"created_at": BEGIN, "finished_at": ended}
    return life(job, lease, attempts, steps or [], refusals or [], at(now))


def stale_worker() -> Life:
    """Stalls in its lease, is taken over, and comes back when the other one has nearly done."""
    return lived(
        attempt(1, 1, 7, "expired", lease_expired_at=at(6), renewals=[at(2), at(4)]),
        attempt(2, 7.5, 12, "succeeded"),
        steps=[{"fencing_token": 1, "at": at(3), "step": "reserve"}],
        refusals=[refusal(1, 10), refusal(1, 10.01, "renew")],
    )


def text(life: Life, width: int = 80, symbols: Symbols = UNICODE) -> list[str]:
    return ["".join(piece for piece, _ in line).rstrip() for line in drawn(life, width, symbols)]


def marks(line: str, symbols: Symbols = UNICODE) -> str:
    """What stands on the row of an attempt, without what lasts."""
    row = line.split(maxsplit=2)[2].rpartition(" ")[0]
    return "".join(c for c in row if c in symbols.marks.values())


# ── what happened when ───────────────────────────────────────────────────────────────────────────


def test_an_attempt_that_was_lost_is_three_spans_held_unleased_and_unknowing() -> None:
    first, second = stale_worker().rows
    spans = [(span.kind, span.begin, span.end) for span in first.spans]
    assert spans == [
        ("expired", at(1), at(6)),
        ("unleased", at(6), at(7)),
        ("late", at(7), at(10.01)),
    ]
    assert [mark.kind for mark in first.marks] == [
        "step",
        "renewal",
        "renewal",
        "expiry",
        "refused",
        "refused",
    ]
    assert (first.took_over_at, second.took_over_at) == (None, at(7))


def test_a_stage_says_where_the_job_stood_until_the_next() -> None:
    stages = stale_worker().stages
    assert [stage.at for stage in stages] == sorted(stage.at for stage in stages)
    assert [stage.until for stage in stages[:-1]] == [stage.at for stage in stages[1:]]
    words = {stage.at: stage.words for stage in stages}
    assert words[at(6)] == "still leased to worker-1 under token 1, but the lease has expired"
    assert words[at(10)].startswith("a write under token 1 is refused; the job: running under tok")
    assert words[at(12)].startswith("succeeded")


def test_a_lease_that_is_good_has_its_end_ahead_and_one_that_is_not_behind() -> None:
    lease = {
        "fencing_token": 1,
        "worker": "w",
        "claimed_at": at(0),
        "expires_at": at(50),
        "lease_seconds": 30,
        "renewals": [at(10), at(20)],
    }
    (row,) = lived(lease=lease, now=25).rows
    assert [(mark.kind, mark.at) for mark in row.marks] == [
        ("renewal", at(10)),
        ("renewal", at(20)),
        ("until", at(50)),
    ]
    (row,) = lived(lease=lease, now=60).rows
    assert ("expiry", at(50)) in [(mark.kind, mark.at) for mark in row.marks]
    assert [span.kind for span in row.spans] == ["running", "unleased"]


def renewed(often: int, *, live: bool) -> list[str]:
    """How the story of one attempt tells its renewals."""
    job = {"created_at": BEGIN, "queue": "default", "producer": "p"}
    held = attempt(1, 1, 90, "succeeded", error=None, renewals=[at(2 + n) for n in range(often)])
    found = moments(job, held, [], [], []) if live else moments(job, None, [held], [], [])
    return [moment.what for moment in found if moment.kind == "renewed"]


@pytest.mark.parametrize("live", [True, False])
def test_a_story_tells_how_often_a_lease_was_renewed_as_far_as_that_is_known(live: bool) -> None:
    assert renewed(0, live=live) == []
    assert renewed(1, live=live) == ["lease renewed once"]
    assert renewed(31, live=live) == ["lease renewed 31 times, lastly here"]
    assert renewed(32, live=live) == ["lease renewed 32 times or more, lastly here"], "all we keep"


def test_only_the_last_attempts_are_rows_and_the_others_are_counted() -> None:
    many = [attempt(n, n, n + 0.5, "failed") for n in range(1, MOST_ROWS + 6)]
    found = lived(*many)
    assert (len(found.rows), found.left_out) == (MOST_ROWS, 5)
    assert text(found)[-1] == "5 earlier attempts are not drawn"


# ── the axis ─────────────────────────────────────────────────────────────────────────────────────


def test_a_long_pause_between_attempts_is_broken_and_a_long_attempt_never() -> None:
    paused = lived(attempt(1, 1, 2, "failed"), attempt(2, 7202, 7203, "succeeded"))
    axis = Axis(paused, 0, 100, 10)
    assert [seconds for _, seconds in axis.breaks] == [7200]
    assert axis(at(7202)) - axis(at(2)) == pytest.approx(10)
    busy = lived(attempt(1, 1, 2, "failed"), attempt(2, 3, 7203, "succeeded"))
    assert Axis(busy, 0, 100, 10).breaks == []


def test_places_keep_the_order_of_the_moments_between_the_ends() -> None:
    for seed in range(50):
        found = by_chance(seed)
        axis = Axis(found, 5, 95, 10)
        places = [axis(moment) for moment in found.moments]
        assert places == sorted(places)
        assert places[0] == 5
        assert places[-1] == pytest.approx(95 if found.moments[-1] > found.moments[0] else 5)


def by_chance(seed: int) -> Life:
    chance = random.Random(seed)
    now, attempts, refusals = 0.0, [], []
    for token in range(1, chance.randint(1, 6) + 1):
        now += chance.choice([0.001, 1, 5000])
        claimed, now = now, now + chance.choice([0.0, 0.5, 30])
        outcome = chance.choice(["failed", "expired", "snoozed", "released"])
        expired = at(now) if outcome == "expired" else None
        now += chance.choice([0.0, 2])
        attempts.append(attempt(token, claimed, now, outcome, lease_expired_at=expired))
        if outcome == "expired":
            refusals.append(refusal(token, now + chance.choice([0.0, 3, 4000])))
    steps = [{"fencing_token": 1, "at": attempts[0]["at"], "step": "s"}]
    return lived(*attempts, steps=steps, refusals=refusals, now=now + 5000)


# ── as text ──────────────────────────────────────────────────────────────────────────────────────


def test_the_story_of_a_stale_worker_is_seen_at_a_glance() -> None:
    axis, first, second, *legend = text(stale_worker())
    assert axis.split("╷")[1].strip() == "enqueued"
    assert first.startswith("#1 worker-1 ")
    assert first.endswith(" expired")
    assert marks(first) == "┣○◆○╫┓✗"
    assert marks(second) == "┗✓"
    assert second.index("┗") == first.index("┓"), "the takeover is one line"
    assert first.index("✗") > first.index("┓")
    told = "   ".join(legend)
    assert "◆ step committed" in told
    assert "✗ write REFUSED" in told


def test_where_there_are_no_box_characters_it_is_drawn_with_others() -> None:
    assert symbols_for("utf-8") is UNICODE
    assert symbols_for("ascii") is symbols_for("latin-1") is symbols_for(None) is ASCII
    lines = text(stale_worker(), symbols=ASCII)
    assert "".join(lines).isascii()
    assert marks(lines[1], ASCII) == "[ror|\\X"
    assert len(set(ASCII.marks.values())) == len(ASCII.marks)


def test_a_pause_that_is_cut_short_says_how_long_it_was() -> None:
    found = lived(attempt(1, 1, 2, "failed"), attempt(2, 7202, 7203, "succeeded"))
    assert "⋯ 2 h ⋯" in text(found)[0]
    late = lived(attempt(1, 7200, 7203, "succeeded"))
    assert text(late)[0].split()[:4] == ["╷0", "⋯", "2", "h"]


@pytest.mark.parametrize("width", [30, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal_and_no_refusal_is_hidden(width: int) -> None:
    for seed in range(100):
        found = by_chance(seed)
        lines = text(found, width)
        if width >= 60:
            assert max(map(len, lines)) <= width, seed
        refused = [any(m.kind == "refused" for m in row.marks) for row in found.rows]
        rows = lines[1 : 1 + len(found.rows)]
        assert ["✗" in line for line in rows] == refused, seed


def test_a_job_that_was_never_claimed_has_no_drawing() -> None:
    assert text(lived()) == []
    cancelled = attempt(0, 1, 1, "cancelled", worker=None)
    assert text(lived(cancelled)) == []


def test_names_of_workers_are_shown_and_never_obeyed() -> None:
    lines = text(lived(attempt(1, 1, 2, "succeeded", worker="evil\x1b[2J\n" + "w" * 90)))
    assert len(lines) == 2
    assert "\x1b" not in lines[1]
