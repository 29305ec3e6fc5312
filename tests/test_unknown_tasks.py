"""What the log says of jobs whose task a worker does not know, as a table of moments."""

from __future__ import annotations

from uuid import UUID

from faultline.events import Event, UnknownTask
from faultline.jobs import Lease
from faultline.worker.unknown import LINE_SECONDS, MOST_NAMES, UnknownTasks


def lease(task: str) -> Lease:
    return Lease(UUID(int=1), 1, 1, 1, 0, 0, 0, 30.0, task, None, None)


def said(*declined: tuple[str, float]) -> list[tuple[str, int]]:
    """The lines, as (task, jobs), when jobs of these tasks are declined at these moments."""
    events: list[Event] = []
    log = UnknownTasks("w", events.append)
    for task, now in declined:
        log.declined(lease(task), now)
    return [(event.task, event.jobs) for event in events if isinstance(event, UnknownTask)]


def test_the_first_job_of_a_task_has_a_line_at_once() -> None:
    assert said(("a", 100.0), ("b", 100.0)) == [("a", 1), ("b", 1)]


def test_more_jobs_within_a_minute_have_no_line() -> None:
    assert said(*[("a", 100.0 + n) for n in range(60)]) == [("a", 1)]


def test_the_next_line_counts_the_jobs_since_the_last() -> None:
    assert said(*[("a", float(n)) for n in range(121)]) == [("a", 1), ("a", 60), ("a", 60)]


def test_names_beyond_the_first_hundred_share_a_line() -> None:
    names = [f"t{n}" for n in range(MOST_NAMES + 50)]
    lines = said(*[(name, 0.0) for name in names])
    assert lines == [(name, 1) for name in names[: MOST_NAMES + 1]]
    later = said(*[(name, 0.0) for name in names], ("another", LINE_SECONDS - 1))
    assert later == lines


def test_a_name_that_has_been_silent_for_a_minute_leaves_its_line_to_another() -> None:
    first = [(f"t{n}", 0.0) for n in range(MOST_NAMES)]
    lines = said(*first, ("late", LINE_SECONDS), ("late", LINE_SECONDS + 1), ("t0", LINE_SECONDS))
    assert lines[MOST_NAMES:] == [("late", 1), ("t0", 1)]
