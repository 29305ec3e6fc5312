"""What a failing test says against a mutant: that a guard is missing, or only that code is broken.

A mutant is caught by an assertion, or by an error that a test meets. It is not caught by code that
cannot run: a NameError, AttributeError, TypeError, SyntaxError or ImportError raised in the mutated
file, or an SQL error that says the same (BROKEN_SQL). Where such an error is what the guard
prevents, the guard's entry says so with `raises`.

As a pytest plugin (`-p proofs.evidence`) this module writes a line of JSON for each phase of a test
to the file that FAULTLINE_EVIDENCE names: the test, its outcome, its seconds and what was raised,
also in the threads and processes whose tracebacks pytest captured. A test that runs for more than
FAULTLINE_EVIDENCE_SECONDS ends the process, and leaves no line of a failure.

It does not see an error that a process logs without a traceback.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

FILE, LIMIT = "FAULTLINE_EVIDENCE", "FAULTLINE_EVIDENCE_SECONDS"
BROKEN_CODE = ("NameError", "AttributeError", "TypeError", "SyntaxError", "ImportError")
# Syntax; a name that is invalid, ambiguous or unknown (column, object, function, table, parameter);
# types that do not fit.
BROKEN_SQL = (
    *("42601", "42602", "42702", "42703", "42704"),
    *("42883", "42P01", "42P02", "42804", "42846"),
)
_PROPERTY = "faultline_raised"
# The end of a traceback in captured text: the innermost frame, its source line, the error.
_TRACEBACK = re.compile(
    r'File "(?P<file>[^"\n]+)", line \d+[^\n]*\n(?: {3,}[^\n]*\n)*(?:\w+\.)*(?P<kind>\w+Error)\b'
)


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception: its class and the classes above it, and the file of its innermost frame."""

    kinds: Sequence[str]
    file: str = ""
    sqlstate: str | None = None


@dataclass(frozen=True, slots=True)
class Ran:
    """One phase of one test."""

    test: str
    outcome: str  # passed, failed or skipped
    seconds: float
    raised: Sequence[Raised] = ()


def broken(ran: Ran, mutated: Path, expected: str = "") -> str | None:
    """Return why this failure is no evidence: the error that says that the code cannot run."""
    for one in ran.raised:
        if one.sqlstate is not None:
            is_broken = one.sqlstate in BROKEN_SQL
        else:
            is_broken = bool({*BROKEN_CODE} & {*one.kinds}) and Path(one.file) == mutated
        if is_broken and expected not in one.kinds:
            return one.kinds[0]
    return None


def read(path: Path) -> list[Ran]:
    """Read the phases that the plugin wrote, in their order."""
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [Ran(**{**line, "raised": [Raised(**one) for one in line["raised"]]}) for line in lines]


def raised_by(error: BaseException) -> Iterator[Raised]:
    """Yield the exception, those in its group, and what it was raised from."""
    trace, file = error.__traceback__, ""
    while trace is not None:
        file, trace = trace.tb_frame.f_code.co_filename, trace.tb_next
    if isinstance(error, SyntaxError):  # it has no frame of its own
        file = error.filename or ""
    kinds = [kind.__name__ for kind in type(error).__mro__]
    yield Raised(kinds, file, getattr(error, "sqlstate", None))
    for inner in getattr(error, "exceptions", ()):
        yield from raised_by(inner)
    if error.__cause__ is not None:
        yield from raised_by(error.__cause__)


def raised_in(text: str) -> Iterator[Raised]:
    """Yield the errors whose tracebacks are in this text."""
    for found in _TRACEBACK.finditer(text):
        yield Raised([found["kind"]], found["file"])


# ── the plugin ───────────────────────────────────────────────────────────────────────────────────


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Attach what was raised to the report of a failed phase."""
    report = yield
    if report.failed and call.excinfo is not None:
        captured = "\n".join(text for _, text in report.sections)
        raised = [*raised_by(call.excinfo.value), *raised_in(f"{call.excinfo.value}\n{captured}")]
        report.user_properties.append((_PROPERTY, [asdict(one) for one in raised]))
    return report


def pytest_configure(config: pytest.Config) -> None:
    """Write the lines of this run; of one with pytest-xdist, in its controller only."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Writer(Path(os.environ[FILE])))


class Writer:
    """Writes each phase as it ends."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logstart(self) -> None:
        """End the process if this test hangs."""
        if LIMIT in os.environ:
            faulthandler.dump_traceback_later(float(os.environ[LIMIT]), exit=True)

    def pytest_runtest_logfinish(self) -> None:
        """The test did not hang."""
        faulthandler.cancel_dump_traceback_later()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Append the line of this phase."""
        raised: Any = dict(report.user_properties).get(_PROPERTY, [])
        ran = Ran(report.nodeid, report.outcome, round(report.duration, 3), raised)
        with self._path.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(asdict(ran)) + "\n")
