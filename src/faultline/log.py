"""The log of a worker: its events as lines, for a person or for a machine.

    emit = log_to(sys.stdout, "text")       in colour, if that is a terminal which wants it
    emit = log_to(sys.stdout, "json")

One event is one line, written whole and flushed at once, from any thread. Nothing that an event
carries can start a second line or move a cursor. A log that cannot be written, because its reader
has gone or the disk is full, does not stop a job.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TextIO

from faultline.config import colours_wanted
from faultline.events import wants

if TYPE_CHECKING:
    from decimal import Decimal

    from faultline.events import Emit, Event, Level


_STYLES = {"debug": "\x1b[2m", "info": "", "warning": "\x1b[33m", "error": "\x1b[31m"}
_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))
_MOST_TASKS = 20  # names in the line of a worker that has started
_DIM, _RESET = "\x1b[2m", "\x1b[0m"

# What each event says to a person; where a field is missing, its name and fields are enough.
_SENTENCES: dict[str, Callable[[dict[str, Any]], str]] = {
    "lease_acquired": lambda _: "claimed",
    "execution_started": lambda f: f"started{_counted(' (attempt ', f.get('attempt'), ')')}",
    "job_completed": lambda f: f"done{_seconds(' in ', f.get('seconds'))}",
    "jobs_completed": lambda f: f"{f['count']} jobs done",
    "job_failed": lambda f: (
        f"failed{' for good' if f.get('final') else ''}: {f['error']}: {f['message']}"
    ),
    "job_snoozed": lambda f: f"snoozed for {_number(f['delay_seconds'])} s",
    "job_declined": lambda _: "declined: this worker has no such task",
    "job_released": lambda f: f"handed back: {f['reason']}",
    "job_cancelled": lambda f: f"cancelled{_counted(': ', f.get('reason'))}",
    "stale_write_blocked": lambda f: (
        f"REFUSED by the database: {f['operation']} under token {f['stale_token']}, "
        f"the job is at {f['current_token']} ({f['reason']}"
        f"{_counted(', ', _seconds('', f.get('late_seconds')) or None, ' late')})"
    ),
    "lease_lost": lambda f: f"lease lost ({f['reason']}): the handler is told to stop",
    "execution_timed_out": lambda f: f"timed out after {_number(f['timeout_seconds'])} s",
    "ending_ignored": lambda f: f"{f['said']} after tx.complete: ignored, the job has succeeded",
    "handler_abandoned": lambda _: "did not stop when told to: given up",
    "unknown_task": lambda f: (
        "no task of this name is registered here: put off until a worker has it"
        f"{_counted(' (', _more_than_one(f['jobs']), ' jobs since the last such line)')}"
    ),
    "lease_reclaimed": lambda f: f"taken over from {f['owner']}, whose lease had ended",
    "job_quarantined": lambda f: f"quarantined after {f['crashes']} crashes",
    "job_isolated": lambda f: f"runs alone, after {f['crashes']} crashes",
    "worker_started": lambda f: (
        f"worker {f['worker']} serves {', '.join(f['queues'])}; {f['concurrency']} jobs at once; "
        f"{_tasks(f['tasks'])}"
    ),
    "worker_draining": lambda f: f"worker {f['worker']} takes no more; {f['running']} running",
    "unknown_queue": lambda f: (
        f"queue {f['queue']} has never had a job, and no task names it: is it spelt right?"
    ),
    "events_dropped": lambda f: f"{f['count']} events before this one were not written",
    "database_lost": lambda f: f"database lost: {f['error']}",
    "database_back": lambda f: f"database back after {_number(f['away_seconds'])} s",
    "metrics_served": lambda f: f"metrics at http://{f['host']}:{f['port']}/metrics",
    "ready_compacted": lambda _: "the table ready was full of dead rows: compacted",
    "vacuum_spared": lambda f: (
        f"vacuum cannot remove {f['dead_rows']} dead rows, a transaction stays open: autovacuum "
        "comes more seldom meanwhile"
    ),
    "months_forgotten": lambda f: f"forgot what ended long ago: {', '.join(f['months'])}",
    "process_died": lambda f: (
        f"process of {f['worker']} died ({f['status']}); {f['reclaimed']} jobs taken back"
    ),
    "worker_exit": lambda f: f"worker {f['worker']} ends: {f['reason']}",
}


def log_to(file: TextIO, form: Literal["text", "json"] = "text", level: Level = "info") -> Emit:
    """Where a worker's events go: lines of text or of JSON, from this level on."""
    if form == "json":
        return JsonLog(file, level)
    return TerminalLog(file, wants_colours(file), level)


def wants_colours(file: TextIO) -> bool:
    """Whether it is a terminal, and the environment does not say no."""
    return file.isatty() and colours_wanted()


class TerminalLog:
    """One readable line an event: time, task, job and token, and what happened."""

    def __init__(self, file: TextIO, colour: bool = False, level: Level = "info") -> None:
        self._lines = _Lines(file)
        self._colour = colour
        self.level = level

    def __call__(self, event: Event) -> None:
        """Write it, unless it is below the level."""
        if not wants(self, event.level):
            return
        at = datetime.now(UTC).astimezone().time().isoformat("milliseconds")
        said = printable(sentence(event))
        if self._colour:
            style = _STYLES[event.level]
            self._lines.write(f"{_DIM}{at}{_RESET}  {style}{said}{_RESET if style else ''}")
        else:
            self._lines.write(f"{at}  {event.level:<7}  {said}")


class JsonLog:
    """One JSON object a line: `at` (UTC), then the event's own fields, `event` first."""

    def __init__(self, file: TextIO, level: Level = "debug") -> None:
        self._lines = _Lines(file)
        self.level = level

    def __call__(self, event: Event) -> None:
        """Write it, unless it is below the level."""
        if wants(self, event.level):
            at = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
            fields = {"at": at, **event.fields(), "level": event.level}
            self._lines.write(json.dumps(fields, default=str))


def sentence(event: Event) -> str:
    """The event in words; its name and fields where there are no words for it."""
    fields = event.fields()
    words = _SENTENCES.get(event.event)
    try:
        said = words(fields) if words is not None else _generic(fields)
    except KeyError:
        said = _generic(fields)
    if (job_id := fields.get("job_id")) is None:
        return said
    token = fields.get("token", fields.get("stale_token"))
    return f"{job_id} #{token}  {_counted('', fields.get('task'), '  ')}{said}"


def printable(text: str) -> str:
    """The text on one line, with what a terminal would act on written as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def duration(seconds: float | Decimal | None) -> str:
    """How long, with one unit: 0.25 s, 12 s, 3 min, 5 h, 2 d."""
    if seconds is None:
        return ""
    value = abs(float(seconds))
    for size, unit in _UNITS:
        if value >= size:
            return f"{value / size:.0f} {unit}"
    return f"{value:.0f} s" if value >= 10 else f"{value:.2g} s"


class _Lines:
    """Whole lines to a file, from several threads."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lock = threading.Lock()

    def write(self, line: str) -> None:
        encoding = self._file.encoding or "utf-8"
        line = line.encode(encoding, "backslashreplace").decode(encoding)
        # ValueError: the file was closed, as at the end of a process.
        with self._lock, suppress(OSError, ValueError):
            self._file.write(line + "\n")
            self._file.flush()


def _generic(fields: dict[str, Any]) -> str:
    shown = {"event", "job_id", "token", "stale_token", "task"}
    rest = [f"{name}={_value(value)}" for name, value in fields.items() if name not in shown]
    return " ".join([fields["event"], *rest])


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if " " in text or not text else text


def _counted(before: str, value: Any, after: str = "") -> str:
    return "" if value is None else f"{before}{value}{after}"


def _more_than_one(number: int) -> int | None:
    return number if number > 1 else None


def _tasks(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f", … and {len(names) - _MOST_TASKS} more" if len(names) > _MOST_TASKS else ""
    return f"tasks: {', '.join(names[:_MOST_TASKS])}{more}" if names else "no task"


def _seconds(before: str, seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{before}{seconds * 1000:.0f} ms"
    return f"{before}{seconds:.2f} s"


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
