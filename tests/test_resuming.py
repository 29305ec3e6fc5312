"""Which mutants are tried: what was caught and is unchanged is not; and what a full run comes to.

Method: pure decisions with tables; `git` on repositories that a test makes; the command, where it
refuses its arguments.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from proofs import guards, resuming
from proofs.evidence import Ran
from proofs.guards import Guard
from proofs.mutants import Bench, figures, installs_otherwise, passing
from proofs.resuming import Result, Results, UnknownCommit, fingerprint, since, sources

CAUGHT = {"unit": "caught", "explorer": "·", "drills": "·", "model": "no Java"}
GUARD = Guard("a guard", "app.py", "a", "b", ["tests/test_app.py::test_it"])


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one guard, of whose proofs every file is there."""
    texts = {
        "src/faultline/app.py": "a",
        "src/faultline/drills/run.py": "",
        "tests/test_app.py": "def test_it(): ...",
        "tests/test_other.py": "",
        "tests/conftest.py": "",
        "tests/stage.py": "",
        **{f"proofs/{name}.py": "" for name in ("mutants", "guards", "evidence")},
        "proofs/explore/steps.py": "",
        "proofs/model/Lease.tla": "",
        "proofs/guards.toml": entry(GUARD),
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for module in (guards, resuming):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    resuming.digest_of.cache_clear()
    return tmp_path


def entry(guard: Guard) -> str:
    lines = [f"{key} = {json.dumps(getattr(guard, key))}" for key in guard.__slots__]
    return "\n".join(["[[guard]]", *lines, ""])


def git(checkout: Path, *arguments: str) -> None:
    who = ["-c", "user.name=T", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *who, *arguments], cwd=checkout, check=True, capture_output=True)


@pytest.mark.parametrize(
    ("verdicts", "is_caught"),
    [
        (CAUGHT, True),
        ({**CAUGHT, "explorer": "caught"}, True),
        ({**CAUGHT, "explorer": "SURVIVED"}, False),
        ({**CAUGHT, "unit": "SURVIVED"}, False),
        ({**CAUGHT, "unit": "no verdict: NameError"}, False),
        ({**CAUGHT, "drills": "no verdict (1): x"}, False),
    ],
)
def test_a_mutant_is_caught_if_each_named_proof_caught_it(
    verdicts: dict[str, str], is_caught: bool
) -> None:
    assert Result("f", verdicts, 1.0).is_caught is is_caught


@pytest.mark.parametrize(
    ("changed", "guard", "is_new"),
    [
        ("src/faultline/app.py", GUARD, True),
        ("tests/test_app.py", GUARD, True),
        ("proofs/evidence.py", GUARD, True),
        ("tests/conftest.py", GUARD, True),
        ("tests/test_other.py", GUARD, False),
        ("proofs/explore/steps.py", GUARD, False),
        ("proofs/explore/steps.py", replace(GUARD, schedule="short:A"), True),
        ("src/faultline/drills/run.py", GUARD, False),
        ("src/faultline/drills/run.py", replace(GUARD, drill="crash-1"), True),
        ("proofs/model/Lease.tla", replace(GUARD, model="no_token"), True),
    ],
)
def test_a_fingerprint_covers_what_the_named_proofs_depend_on(
    checkout: Path, changed: str, guard: Guard, is_new: bool
) -> None:
    before = fingerprint(guard)
    resuming.digest_of.cache_clear()
    assert fingerprint(guard) == before
    (checkout / changed).write_text("changed")
    resuming.digest_of.cache_clear()
    assert (fingerprint(guard) != before) is is_new
    assert fingerprint(replace(guard, without="c")) != before


def test_results_are_kept_one_by_one_until_something_changes(checkout: Path) -> None:
    path = checkout / "reports" / "mutants.json"
    other = replace(GUARD, name="another")
    Results(path).keep(GUARD, CAUGHT, 1.25)
    Results(path).keep(other, {**CAUGHT, "unit": "SURVIVED"}, 7.0)
    again = Results(path)
    assert again.caught(GUARD) == Result(fingerprint(GUARD), CAUGHT, 1.2)
    assert again.caught(other) is None
    assert (again.seconds(GUARD), again.seconds(other)) == (1.2, 7.0)
    assert again.caught(replace(GUARD, without="c")) is None
    again.forget([GUARD])
    assert Results(path).caught(GUARD) is None
    assert Results(path).seconds(other) == 7.0
    assert list(path.parent.iterdir()) == [path]


def edit(checkout: Path) -> None:
    (checkout / "src/faultline/app.py").write_text("a, edited")


def commit(checkout: Path) -> None:
    (checkout / "tests/test_app.py").write_text("def test_it(): 1")
    git(checkout, "commit", "-qam", "x")


def new_entry(checkout: Path) -> None:
    (checkout / "proofs/guards.toml").write_text(entry(replace(GUARD, without="c")))


def new_file(checkout: Path) -> None:
    git(checkout, "rm", "-q", "--cached", "tests/test_app.py")


def unrelated(checkout: Path) -> None:
    (checkout / "tests/test_other.py").write_text("x")


@pytest.mark.parametrize(
    ("change", "count"), [(edit, 1), (commit, 1), (new_entry, 1), (new_file, 1), (unrelated, 0)]
)
def test_since_finds_committed_and_uncommitted_changes(
    checkout: Path, change: Callable[[Path], None], count: int
) -> None:
    git(checkout, "init", "-q")
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", "first")
    git(checkout, "tag", "start")
    assert since("start", guards.guards()) == []
    change(checkout)
    assert len(since("start", guards.guards())) == count


def test_since_an_unknown_commit_is_an_error_that_says_so(checkout: Path) -> None:
    git(checkout, "init", "-q")
    with pytest.raises(UnknownCommit, match="nonesuch"):
        since("nonesuch", [GUARD])


def test_a_guard_depends_on_its_file_and_its_tests_files() -> None:
    assert sources(GUARD) == {"src/faultline/app.py", "tests/test_app.py"}


def ran(test: str, *outcomes: str) -> list[Ran]:
    return [Ran(test, outcome, 0.5) for outcome in outcomes]


def test_only_tests_that_pass_with_all_guards_in_place_are_trusted() -> None:
    phases = [
        *ran("f::good", "passed", "passed", "passed"),
        *ran("f::bad", "passed", "failed", "passed"),
        *ran("f::skipped", "skipped", "passed"),
        *ran("f::both[18]", "passed", "passed"),
        *ran("f::both[15]", "skipped"),
        *ran("f::half[1]", "passed", "passed"),
        *ran("f::half[2]", "passed", "failed"),
    ]
    named = ["f::good", "f::bad", "f::skipped", "f::both", "f::both[18]", "f::half", "f::half[1]"]
    assert passing(phases, [*named, "f::never"]) == {
        "f::good": 1.5,
        "f::both": 1.5,
        "f::both[18]": 1.0,
        "f::half[1]": 1.0,
    }


@pytest.mark.parametrize(
    ("file", "is_other"),
    [
        ("sql/functions/110_claim.sql", True),
        ("sql/roles.sql", True),
        ("script.py", True),
        ("migrate.py", True),
        ("worker/pump.py", False),
        ("cli/migrate.py", False),
    ],
)
def test_mutants_that_change_no_sql_share_one_template(file: str, is_other: bool) -> None:
    assert installs_otherwise(replace(GUARD, file=file)) is is_other


def test_the_fastest_of_a_guards_tests_goes_first() -> None:
    seconds = {"f::slow": 3.0, "f::fast": 1.0}
    bench = Bench(None, "", "", Path(), seconds)  # type: ignore[arg-type]
    assert bench.trusted(replace(GUARD, tests=["f::slow", "f::bad", "f::fast"])) == [
        "f::fast",
        "f::slow",
    ]


def test_figures_count_what_was_caught_by_each_proof() -> None:
    results = {
        "one": Result("f", {**CAUGHT, "explorer": "caught"}, 1.0),
        "two": Result("f", {**CAUGHT, "unit": "SURVIVED"}, 1.0),
    }
    told = figures([replace(GUARD, name=name) for name in results], results, 1)
    assert told == {
        "mutants": 2,
        "caught": 1,
        "survivors": 1,
        "caught_before": 1,
        "caught_by": {"unit": 1, "explorer": 1, "drills": 0, "model": 0},
    }


def mutants(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "proofs.mutants", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_bad_arguments_are_refused_with_the_reason() -> None:
    for arguments, why in (
        (["nonesuch guard"], "no guard has nonesuch guard in its name"),
        (["--since", "nonesuch"], "--since needs a commit of this repository: "),
    ):
        done = mutants(*arguments)
        assert done.returncode == 2
        assert why in done.stderr
