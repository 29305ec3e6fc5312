"""The log: one event, one line, whatever the event carries and whoever reads."""

from __future__ import annotations

import io
import json
import os
import re
import threading
from dataclasses import MISSING, dataclass, fields
from datetime import datetime
from uuid import UUID

import pytest

from faultline.events import (
    CATALOGUE,
    DatabaseLost,
    Event,
    JobCompleted,
    JobFailed,
    LeaseAcquired,
    StaleWriteBlocked,
    UnknownTask,
    WorkerStarted,
)
from faultline.log import JsonLog, TerminalLog, sentence

JOB = UUID("01980000-0000-7000-8000-000000000001")
EXAMPLES = {
    "str": "billing",
    "str | None": "billing",
    "int": 3,
    "int | None": 3,
    "float": 1.5,
    "float | None": 1.5,
    "bool": True,
    "bool | None": True,
    "UUID": JOB,
    "tuple[str, ...]": ("a", "b"),
    "StaleReason": "token_mismatch",
    "Literal['refused', 'deadline']": "refused",
    'Literal["refused", "deadline"]': "refused",
}


def example(kind: type[Event], *, bare: bool = False) -> Event:
    """One of each; bare leaves out whatever may be left out."""
    given = {
        field.name: EXAMPLES[str(field.type)]
        for field in fields(kind)
        if not (bare and field.default is not MISSING)
    }
    return kind(**given)


def lines(log: type[TerminalLog] | type[JsonLog], *events: Event, **options: object) -> list[str]:
    file = io.StringIO()
    write = log(file, **options)
    for event in events:
        write(event)
    return file.getvalue().splitlines()


@pytest.mark.parametrize("kind", CATALOGUE, ids=lambda kind: kind.event)
@pytest.mark.parametrize("bare", [False, True], ids=["full", "bare"])
def test_every_event_of_the_catalogue_is_one_line_for_a_person_and_for_a_machine(
    kind: type[Event], bare: bool
) -> None:
    event = example(kind, bare=bare)
    (line,) = lines(TerminalLog, event, level="debug")
    assert re.match(r"\d\d:\d\d:\d\d\.\d{3}  (debug|info|warning|error) +\S", line)
    assert kind.event not in line, "it has words of its own"
    assert "None" not in line
    (line,) = lines(JsonLog, event)
    written = json.loads(line)
    assert list(written)[:2] == ["at", "event"]
    assert datetime.fromisoformat(written["at"]).utcoffset().total_seconds() == 0
    assert written["event"] == kind.event
    assert written["level"] == kind.level


def test_the_common_lines_read_like_sentences() -> None:
    assert sentence(JobCompleted("w", JOB, 2, task="charge", seconds=0.0123)) == (
        f"{JOB} #2  charge  done in 12 ms"
    )
    assert sentence(JobFailed("w", JOB, 1, "charge", "ValueError", "no such card")) == (
        f"{JOB} #1  charge  failed: ValueError: no such card"
    )
    assert "complete under token 1, the job is at 2 (token_mismatch, 3.50 s late)" in sentence(
        StaleWriteBlocked("w", JOB, 1, 2, "token_mismatch", "complete", 3.5)
    )
    assert sentence(WorkerStarted("w", ("a", "b"), 20, 77, ("t",))) == (
        "worker w serves a, b; 20 jobs at once; tasks: t"
    )


def test_a_worker_that_starts_names_twenty_tasks_and_counts_the_rest() -> None:
    many = tuple(f"t{n}" for n in range(25))
    started = WorkerStarted("w", ("a",), 20, 77, many)
    assert sentence(started).endswith("tasks: " + ", ".join(many[:20]) + ", … and 5 more")
    assert sentence(WorkerStarted("w", ("a",), 20, 77, many[:20])).endswith(", t19")
    assert sentence(WorkerStarted("w", ("a",), 20, 77, ())).endswith("; no task")
    (line,) = lines(JsonLog, started)
    assert json.loads(line)["tasks"] == list(many)


def test_a_line_of_an_unknown_task_says_how_many_jobs_it_stands_for() -> None:
    assert "jobs" not in sentence(UnknownTask("w", JOB, 1, "t", 1)).partition("t  ")[2]
    assert sentence(UnknownTask("w", JOB, 1, "t", 7)).endswith("(7 jobs since the last such line)")


def test_an_event_that_the_log_has_never_heard_of_is_still_written() -> None:
    @dataclass(frozen=True, slots=True)
    class Newer(Event):
        event = "something_newer"
        count: int = 3
        words: str = "two words"

    said = sentence(Newer("w"))
    assert said == 'something_newer worker=w count=3 words="two words"'


def test_an_error_message_can_neither_forge_a_line_nor_drive_the_terminal() -> None:
    hostile = 'x\n{"event": "job_completed"}\r\x1b[2J\x9b2J\u202e'
    event = JobFailed("w", JOB, 1, "charge", "ValueError", hostile)
    for log in (TerminalLog, JsonLog):
        (line,) = lines(log, event)
        assert line.isprintable()
    assert json.loads(lines(JsonLog, event)[0])["message"] == hostile


def test_no_line_has_a_colour_unless_it_was_asked_for() -> None:
    event = DatabaseLost("w", "gone")
    assert "\x1b" not in lines(TerminalLog, event)[0]
    assert "\x1b[33m" in lines(TerminalLog, event, colour=True)[0]


def test_what_is_below_the_level_is_left_out() -> None:
    quiet, loud = LeaseAcquired("w", JOB, 1), DatabaseLost("w", "gone")
    assert len(lines(TerminalLog, quiet, loud)) == 1
    assert len(lines(TerminalLog, quiet, loud, level="debug")) == 2
    assert len(lines(JsonLog, quiet, loud)) == 2
    assert len(lines(JsonLog, quiet, loud, level="error")) == 0


def test_a_line_is_out_before_the_call_returns_and_threads_do_not_mix_theirs() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as file, os.fdopen(reading) as reader:
        log = JsonLog(file)
        log(LeaseAcquired("w", JOB, 1))
        assert json.loads(reader.readline())["token"] == 1
        long = DatabaseLost("w", "x" * 500)
        threads = [
            threading.Thread(target=lambda: [log(long) for _ in range(20)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        assert all(json.loads(reader.readline())["error"] == long.error for _ in range(80))
        for thread in threads:
            thread.join()


def test_a_log_that_nobody_reads_any_more_does_not_stop_the_worker() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    file = os.fdopen(writing, "w")
    log = JsonLog(file)
    log(LeaseAcquired("w", JOB, 1))
    with pytest.raises(BrokenPipeError):
        file.close()
    log(LeaseAcquired("w", JOB, 1))


def test_a_terminal_that_cannot_show_a_letter_gets_an_escape_instead() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    TerminalLog(file)(DatabaseLost("w", "größer"))
    assert b"gr\\xf6\\xdfer" in raw.getvalue()
