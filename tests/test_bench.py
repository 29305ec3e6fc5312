"""The benchmark itself: every scenario once, tiny, on a real server with real workers.

Figures are not looked at: what is tested is that all the work was done, that what is promised is
printed, and that a missed bar is an exit status.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import sizes, soak
from bench.__main__ import run
from bench.arena import Arena, Ground
from bench.peers.__main__ import measure
from bench.peers.bars import GRAPHILE, OURS, PROCRASTINATE, SYNC, rows_of
from bench.peers.page import document, table
from bench.peers.peer import PEERS
from bench.peers.stage import SCRIPTS, first_between
from bench.plan import Plan
from bench.report import markdown, publish, shown
from bench.rows import Bar, Row, paired, percentile, skipped
from bench.scenarios import NAMES, fence, pinned, scenario
from bench.statements import Log
from faultline.config import Settings
from faultline.launcher import Server

ROOT = Path(__file__).parent.parent
TINY = Plan(jobs=300, rounds=1, share=0.002)
LONGER = Plan(jobs=300, rounds=1, share=0.03)  # for what compares its own beginning with its end
FACTS = {
    "command": "python -m bench",
    "commit": "abc",
    "postgresql": "18",
    "python": "3",
    "at": "2026-01-01T00:00:00",
    "machine": {"cores": 2},
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Of its own, since two scenarios read the server's log."""
    with Server.temporary(options={"fsync": "off", "max_connections": "200"}) as server:
        yield server


@pytest.fixture
def ground(server: Server, tmp_path: Path) -> Ground:
    return Ground(server.url, "faultline", tmp_path, server)


@pytest.fixture
def arena(ground: Ground) -> Iterator[Arena]:
    with ground.arena() as arena:
        yield arena


def quiet(_: str) -> None:
    """Progress is for people."""


# ── the scenarios ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", NAMES)
def test_each_scenario_measures_all_its_rows_and_leaves_nothing_behind(
    name: str, ground: Ground, server: Server
) -> None:
    rows = scenario(name)(ground, LONGER if name == "pinned" else TINY, quiet)
    if name != "pinned":  # its windows of half a second are empty where the machine is busy
        assert [row.skipped for row in rows] == [None] * len(rows)
        assert all(isinstance(row.figure, float | int) for row in rows)
    assert {row.scenario for row in rows} == {name}
    json.dumps([row.as_json() for row in rows])
    left = server.run("psql", "-Atc", "select datname from pg_database").stdout.split()
    assert sorted(left) == ["postgres", "template0", "template1"]


def test_a_drain_under_a_pinned_snapshot_is_compared_with_its_own_beginning() -> None:
    def row(first: float, last: float, left: int) -> Row:
        return pinned.compared("what", "of it", first, last, {"jobs_left": left})

    assert (row(10.0, 9.0, 5).figure, row(10.0, 9.0, 5).met) == (0.9, True)
    assert (row(10.0, 0.0, 5).figure, row(10.0, 0.0, 5).met) == (0.0, False)
    for broken, why in (
        (row(0.0, 9.0, 5), pinned.NONE_ENDED),
        (row(9.0, 9.0, 0), pinned.RAN_EMPTY),
    ):
        assert (broken.figure, broken.met, broken.skipped) == (None, False, why)


def test_the_limit_completes_every_job_once_and_breaks_no_invariant(arena: Arena) -> None:
    arena.enqueue(1_250)
    assert arena.limit() > 0
    states = arena.rows("select state, count(*) from {schema}.jobs group by 1")
    assert states == [("succeeded", 1_250)]
    assert arena.value("select count(*) from {schema}.attempt") == 1_250
    assert arena.rows("select * from {schema}.violations") == []


def test_a_drain_that_did_not_end_all_its_jobs_is_an_error_and_no_figure(arena: Arena) -> None:
    since = arena.now()
    arena.enqueue(100)
    arena.limit()
    assert arena.rate(since, 100) > 0
    with pytest.raises(RuntimeError, match="100 jobs succeeded, 101 were to"):
        arena.rate(since, 101)


def test_a_worker_that_dies_ends_the_wait(arena: Arena) -> None:
    worker = arena.worker("--concurrency", "none")
    with pytest.raises(RuntimeError, match="a worker ended with 2"):
        arena.wait(lambda: False, worker)


def test_the_copy_without_the_comparison_takes_a_stale_token_and_the_control_does_not(
    arena: Arena,
) -> None:
    """So what the fence is compared with has none."""
    arena.enqueue(1)
    lanes = "array(select lane from {schema}.lane)"
    (job,) = arena.value("select job_ids from {schema}.claim('w', " + lanes + ", 2)")
    fence.copy(arena, "compared", fence.COMPARISON)
    fence.copy(arena, "unfenced", "")
    stale = "select count(*) from {{schema}}.{}(array[%s]::uuid[], array[99]::bigint[])"
    for verb, refused, state in (
        ("complete", 1, "running"),
        ("complete_compared", 1, "running"),
        ("complete_unfenced", 0, "succeeded"),
    ):
        assert arena.value(stale.format(verb), job) == refused, verb
        assert arena.value("select state from {schema}.jobs") == state, verb


def test_idle_and_long_are_skipped_on_a_server_whose_log_cannot_be_read(ground: Ground) -> None:
    foreign = Ground(ground.url, ground.schema, ground.folder, None)
    for name in ("idle", "long"):
        (row,) = scenario(name)(foreign, TINY, quiet)
        assert row.skipped is not None
        assert row.met is None


def test_statements_are_counted_from_begin_on_and_nothing_else_is(tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    at = "2026-01-01 00:00:01.500 UTC [7] LOG:  "
    file.write_text(at + "statement: select 1\n")
    log = Log(file)
    log.begin()
    assert log.lines() == []
    with file.open("a") as more:
        more.write(f"{at}execute <unnamed>: select 2\n\tfrom t\n{at}checkpoint starting: time\n")
        more.write(f"{at}statement: listen faultline\n{at[:-5]}DETAIL:  parameters: $1 = '1'\n")
    assert [line.text for line in log.lines()] == ["select 2", "listen faultline"]
    assert log.lines()[0].at == 1767225601.5


# ── what is said ─────────────────────────────────────────────────────────────────────────────────


def test_a_bar_is_met_by_what_was_measured_and_not_by_what_is_shown() -> None:
    low, high = Bar(least=0.6), Bar(most=2)
    assert (low.met(0.6), low.met(0.5999)) == (True, False)
    assert (high.met(2), high.met(2.0001)) == (True, False)
    assert (str(low), str(high)) == ("≥ 0.6", "≤ 2")
    assert Row("s", "w", 0.5999, "", low).met is False
    assert Row("s", "w", None, "", low).met is None
    assert percentile([3, 1, 2], 0.99) == 3


def test_a_minute_in_which_all_was_slow_changes_no_ratio_of_turns() -> None:
    assert paired([9.0, 4.5, 8.0], [10.0, 5.0, 10.0]) == pytest.approx(0.9)


def test_a_missed_bar_is_status_1_and_named_in_the_last_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    met = Row("s", "good", 1.0, "", Bar(least=1))
    missed = Row("s", "bad", 0.5, "", Bar(least=1), measured="1 to 2")
    absent = skipped("s", "absent", "no reason")
    assert publish(tmp_path, "bench", "t", FACTS, [met, absent]) == 0
    capsys.readouterr()
    assert publish(tmp_path, "bench", "t", FACTS, [met, missed, absent]) == 1
    said = capsys.readouterr().out.splitlines()
    line = json.loads(said[-1])
    assert line["missed"] == ["bad"]
    assert line["skipped"] == ["absent"]
    assert line["met"] == 1
    assert line["figures"] == {"good": 1.0, "bad": 0.5, "absent": None}
    report = json.loads((tmp_path / "bench.json").read_text())
    assert [row["met"] for row in report["rows"]] == [True, False, None]
    assert all((tmp_path / plot).stat().st_size for plot in line["plots"])
    assert "| bad | 0.50 | 1 to 2 | ≥ 1 | **missed** |" in markdown(report)
    assert "no reason" in shown(absent)


def test_a_scenario_that_breaks_off_is_a_missed_row_and_costs_the_others_nothing(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> list[Row]:
        raise RuntimeError("a worker ended with 1")

    good = Row("fence", "good", 1.0, "%", Bar(most=5))
    found = {"drain": broken, "fence": lambda *_: [good]}
    monkeypatch.setattr("bench.__main__.scenario", found.__getitem__)
    settings = Settings(ground.url, "faultline", tmp_path, None)
    assert run(settings, TINY, ["drain", "fence"], tmp_path) == 1
    rows = json.loads((tmp_path / "bench.json").read_text())["rows"]
    assert [row["met"] for row in rows] == [False, True]
    assert rows[0]["skipped"] == "failed: a worker ended with 1"


def test_the_command_prints_a_table_writes_files_and_ends_with_one_line(
    server: Server, tmp_path: Path
) -> None:
    done = command("bench", "--only", "fence", "--quick", cwd=tmp_path, url=server.url)
    line = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == (1 if line["missed"] else 0), done.stderr
    assert {"benchmark", "commit", "postgresql", "cores", "figures", "met", "missed", "skipped",
            "report", "plots", "seconds"} == line.keys()  # fmt: skip
    report = json.loads((tmp_path / line["report"]).read_text())
    assert report["server_settings"]["synchronous_commit"] == "on"
    assert {"commit", "machine", "python", "jobs", "rounds", "rows", "seconds"} <= report.keys()
    assert "what the fence adds" in done.stdout
    again = command("bench", "--markdown", cwd=tmp_path)
    assert "| what the fence adds to swap |" in again.stdout


def test_larger_payloads_and_keys_take_more_and_what_has_ended_more_than_what_waits(
    ground: Ground,
) -> None:
    found = sizes.sizes(ground, 2000)
    small, large = found["20 bytes"], found["1,000 bytes"]
    assert large["queued disk"] - small["queued disk"] > 900
    assert large["enqueue WAL"] - small["enqueue WAL"] > 900
    assert small["ended disk"] > small["queued disk"] > 200
    assert found["20 bytes and an idempotency key"]["queued disk"] > small["queued disk"]


@pytest.mark.parametrize("module", ["bench", "bench.peers", "bench.soak"])
def test_each_command_explains_itself_without_a_server(module: str, tmp_path: Path) -> None:
    assert "--out" in command(module, "--help", cwd=tmp_path).stdout


def test_a_profile_accounts_for_all_of_the_workers_microseconds(tmp_path: Path) -> None:
    done = command("bench.profile", "--rounds", "1", "--jobs", "20000", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["server_us_a_job"] > 0
    assert told["looks"] > 0
    parts = told["worker_us_by_module"]
    assert sum(parts.values()) == pytest.approx(told["worker_us_a_job"], abs=0.2)
    assert {"worker/relay.py", "direct.py"} <= parts.keys()


def test_an_unknown_scenario_is_refused_with_those_there_are(tmp_path: Path) -> None:
    refused = command("bench", "--only", "drain,speed", cwd=tmp_path)
    assert refused.returncode == 1
    assert "no scenario is named speed; there are drain," in refused.stderr


def command(module: str, *arguments: str, cwd: Path, url: str = "") -> Any:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FAULTLINE_DATABASE_URL": url}
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


# ── peers ────────────────────────────────────────────────────────────────────────────────────────


def test_each_peer_has_a_script_and_a_name_of_its_own() -> None:
    assert all((SCRIPTS / peer.script).is_file() for peer in PEERS)
    assert len({peer.name for peer in PEERS}) == len(PEERS)


def test_our_own_adapter_plays_its_whole_turn_as_the_peers_do(
    server: Server, tmp_path: Path
) -> None:
    ours = [peer for peer in PEERS if peer.name in (OURS, SYNC)]
    rows = measure(ours, TINY, tmp_path, server.url, quiet)
    assert [row["skipped"] for row in rows] == [None, None]
    assert {"bulk", "one", "two", "p50_ms", "p99_ms"} <= rows[0]["medians"].keys()
    assert rows[1]["medians"].keys() == {"one"}
    assert table(rows).row_count == 2
    page = document({**FACTS, "rows": [row.as_json() for row in rows_of(rows)], "peers": rows})
    assert page.count("| Faultline, sync handlers |") == 2
    left = server.run("psql", "-Atc", "select rolname from pg_roles where rolname ^@ 'bench'")
    assert left.stdout == ""


def test_an_enqueue_was_committed_at_the_first_commit_between_its_call_and_its_return() -> None:
    commits = [1.0, 2.2, 2.3, 3.9, 5.0]
    calls = {1: (2.1, 2.25), 2: (2.21, 4.0), 3: (4.0, 4.5), 4: (5.0, 5.5), 5: (6.0, 7.0)}
    assert first_between(commits, calls) == {1: 2.2, 2: 2.3, 4: 5.0}


def measured(name: str, **medians: float) -> dict[str, Any]:
    found = {"medians": medians, "skipped": None, "failed": False}
    return {"peer": name, "on_postgresql": "Redis" not in name, **found}


def test_the_bars_compare_with_the_right_peer_of_the_same_run() -> None:
    peers = [
        measured(OURS, one=150.0, two=130.0, bulk=120.0, p50_ms=2.0, p99_ms=3.0),
        measured(SYNC, one=120.0),
        measured(GRAPHILE, one=100.0, two=100.0, bulk=90.0, p50_ms=2.5, p99_ms=4.0),
        measured(PROCRASTINATE, one=2.0, two=2.0, bulk=10.0, p50_ms=2.0, p99_ms=9.0),
        measured("Other, Redis", one=300.0, two=300.0, bulk=100.0, p50_ms=0.5, p99_ms=0.5),
    ]
    rows = rows_of(peers)
    assert [round(row.figure or 0, 2) for row in rows] == [1.5, 1.3, 1.2, 60.0, 1.2, 1.0, 0.75]
    assert [row.met for row in rows] == [True, True, True, True, False, True, True]
    assert "Redis" in rows[4].what
    assert PROCRASTINATE in rows[5].what


def test_a_bar_whose_peer_is_missing_is_skipped_and_not_missed() -> None:
    rows = rows_of([measured(OURS, one=150.0, bulk=1.0)])
    assert all(row.met is None and row.skipped for row in rows)


def test_a_bar_whose_peer_or_ours_failed_is_missed_and_says_who() -> None:
    graphile = measured(GRAPHILE) | {"skipped": "the drain did not end", "failed": True}
    rows = rows_of([measured(OURS, one=150.0, two=130.0), graphile])
    assert [row.met for row in rows[:2]] == [False, False]
    assert rows[0].skipped == "Graphile Worker: the drain did not end"
    ours = measured(OURS) | {"skipped": "no worker began", "failed": True}
    rows = rows_of([ours, measured(GRAPHILE, one=1.0, two=1.0, bulk=1.0)])
    assert [row.met for row in rows[:2]] == [False, False]
    assert rows[4].met is False


# ── soak ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_soak_sees_every_window_and_keeps_up(ground: Ground) -> None:
    windows = soak.soak(ground, 100.0, 3.0, quiet)
    assert len(windows) == 6
    assert sum(window["jobs_per_second"] for window in windows) > 0
    assert all(window["hot_mb"].keys() == set(soak.HOT) for window in windows)
    assert any(window["hot_mb"]["ready"] > 0 for window in windows)
    assert len(soak.judged(windows, 100.0)) == 7


def window(rate: float, wait: float, ready: float = 1.0) -> dict[str, Any]:
    sizes = {"ready": ready, "lease": 1.0, "scheduled": 1.0}
    return {"jobs_per_second": rate, "waits_ms": [wait] * 50, "hot_mb": sizes}


def test_a_soak_that_slows_down_or_swells_is_judged_so() -> None:
    steady = soak.judged([window(100, 2.0) for _ in range(6)], 100)
    assert all(row.met for row in steady)
    worse = [window(100, 2.0), window(100, 2.0, 60.0), window(80, 4.0)]
    missed = [row.what for row in soak.judged(worse, 100) if not row.met]
    assert missed == [
        "rate, last third against first",
        "rate of endings against the rate asked for",
        "pickup p50, last third against first",
        "pickup p99, last third against first",
        "largest size of ready, with indexes",
    ]
