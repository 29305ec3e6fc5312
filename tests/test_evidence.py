"""What counts as a mutant that was caught: a broken rule, and not code that cannot run.

Method: tables of failures; and a pytest process that runs failing tests under the plugin.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psycopg
import pytest

from proofs.evidence import FILE, LIMIT, Raised, Ran, broken, raised_by, raised_in, read

MUTATED = Path("/copy/faultline/worker/pump.py")
HERE, TESTS = str(MUTATED), "/checkout/tests/test_worker.py"
ABOVE = ("Exception", "BaseException", "object")


@pytest.mark.parametrize(
    ("raised", "why"),
    [
        ([Raised(("AssertionError", *ABOVE), TESTS)], None),
        ([Raised(("Failed", *ABOVE), TESTS)], None),  # pytest.raises saw nothing raised
        ([Raised(("StaleLease", "FaultlineError", *ABOVE), HERE)], None),
        ([Raised(("KeyError", "LookupError", *ABOVE), HERE)], None),
        ([Raised(("NameError", *ABOVE), HERE)], "NameError"),
        ([Raised(("UnboundLocalError", "NameError", *ABOVE), HERE)], "UnboundLocalError"),
        ([Raised(("AttributeError", *ABOVE), HERE)], "AttributeError"),
        ([Raised(("TypeError", *ABOVE), HERE)], "TypeError"),
        ([Raised(("IndentationError", "SyntaxError", *ABOVE), HERE)], "IndentationError"),
        ([Raised(("ModuleNotFoundError", "ImportError", *ABOVE), HERE)], "ModuleNotFoundError"),
        ([Raised(("TypeError", *ABOVE), TESTS)], None),  # the test's own
        ([Raised(("UndefinedColumn", "Error", *ABOVE), HERE, "42703")], "UndefinedColumn"),
        ([Raised(("SyntaxError", "Error", *ABOVE), TESTS, "42601")], "SyntaxError"),
        ([Raised(("InsufficientPrivilege", "Error", *ABOVE), TESTS, "42501")], None),
        ([Raised(("DuplicatePreparedStatement", "Error", *ABOVE), HERE, "42P05")], None),
        ([Raised(("UniqueViolation", "Error", *ABOVE), HERE, "23505")], None),
        ([Raised(("OperationalError", "Error", *ABOVE), HERE)], None),
        # What it was raised from, and what a thread's traceback says, count too.
        ([Raised(("JobFailed", *ABOVE), TESTS), Raised(("NameError",), HERE)], "NameError"),
    ],
)
def test_broken_code_is_no_evidence(raised: Sequence[Raised], why: str | None) -> None:
    assert broken(Ran("t", "failed", 0.1, raised), MUTATED) == why


def test_an_error_that_the_guard_prevents_is_evidence() -> None:
    ran = Ran("t", "failed", 0.1, [Raised(("TypeError", *ABOVE), HERE)])
    assert broken(ran, MUTATED, expected="TypeError") is None
    assert broken(ran, MUTATED, expected="NameError") == "TypeError"


def test_an_exception_is_described_with_its_causes_and_its_group() -> None:
    def fail() -> None:
        raise TypeError("inner")

    try:
        try:
            fail()
        except TypeError as error:
            raise ExceptionGroup("all", [psycopg.errors.UndefinedTable()]) from error
    except ExceptionGroup as error:
        found = list(raised_by(error))
    assert [one.kinds[0] for one in found] == ["ExceptionGroup", "UndefinedTable", "TypeError"]
    assert [one.sqlstate for one in found] == [None, "42P01", None]
    assert found[2].file == __file__


CAPTURED = f"""
Traceback (most recent call last):
  File "/usr/lib/python3.11/threading.py", line 1045, in _bootstrap_inner
    self.run()
  File "{HERE}", line 7, in run
    return undefined
           ^^^^^^^^^
NameError: name 'undefined' is not defined
ValueError: no traceback
Traceback (most recent call last):
  File "{TESTS}", line 3, in handler
    raise faultline.errors.JobError("x")
faultline.errors.JobError: x
"""


def test_tracebacks_in_captured_text_are_found() -> None:
    found = [(one.kinds[0], one.file) for one in raised_in(CAPTURED)]
    assert found == [("NameError", HERE), ("JobError", TESTS)]


TESTS_OF_A_MUTANT = """
import sys, threading
sys.path.insert(0, {folder!r})
import mutated

def test_passes(): pass
def test_asserts(): assert mutated.one() == 2
def test_name(): mutated.name()
def test_process():
    import subprocess
    subprocess.run([sys.executable, "-c", "import mutated; mutated.name()"], cwd={folder!r})
    assert False
def test_thread():
    thread = threading.Thread(target=mutated.name)
    thread.start()
    thread.join()
"""


def test_the_plugin_writes_what_was_raised(tmp_path: Path) -> None:
    mutated = tmp_path / "mutated.py"
    mutated.write_text("def one(): return 1\ndef name(): return undefined\n")
    (tmp_path / "test_it.py").write_text(TESTS_OF_A_MUTANT.format(folder=str(tmp_path)))
    evidence = tmp_path / "phases.jsonl"
    options = ["-q", "-p", "proofs.evidence", "-p", "no:cacheprovider", "-W", "error"]
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--rootdir", tmp_path, tmp_path / "test_it.py"],
        cwd=root,
        env={**os.environ, FILE: str(evidence), "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    phases = read(evidence)
    verdicts = {
        ran.test.partition("::")[2]: broken(ran, mutated)
        for ran in phases
        if ran.outcome == "failed"
    }
    assert verdicts == {
        "test_asserts": None,
        "test_name": "NameError",
        "test_process": "NameError",
        "test_thread": "NameError",
    }
    assert {ran.outcome for ran in phases if ran.test.endswith("test_passes")} == {"passed"}
    assert all(ran.seconds >= 0 for ran in phases)


def test_a_test_that_hangs_ends_the_process_without_a_failure(tmp_path: Path) -> None:
    hanging = "import threading\n\ndef test_it(): threading.Event().wait()\n"
    (tmp_path / "test_it.py").write_text(hanging)
    evidence = tmp_path / "phases.jsonl"
    options = ["-q", "-p", "proofs.evidence", "-p", "no:cacheprovider"]
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--rootdir", tmp_path, tmp_path / "test_it.py"],
        cwd=root,
        env={**os.environ, FILE: str(evidence), LIMIT: "0.5", "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert [ran.outcome for ran in read(evidence)] == ["passed"]  # its set-up
