"""`faultline demo` as a stranger runs it: the story, the summary, nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from urllib.request import urlopen

import psycopg
import pytest
from rich.console import Console

from faultline.demo.story import Played, Timeline, summarise
from tests.conftest import database_url
from tests.documents import blocks
from tests.stage import DEADLINE_SECONDS, Stage, until

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"


def start(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """The demo in a folder of its own, so that its report does not land in the checkout."""
    return subprocess.Popen(
        [sys.executable, "-m", "faultline", "demo", *arguments],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )


def offspring(folder: Path) -> list[str]:
    """Processes that have to do with this demo: in its folder, or with it in their command."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode(errors="replace")
            if str(folder) in command or str(process.joinpath("cwd").readlink()).startswith(
                str(folder)
            ):
                found.append(command.replace("\0", " "))
        except OSError:
            continue
    return found


def plain(line: str) -> str:
    """Without what differs from run to run."""
    return re.sub(r"[\d.]+ s\b|process \d+", "…", line)


def left_behind(url: str) -> list[str]:
    """The demo's schemas in this database; roles are the whole server's, which others use."""
    with psycopg.connect(url, autocommit=True) as conn:
        found = conn.execute("select nspname from pg_namespace where nspname ~ '^faultline_demo_'")
        return sorted(name for (name,) in found.fetchall())


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    tmp_path.chmod(0o755)
    yield tmp_path
    until(lambda: offspring(tmp_path) == [], "nobody is left")


def test_a_takeover_is_told_before_what_follows_from_it() -> None:
    """Two threads of the worker say these: the one that claims may be quicker."""
    said = StringIO()
    timeline = Timeline(Console(file=said, width=200))
    timeline.orders["j"] = 7
    for actor, event in (
        ("A", "lease_acquired"),
        ("B", "lease_acquired"),
        ("B", "execution_started"),
        ("B", "lease_reclaimed"),
        ("B", "job_completed"),
    ):
        at = "2026-01-01T00:00:00+00:00"
        timeline({"actor": actor, "event": event, "job_id": "j", "token": 1, "at": at})
    told = [line.split(" s  ")[1].split()[:2] for line in said.getvalue().splitlines()]
    words = [["A", "claims"], ["B", "finds"], ["B", "claims"], ["B", "calls"], ["B", "has"]]
    assert told == words


def test_the_demo_tells_the_story_and_ends_with_its_summary(folder: Path) -> None:
    demo = start(folder)
    out, error = demo.communicate(timeout=120)
    assert demo.returncode == 0, error
    *story, last = out.strip().splitlines()
    told = "\n".join(story)
    for words in ("A claims the job under token 1", "A stalls", "B claims the job under token 2"):
        assert words in told
    lines = [plain(line) for line in story]
    shown = [line for line in blocks(README)[0].text.splitlines()[1:] if line != "…"]
    found = [lines.index(plain(line)) for line in shown]
    assert found == sorted(found), "as the README shows it"
    assert told.index("A wakes up") < told.index("A REFUSED by the database: token 1 is stale")
    assert "\x1b" not in out, "colours only on a terminal"
    summary = json.loads(last)
    assert summary == json.loads((folder / "reports/latest/benchmark_summary.json").read_text())
    assert summary["faultline_duplicates"] == 0
    assert summary["invariant_violations"] == 0
    assert summary["lost_jobs"] == 0
    assert summary["stale_writes_prevented"] >= 1
    assert told.index("REFUSED") < told.index("A claims the next job under token 1"), "A lives on"
    assert summary["safe_for_controlled_release_validation"] is True
    assert (summary["fault_rate"], summary["faults"]) == (0.2, 8)
    assert summary["naive_duplicates"] >= 0, (
        "whatever it is: other tests see that it can be counted"
    )
    assert told.index("A has charged order 8") < told.index("naive queue")
    assert "invalid" not in error


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process_behind(folder: Path, sign: signal.Signals) -> None:
    demo = start(folder)
    assert demo.stdout is not None
    until(lambda: "A stalls" in demo.stdout.readline(), "A is stopped")  # the worst moment
    demo.send_signal(sign)
    demo.communicate(timeout=120)
    assert demo.returncode == (130 if sign == signal.SIGINT else 143)


def test_a_folder_that_cannot_be_written_is_named_before_the_story(folder: Path) -> None:
    (folder / "figures").write_text("a file")
    demo = start(folder, "--out", "figures")
    out, error = demo.communicate(timeout=120)
    assert (demo.returncode, out) == (1, "")
    assert "figures is no folder to write to: name another one with --out" in error
    assert "Traceback" not in error


def test_a_port_that_is_taken_is_named_before_the_story(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        demo = start(folder, "--serve", "--port", str(port))
        assert demo.stdout is not None
        begun = demo.stdout.readline()
        if begun:
            demo.kill()  # else it would go on for ever
        _, error = demo.communicate(timeout=120)
    assert (demo.returncode, begun) == (1, "")
    assert error.startswith(f"faultline: cannot listen on 127.0.0.1 port {port} ")
    assert "take another with --port" in error
    assert "Traceback" not in error
    assert not (folder / "reports").exists()


def test_a_demo_killed_outright_leaves_no_process_behind(folder: Path) -> None:
    demo = start(folder)
    assert demo.stdout is not None
    until(lambda: "A stalls" in demo.stdout.readline(), "A is stopped")
    demo.kill()
    demo.communicate(timeout=120)
    until(lambda: offspring(folder) == [], "the watchdog and the kernel have cleared up")


def test_the_demo_runs_on_a_server_of_the_users_own(folder: Path, empty_database: str) -> None:
    demo = start(folder, "--json", "--out", "figures", FAULTLINE_DATABASE_URL=empty_database)
    out, error = demo.communicate(timeout=120)
    assert demo.returncode == 0, error
    assert json.loads(out) == json.loads((folder / "figures/benchmark_summary.json").read_text())
    assert "A REFUSED by the database" in error, "the story, where it is in nobody's way"
    assert left_behind(empty_database) == []


def contents(url: str) -> list[object]:
    """All that an installation and its user's own table say, and what holds it together."""
    with psycopg.connect(url, autocommit=True) as conn:
        tables = conn.execute(
            "select format('%I.%I', schemaname, tablename) from pg_tables "
            "where schemaname !~ '^(pg_|information_schema)' order by 1"
        ).fetchall()
        rows = [
            (name, conn.execute(f"select t::text from {name} t order by 1").fetchall())
            for (name,) in tables
        ]
        about = "select nspname, obj_description(oid, 'pg_namespace') from pg_namespace order by 1"
        return [*rows, conn.execute(about).fetchall()]


def test_the_demo_leaves_the_installation_that_is_there_as_it_was(
    folder: Path, stage: Stage
) -> None:
    """With jobs that its workers could take, schemas of its names, and of another version."""
    for queue, task in (("shop", "charge"), ("comparison", "order")):
        stage.enqueue(task, {"order_id": 1}, queue=queue)
    for name in ("demo", "naive", "comparison"):
        stage.execute(f"create schema faultline_{name}")
        stage.execute(f"create table faultline_{name}.mine as select 1 as one")
    stage.execute("comment on schema {schema} is 'an older version'")
    stage.execute("delete from {schema}.migration where version > 1")
    before = contents(stage.url)
    demo = start(folder, FAULTLINE_DATABASE_URL=stage.url)
    _, error = demo.communicate(timeout=120)
    assert demo.returncode == 0, error
    assert contents(stage.url) == before
    assert left_behind(stage.url) == []


def test_two_demos_on_one_database_do_not_meet(folder: Path, empty_database: str) -> None:
    both = [
        start(folder, "--json", "--out", name, FAULTLINE_DATABASE_URL=empty_database)
        for name in ("one", "two")
    ]
    for demo in both:
        out, error = demo.communicate(timeout=180)
        assert demo.returncode == 0, error
        assert "Charges in the shop's own table: 2 " in error
        assert json.loads(out)["jobs"] == 40
    assert left_behind(empty_database) == []


def test_a_user_who_may_only_make_schemas_can_see_the_demo(
    folder: Path, empty_database: str
) -> None:
    name = f"visitor_{uuid.uuid4().hex}"
    parts = urlsplit(empty_database)
    address = parts.netloc.rpartition("@")[2]
    visitor = urlunsplit(parts._replace(netloc=f"{name}:secret@{address}"))
    with psycopg.connect(empty_database, autocommit=True) as conn:
        conn.execute(f"create role {name} login password 'secret'")
        try:
            conn.execute(f"grant create on database {parts.path[1:]} to {name}")
            demo = start(folder, FAULTLINE_DATABASE_URL=visitor)
            _, error = demo.communicate(timeout=120)
            assert demo.returncode == 0, error
            assert left_behind(empty_database) == []
        finally:
            conn.execute(f"drop owned by {name} cascade")
            conn.execute(f"drop role {name}")


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["A stalls", "of 8 faults"])
def test_an_interrupted_demo_leaves_nothing_in_the_users_database(
    folder: Path, empty_database: str, sign: signal.Signals, moment: str
) -> None:
    demo = start(folder, FAULTLINE_DATABASE_URL=empty_database)
    assert demo.stdout is not None
    said = []
    too_long = threading.Timer(3 * DEADLINE_SECONDS, demo.kill)
    too_long.start()
    for line in demo.stdout:
        said.append(line)
        if moment in line:
            break
    else:
        pytest.fail(f"it ended: {demo.communicate(timeout=120)[1]}, after {said}")
    too_long.cancel()
    assert left_behind(empty_database) != []
    demo.send_signal(sign)
    demo.communicate(timeout=120)
    assert demo.returncode == (130 if sign == signal.SIGINT else 143)
    assert left_behind(empty_database) == []


def test_the_demo_goes_on_with_the_dashboard_until_it_is_interrupted(
    folder: Path, empty_database: str
) -> None:
    demo = start(folder, "--serve", "--port", "0", FAULTLINE_DATABASE_URL=empty_database)
    assert demo.stdout is not None
    said: list[str] = []

    def address() -> str | None:
        said.append(demo.stdout.readline())
        found = re.match(r"The dashboard: (http://\S+)", said[-1])
        return found[1] if found else None

    url = until(address, "it says where the dashboard is")
    assert any(line.startswith('{"fault_rate"') for line in said), "the story came first"

    def workers() -> bytes:
        with urlopen(f"{url}/workers", timeout=60) as page:
            return page.read()

    until(lambda: b"Stall this worker" in workers(), "a worker can be stalled")
    demo.send_signal(signal.SIGINT)
    demo.communicate(timeout=120)
    assert demo.returncode == 130
    assert left_behind(empty_database) == []


def played(**facts: object) -> Played:
    usual = {"charges": [(7, 2), (8, 1)], "states": ["succeeded"] * 2, "refusals": 1}
    return Played(**{**usual, "violations": 0, "recovery_seconds": 0.3, "server": 180001, **facts})


def found(**facts: int) -> dict[str, object]:
    usual = {"duplicates": 0, "lost": 0, "violations": 0, "stale_refused": 0, "faults": 8}
    naive = {"duplicates": 3}
    return {"fault_rate": 0.2, "jobs": 40, "seed": "1", "faultline": usual | facts, "naive": naive}


def test_the_demo_calls_safe_what_lost_doubled_and_violated_nothing_and_refused_something() -> None:
    assert summarise(played(), found(), "a test")["safe_for_controlled_release_validation"] is True
    late_only_in_the_comparison = summarise(played(refusals=0), found(stale_refused=1), "a")
    assert late_only_in_the_comparison["safe_for_controlled_release_validation"] is True
    assert late_only_in_the_comparison["stale_writes_prevented"] == 1
    assert late_only_in_the_comparison["naive_duplicates"] == 3


@pytest.mark.parametrize(
    ("story", "comparison"),
    [
        ({"charges": [(7, 1), (7, 2), (8, 1)]}, {}),
        ({"charges": [(7, 2)]}, {}),
        ({"states": ["succeeded", "failed"]}, {}),
        ({"violations": 1}, {}),
        ({"refusals": 0}, {}),
        ({}, {"duplicates": 1}),
        ({}, {"lost": 1}),
        ({}, {"violations": 1}),
    ],
)
def test_the_demo_calls_nothing_else_safe(
    story: dict[str, object], comparison: dict[str, int]
) -> None:
    summary = summarise(played(**story), found(**comparison), "faultline demo")
    assert summary["safe_for_controlled_release_validation"] is False


def test_a_demo_without_its_database_says_so_in_one_sentence(folder: Path, server_url: str) -> None:
    missing = database_url(server_url, "no_such_database")
    demo = start(folder, FAULTLINE_DATABASE_URL=missing)
    _, error = demo.communicate(timeout=120)
    assert demo.returncode == 1
    assert error.startswith("faultline: ")
    assert len(error.strip().splitlines()) == 1
    assert psycopg.conninfo.conninfo_to_dict(missing)["password"] not in error
