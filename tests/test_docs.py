"""The tutorial, the how-tos and the reference: every example is run, and nothing is left out."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import MISSING, fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

import faultline
from faultline import config, errors
from faultline.cli import app as command_line
from faultline.effects import http, postgres, redis, s3
from faultline.events import CATALOGUE
from faultline.fenced.session import Session
from faultline.fenced.transaction import Transaction
from faultline.handle import Job
from faultline.jobs import Status
from faultline.launcher import Server
from faultline.launcher.binaries import find
from faultline.risk import HIGH, MEDIUM, RULES
from faultline.service import service
from faultline.telemetry.catalogue import METRICS
from faultline.testing import Testing
from faultline.worker import WorkerOptions
from faultline.worker.keeper import STUCK
from proofs.peers.redis import any_server
from tests.documents import Reader, Shown, blocks
from tests.pooler import pgbouncer
from tests.sessions import Sessions, typed
from tests.sinks import redis_server, s3_server

DOCS = Path(__file__).parent.parent / "docs"
PAGES = [
    *(DOCS / "tutorial.md", DOCS / "back-from-the-dead.md"),
    *(DOCS / "drills.md", DOCS / "security.md", DOCS / "comparison.md"),
    *sorted((DOCS / "explanation").glob("*.md")),
    *sorted((DOCS / "how-to").glob("*.md")),
    DOCS / "reference.md",
]
RUN = {"python", "py", "console", "sql", "psql"}
NOT_TYPED = {"ini", "dockerfile", "text", "sh", "yaml"}
# What a page shows in such a block: how its first line begins, and who tries it all the same; or,
# after a dash, what it would need.
TRIED_ELSEWHERE = {
    "drills.md": {"make drills": "Makefile", '{"scenarios"': "tests/test_drills.py"},
    "security.md": {"postgresql://shop_worker": "tests/test_tls.py"},
    "explanation/why-the-database.md": {"delete from lease": "tests/test_fence_interleavings.py"},
    "how-to/backup-and-restore.md": {
        "pg_dumpall": "tests/test_restore.py",
        "restore_command": "tests/test_restore.py",
    },
    "how-to/containers.md": {"FROM faultline": "proofs/containers/image.py"},
    "how-to/dashboard.md": {"$ faultline demo --serve": "tests/test_demo.py"},
    "how-to/deploying-workers.md": {"ok       pooler": "tests/test_doctor_command.py"},
    "how-to/from-procrastinate.md": {"with moved as": "proofs/guides.py"},
    "how-to/kubernetes.md": {
        "docker run": "- a registry with the image; proofs/containers/image.py runs it otherwise",
        "kubectl create secret": "- a cluster",
        "# shop.yaml": "tests/test_chart.py",
        "helm install": "proofs/chart/trying.py",
        "workers:": "tests/test_chart.py",
        "kubectl get": "- a cluster; tests/test_probes.py asks the same of a worker",
    },
    "how-to/poolers.md": {"[pgbouncer]": "tests/test_docs.py"},
    "how-to/runbooks.md": {"warn     unknown_tasks": "tests/test_doctor_work.py"},
    "how-to/systemd.md": {
        "python3 -m venv": "- a host of one's own; tests/test_systemd.py starts what units do",
        "# /etc/faultline/shop.env": "tests/test_systemd.py",
        "# /etc/faultline/api.env": "tests/test_systemd.py",
        "systemctl daemon-reload": "- systemd as the first process",
        "[Service]": "- systemd as the first process",
    },
    "how-to/upgrading.md": {
        "pg_dumpall": "tests/test_server_upgrade.py",
        "create publication": "tests/test_server_upgrade.py",
        "create subscription": "tests/test_server_upgrade.py",
        "select format(": "tests/test_server_upgrade.py",
        "drop subscription": "tests/test_server_upgrade.py",
    },
    "how-to/watching.md": {"╷enqueued": "tests/test_timeline.py"},
    "how-to/write-gate.md": {"begin;": "tests/test_write_gate.py"},
}
# The other pages that show something, and who tries that.
OTHER_PAGES = {
    "model.md": "tests/test_model.py",
    "operating.md": "tests/test_readme.py",
    "releasing.md": "tests/test_release.py",
    "what-is-proved.md": "tests/test_explore.py",
}
BY_A_TARGET = {"containers.md": "compose-check"}  # what types the page, since it needs an engine
REFERENCE = (DOCS / "reference.md").read_text()
# What the readers of a page have beside the package and a database: a fixture below.
SCENERY = {
    "outside-effects.md": "sinks",
    "backup-and-restore.md": "place_to_restore",
    "poolers.md": "pooled",
}


# ── the examples ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def environment(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """A shell that has the package and nothing else; the tutorial has to make its own server."""
    tmp_path.chmod(0o755)
    (tmp_path / "project").mkdir()
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "HOME": str(tmp_path),
        "FAULTLINE_HOME": str(tmp_path / "home"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    page: Path = request.getfixturevalue("page")
    if page.name == "tutorial.md":
        yield environment
        Server(tmp_path / "home").stop(patience_seconds=5)
        return
    environment["FAULTLINE_DATABASE_URL"] = request.getfixturevalue("database")
    if (scenery := SCENERY.get(page.name)) is not None:
        environment |= request.getfixturevalue(scenery)
    yield environment


@pytest.fixture
def sinks(elsewhere: str) -> Iterator[dict[str, str]]:
    """What the page on outside effects writes to, where its readers have theirs."""
    if any_server() is None:
        pytest.skip("there is no Redis server")
    with redis_server() as cache, s3_server() as store:
        yield {
            "REDIS_URL": cache,
            "WAREHOUSE_URL": elsewhere,
            "AWS_ENDPOINT_URL": store,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }


@pytest.fixture
def place_to_restore(empty_database: str) -> dict[str, str]:
    """PostgreSQL's own programs, and an empty database."""
    programs = find().directory
    path = f"{programs}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "RESTORED_URL": empty_database}


@pytest.fixture
def pooled(database: str) -> Iterator[dict[str, str]]:
    """A PgBouncer with the settings of the page before the page's database."""
    if shutil.which("pgbouncer") is None:
        pytest.skip("pgbouncer is not installed")
    (shown,) = (b.text for b in blocks(DOCS / "how-to" / "poolers.md") if b.language == "ini")
    with pgbouncer(database, shown.removeprefix("[pgbouncer]\n")) as url:
        yield {"FAULTLINE_DATABASE_URL": url, "DIRECT_URL": database}


@pytest.mark.parametrize(
    "page", [p for p in PAGES if p.name not in BY_A_TARGET], ids=lambda page: page.stem
)
def test_who_does_what_a_page_says_gets_what_it_says(
    page: Path, database: str, environment: dict[str, str], tmp_path: Path
) -> None:
    with Reader(page, tmp_path / "project", environment) as reader:
        for block in blocks(page):
            assert block.language in RUN | NOT_TYPED, f"{page.name}, line {block.line}"
            reader.do(block)
        assert reader.status == 0, "the last command failed, and the page does not say so"


def test_what_is_not_typed_is_tried_elsewhere_or_cannot_be() -> None:
    for page in PAGES:
        shown = [b.text.split("\n")[0].strip() for b in blocks(page) if b.language in NOT_TYPED]
        told = TRIED_ELSEWHERE.get(str(page.relative_to(DOCS)), {})
        assert len(shown) == len(told), page.name
        for line, (begins, where) in zip(shown, told.items(), strict=True):
            assert line.startswith(begins), f"{page.name}: {line}"
            assert where.startswith("- ") or (DOCS.parent / where).is_file(), where


def test_no_page_shows_what_nobody_tries() -> None:
    others = {page for page in DOCS.rglob("*.md") if page not in PAGES and blocks(page)}
    assert others == {DOCS / name for name in OTHER_PAGES}
    for page, where in OTHER_PAGES.items():
        assert page in (DOCS.parent / where).read_text(), where


def test_a_page_that_is_typed_by_a_target_says_so() -> None:
    makefile = (DOCS.parent / "Makefile").read_text()
    for page, target in BY_A_TARGET.items():
        assert f"`make {target}`" in (DOCS / "how-to" / page).read_text()
        assert f"\n{target}: " in makefile


def test_the_comparison_with_what_a_page_shows_can_fail() -> None:
    """Times, ids and workers may differ; nothing else may, and an id stays the same."""
    one, two = "01a1e1da-c41c-7f17-a3a0-8a32b3b5afca", "01a1e1da-c5b2-7b40-a854-09afc468715b"
    ids: dict[str, str] = {}
    assert Shown([f"{one}  done in 6 ms", f"{one}  now"], ids).is_all_of(
        f"{two} done in 1.02 s\n{two}  2 s ago\n"
    )
    assert ids == {one: two}
    assert not Shown([one], ids).is_all_of(f"{one}\n")
    assert Shown(["worker web-1:11:095a0215 …", "…", "end"], {}).is_all_of(
        "worker vm:7:1e55c68e.2.1 ends: drained\none\ntwo\nend\n"
    )
    assert not Shown(["succeeded"], {}).is_all_of("failed\n")
    assert not Shown(["one"], {}).is_all_of("one\ntwo\n")
    assert not Shown([], {}).is_all_of("something\n")


def test_the_sessions_of_a_page_are_played_and_print_what_psql_prints(database: str) -> None:
    text = "A=> begin;\nBEGIN\nB=> select 1 as one,\n    'b' as b;  -- two lines\n one | b\n…\n"
    assert typed(text) == [
        ("A", "begin;", ["BEGIN"]),
        ("B", "select 1 as one,\n    'b' as b;  -- two lines", [" one | b", "…"]),
    ]
    with closing(Sessions(database)) as sessions:

        def prints(session: str, statement: str, *lines: str) -> bool:
            return [line.rstrip() for line in sessions.run(session, statement).splitlines()] == [
                *lines
            ]

        assert prints("A", "create table seen (n int)", "CREATE TABLE")
        sessions.run("A", "begin; insert into seen values (1), (22)")
        assert prints("B", "select * from seen", " n", "---", "(0 rows)")
        assert prints("A", "select * from seen", " n", "----", "  1", " 22", "(2 rows)")
        assert prints("B", "select 1 / 0", "ERROR:  division by zero")
        shown = " yes | name", "-----+------", " t   | a", "(1 row)"
        assert prints("B", "select true as yes, 'a' as name", *shown)
        assert not prints("B", "select false as yes, 'a' as name", *shown)


# ── the reference is complete ────────────────────────────────────────────────────────────────────


def named(name: str) -> bool:
    """Whether the reference has this name in code."""
    return re.search(rf"`[^`\n]*\b{re.escape(name)}\b[^`\n]*`", REFERENCE) is not None


def test_every_public_name_is_in_the_reference() -> None:
    assert [name for name in faultline.__all__ if not named(name)] == []


@pytest.mark.parametrize("module", [http, redis, s3, postgres], ids=lambda module: module.__name__)
def test_every_function_for_an_effect_is_in_the_reference(module: ModuleType) -> None:
    own = [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and name[0] != "_"
    ]
    assert own
    assert [name for name in own if not named(f"{module.__name__.split('.')[-1]}.{name}")] == []


def test_every_error_is_in_its_table() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", REFERENCE, re.MULTILINE))
    classes = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert {name for name in faultline.__all__ if name in classes} - rows == {"FaultlineError"}


@pytest.mark.parametrize(
    "kind",
    [faultline.App, faultline.Task, Job, faultline.Context, Transaction, Session, Testing],
    ids=lambda kind: kind.__name__,
)
def test_every_public_method_is_in_the_reference(kind: type) -> None:
    internal = {"arguments", "producer", "place", "dump_result", "arguments_for", "load_result"}
    public = {name for name in dir(kind) if not name.startswith("_")} - internal
    assert sorted(name for name in public if not named(name)) == []


@pytest.mark.parametrize(
    "function",
    [
        *(faultline.App.__init__, faultline.App.task, faultline.App.testing),
        *(faultline.Backoff.__init__, faultline.Retry.__init__, faultline.Snooze.__init__),
        *(faultline.Cancel.__init__, faultline.assert_fence, faultline.Context.__init__),
        *(faultline.Context.transaction, faultline.Context.session, Transaction.emit),
        *(faultline.App.relay, Transaction.complete, Transaction.record),
        *(Testing.drain, Testing.expire_lease, Testing.take_over),
        service,
        *(http.fenced_headers, redis.fenced_command, s3.fenced_put, postgres.fence),
    ],
    ids=lambda function: function.__qualname__,
)
def test_the_parameters_and_defaults_of_the_reference_are_those_of_the_code(function: Any) -> None:
    hidden = {"self", "f", "job", "attempt_of", "means"}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in hidden or parameter.kind is parameter.VAR_POSITIONAL:
            continue
        given = parameter.default
        shown = parameter.name
        if given is not parameter.empty and parameter.name != "retry":
            shown += f"={given!r}".replace("'", '"')
        assert re.search(rf"`[^`\n]*{re.escape(shown)}[^`\n]*`", REFERENCE), shown


def test_every_option_of_an_enqueue_is_in_the_reference() -> None:
    from faultline.enqueueing import Options

    rows = set(re.findall(r"^\| `(\w+)=", REFERENCE, re.MULTILINE))
    assert Options.__annotations__.keys() - rows == set()


def test_every_option_of_a_worker_is_in_the_reference_with_its_default() -> None:
    for field in fields(WorkerOptions):
        default = repr(field.default).replace("'", '"')
        assert f"| `{field.name}` | `{default}` |" in REFERENCE, field.name


def test_every_field_of_a_status_is_in_the_reference() -> None:
    assert [field.name for field in fields(Status) if not named(field.name)] == []


def test_every_event_is_in_the_reference_with_its_level_and_fields() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.*) \|$", REFERENCE, re.MULTILINE)
    shown = {name: (level, re.findall(r"`(\w+)(\??)`", cells)) for name, level, cells, _ in rows}
    for event in CATALOGUE:
        own = [
            (field.name, "?" if field.default is None else "")
            for field in fields(event)
            if field.name != "worker"
        ]
        assert all(field.default in (MISSING, None, False) for field in fields(event))
        assert shown.get(event.event) == (event.level, own), event.event


def test_every_command_is_in_the_reference() -> None:
    def commands(group: Any, path: str) -> Iterator[str]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from commands(command, f"{path} {name}")
            else:
                yield f"{path} {name}"

    found = list(commands(typer.main.get_command(command_line), "faultline"))
    assert len(found) > 20
    assert [name for name in found if not re.search(rf"^\| `{name}[ `]", REFERENCE, re.M)] == []


def test_every_route_of_the_service_is_in_the_reference_and_no_other() -> None:
    routes = {
        f"{method.upper()} {path}"
        for path, methods in service(faultline.App("")).openapi()["paths"].items()
        for method in methods
    }
    assert set(re.findall(r"^\| `((?:GET|POST) \S+)` \|", REFERENCE, re.MULTILINE)) == routes


def test_every_metric_is_on_its_page_with_its_kind_labels_and_place_and_no_other() -> None:
    page = (DOCS / "how-to" / "monitoring.md").read_text()
    rows = re.findall(
        r"^\| `(faultline_\w+)` \| (\w+) \| (.*?) ?\| (\w+) \| \S", page, re.MULTILINE
    )
    shown = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)), where)
        for name, kind, labels, where in rows
    }
    assert shown == {m.name: (m.kind, m.labels, m.where) for m in METRICS.values()}


def test_every_sign_of_the_risk_is_on_its_page_with_its_points() -> None:
    page = (DOCS / "how-to" / "http-api.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \+ (\d+) ≤ (\d+) \|", page, re.MULTILINE)
    shown = {name: tuple(map(int, points)) for name, *points in rows}
    assert shown == {name: (rule.first, rule.each, rule.most) for name, rule in RULES.items()}
    assert f"from {MEDIUM} on the risk is `medium`, from {HIGH} on `high`" in page


def test_every_variable_and_exit_status_is_in_the_reference() -> None:
    assert config.__doc__ is not None
    variables = re.findall(r"^(FAULTLINE_\w+|NO_COLOR)", config.__doc__, re.MULTILINE)
    assert len(variables) >= 6
    assert [name for name in variables if f"| `{name}" not in REFERENCE] == []
    for status in (0, 1, 2, 3, STUCK, 130):
        assert f"| {status} |" in REFERENCE
