"""The house rules that a machine can keep. EXCEPTIONS may only shrink."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import faultline
from faultline.drills.kinds import KINDS
from faultline.drills.scenario import Scenario
from faultline.protocol import Protocol
from proofs.guards import guards
from proofs.model.run import BROKEN

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "faultline"
BESIDE = [
    path
    for part in ("proofs", "bench", "deploy", "website")
    for path in (ROOT / part).rglob("*.py")
]
PYTHON = [*PACKAGE.rglob("*.py"), *BESIDE, *(ROOT / "tests").glob("*.py")]
SQL = list((PACKAGE / "sql").rglob("*.sql"))

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_COLUMNS = 100
EXCEPTIONS: set[str] = set()

# Imports point downward only: a module may import from its own layer and from those below.
LAYERS = (
    {"cli", "__main__", "pytest_plugin", "effects"},
    {"demo"},
    {"service"},
    {"drills"},
    {
        *{"app", "task", "arguments", "conversion", "plain", "handle", "observer", "telemetry"},
        *{"producer", "caller", "enqueueing"},
        *{"context", "fenced", "outbox", "reference", "worker", "gate", "testing", "story"},
        *{"timeline", "risk", "access", "observing"},
    },
    {
        "protocol",
        "answers",
        "statement",
        "reading",
        "listing",
        "migrate",
        "script",
        "call",
        "columns",
        "direct",
        "connect",
        "launcher",
        "database",
        "conditions",
    },
    {
        *{"config", "errors", "states", "jobs", "events", "retry", "ids", "log", "beats"},
        *{"__init__", "provenance"},
    },
)
STANDARD_ONLY = {"errors", "states", "jobs", "events", "config", "retry", "ids", "log", "beats"}
# The worker's own clock only stops a handler early; the time in an id only sorts; a log has dates;
# the service's says how long a request took, and how long an address has to wait; metrics say how
# long anything took, and a span has times.
MAY_READ_A_CLOCK = {
    *{"worker", "ids", "log", "handle", "launcher", "cli", "testing", "producer", "drills"},
    *{"service", "telemetry", "demo"},
}


def layer_of(module: str) -> int:
    return next(depth for depth, names in enumerate(LAYERS) if module in names)


def imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    found = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def noun(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_no_file_function_or_line_is_too_long() -> None:
    found = set()
    for path in [*PYTHON, *SQL]:
        lines = path.read_text().splitlines()
        if len(lines) > MAX_FILE_LINES:
            found.add(f"{path.name} has more than {MAX_FILE_LINES} lines")
        found |= {
            f"{path.name}:{number} has more than {MAX_COLUMNS} columns"
            for number, line in enumerate(lines, 1)
            if len(line) > MAX_COLUMNS
        }
    for path in PYTHON:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or 0) - node.lineno + 1
                if size > MAX_FUNCTION_LINES:
                    found.add(f"{path.name}: {node.name} has more than {MAX_FUNCTION_LINES} lines")
    assert found == EXCEPTIONS


def test_imports_point_downward_only() -> None:
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        here = noun(path)
        for name in imports(path):
            parts = name.split(".")
            if parts[0] != "faultline" or name == "faultline" or parts[1] in ("__version__", here):
                continue
            if here != "__init__" and layer_of(parts[1]) < layer_of(here):
                wrong.append(f"{here} imports {parts[1]}, which stands above it")
    assert wrong == []


def test_values_need_only_the_standard_library() -> None:
    for path in PACKAGE.glob("*.py"):
        if path.stem in STANDARD_ONLY:
            assert not {name for name in imports(path) if name.split(".")[0] in ("psycopg", "rich")}


def test_nobody_but_config_and_the_command_line_reads_the_environment() -> None:
    readers = {
        noun(path)
        for path in PACKAGE.rglob("*.py")
        if re.search(r"\bos\.(environ|getenv)\b", path.read_text())
    }
    # Drills and the demo pass it on to what they start.
    assert readers <= {"config", "cli", "drills", "demo"}


def test_nobody_reads_a_clock_to_decide_about_a_lease() -> None:
    clocks = re.compile(r"\btime\.(time|monotonic)\(|datetime\.now\(|\bnow\(\)")
    for path in PACKAGE.rglob("*.py"):
        if noun(path) not in MAY_READ_A_CLOCK:
            assert not clocks.search(path.read_text()), path.name
    for path in (PACKAGE / "worker").glob("*.py"):
        assert not re.search(r"\btime\.time\(", path.read_text()), path.name
    for path in (PACKAGE / "sql").rglob("*.sql"):
        code = re.sub(r"--.*", "", path.read_text())
        assert not re.search(r"\bnow\(\)|current_timestamp", code), path.name


def test_the_verbs_have_no_exception_blocks_and_no_two_writers_in_one_statement() -> None:
    for path in (PACKAGE / "sql" / "functions").glob("*.sql"):
        code = re.sub(r"--.*", "", path.read_text())
        assert "exception when" not in code, path.name
        for statement in code.split(";"):
            writers = re.findall(r"\b(insert into|update \w+ \w* ?set|delete from)\b", statement)
            assert len(writers) <= 1, f"{path.name}: {statement.strip()[:80]}"


def test_every_function_that_a_role_may_call_has_its_method_and_every_method_its_function() -> None:
    granted = re.sub(r"--.*", "", (PACKAGE / "sql" / "roles.sql").read_text())
    functions = set(re.findall(r"\{schema\}\.([a-z_]+)", granted))
    methods = {name for name in vars(Protocol) if not name.startswith("_")}
    assert functions - methods == {
        "schema_version",
        "new_id",  # asked before, and instead of, verbs
        "guard_tree",
        "sleeping",  # asked by a view
        "shown_bytes",  # likewise
        "backlog",  # a question, with a method in Reading
        "check_guard",  # needed by guard and unguard, which run with the rights of their caller
    }
    assert methods <= functions


def test_the_public_names_are_just_these() -> None:
    api = (
        "App Backoff Cancel Context Job Message Retry Snooze State Task aassert_fence assert_fence"
    )
    errors = (
        "AppNotFound CommitUnknown DatabaseUnavailable DuplicateTask FaultlineError "
        "IdempotencyConflict InvalidArgument JobCancelled JobFailed JobNotFound KeyInFlight "
        "LauncherError LockedOut "
        "MigrationRefused NotPermitted PayloadTooLarge SchemaMismatch ServerTooOld StaleLease "
        "Unfenced UnknownTask WrongArguments WrongIsolation"
    )
    assert sorted(faultline.__all__) == sorted([*api.split(), *errors.split()])
    assert all(hasattr(faultline, name) for name in faultline.__all__)


def test_every_guard_is_still_there_to_be_removed_and_its_tests_exist() -> None:
    listed = guards()
    assert len({guard.name for guard in listed}) == len(listed)
    for guard in listed:
        assert (PACKAGE / guard.file).read_text().count(guard.text) == 1, guard.name
        for test in guard.tests:
            file, name = test.split("::")
            assert f"def {name.split('[')[0]}(" in (ROOT / file).read_text(), guard.name
        assert not guard.drill or Scenario.parse(guard.drill).kind in KINDS, guard.name
        assert guard.model in ("", *(broken.variant for broken in BROKEN)), guard.name


def test_nothing_in_the_tree_names_the_machine_it_was_made_on_or_is_left_undone() -> None:
    # Written apart, so that this file does not find itself.
    words = "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"])
    marks = re.compile(rf"\b({words})\b|(?<![\w.])/(root|work|home)/")
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for path in [*PYTHON, *SQL, *documents, ROOT / "Makefile"]:
        assert not marks.search(path.read_text()), path
