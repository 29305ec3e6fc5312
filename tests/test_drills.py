"""The drills themselves: they go red when the fence is gone, and a scenario that shows nothing says
so.

Method: an arena with real workers on a database of its own, and plays that this file makes up.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from faultline.drills import run
from faultline.drills.arena import Arena, NotStaged, WaitedInVain, prepare
from faultline.drills.arena import staging as being_staged
from faultline.drills.kinds import KINDS
from faultline.drills.lane import Orders
from faultline.drills.run import choose
from faultline.drills.scenario import DEFAULT_LEASE_SECONDS, Kind, Result, Scenario
from faultline.drills.scene import Scene
from faultline.drills.workers import WorkerProcess
from faultline.errors import InvalidArgument
from tests.command import CommandLine, faultline
from tests.stage import until

FIGURES = [
    *("scenarios", "faults", "jobs"),
    *("violations", "duplicates", "lost", "vacuous", "void", "stale_refused", "seconds"),
]


@pytest.fixture(scope="module")
def arena(newest_server_url: str) -> Iterator[Arena]:
    owner, worker = prepare(newest_server_url, f"drill_{uuid.uuid4().hex[:12]}")
    with Arena(owner, worker_url=worker) as arena:
        yield arena


def play(arena: Arena, kind: Kind, seed: int = 1) -> Result:
    return Scene(arena, kind, Scenario(kind.name, seed)).run()


def stall_and_write(scene: Scene) -> UUID:
    """The takeover, with the worker stalled between its write and the gate."""
    victim = scene.enqueue("pay_through_the_gate", hold=["written"])
    arrival = scene.reached(victim, "written")
    scene.stop(arrival.pid, victim)
    scene.until_state(victim, "succeeded")
    scene.go(victim, "written")
    scene.resume(arrival.pid)
    scene.until_answered(victim, arrival.token)
    return victim


@contextmanager
def unfenced(arena: Arena) -> Iterator[None]:
    """Meanwhile nothing is refused to a transaction of the user's."""
    body = arena.conn.execute("select pg_get_functiondef('faultline.raise_stale'::regproc)")
    (text,) = body.fetchone() or ("",)
    arena.conn.execute(f"{text.partition('AS $')[0]} AS $$ begin end $$")
    yield
    arena.conn.execute(text)


def test_with_the_fence_a_takeover_is_good_and_without_it_the_drill_is_red(arena: Arena) -> None:
    fenced = Kind("late_write", "", lambda scene: scene.until_refused(stall_and_write(scene)))
    good = play(arena, replace(fenced, stale_is_refused=True))
    assert good.is_good, good
    with unfenced(arena):
        result = play(arena, Kind("late_write", "", lambda scene: stall_and_write(scene) and None))
    assert result.duplicates == 1
    assert any(said.startswith("once: ") for said in result.violations)


def test_the_takeovers_of_a_quick_run_are_enough_to_miss_the_fence(
    newest_server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("faultline.drills.arena.PATIENCE_SECONDS", 15.0)
    owner, worker = prepare(newest_server_url, f"drill_{uuid.uuid4().hex[:12]}")
    with Arena(owner, worker_url=worker) as arena, unfenced(arena):
        seeds = iter(choose(["takeover"], quick=True))
        assert any(play(arena, KINDS["takeover"], scenario.seed).violations for scenario in seeds)


def test_a_scenario_in_which_nothing_was_hit_is_vacuous(arena: Arena) -> None:
    result = play(arena, Kind("peace", "", lambda scene: scene.bystanders() and None))
    assert (result.vacuous, result.violations) == ("no fault happened", [])
    assert not result.is_good


def test_a_fault_that_changes_nothing_is_vacuous_where_a_token_has_to_rise(arena: Arena) -> None:
    def blink(scene: Scene) -> None:
        victim = scene.enqueue("pay", hold=["begin"], lease_seconds=60)
        pid = scene.reached(victim, "begin").pid
        scene.stop(pid, victim)
        scene.resume(pid)
        scene.go(victim, "begin")

    result = play(arena, Kind("blink", "", blink))
    assert (result.vacuous, result.violations) == ("no token rose", [])


def test_a_scenario_that_could_not_be_staged_is_void_and_no_violation(arena: Arena) -> None:
    def in_vain(_: Scene) -> None:
        with being_staged():
            raise WaitedInVain("waited 1 s in vain until the standby lags")

    result = play(arena, Kind("in_vain", "", in_vain))
    assert (result.void, result.violations) == ("waited 1 s in vain until the standby lags", [])
    assert not result.is_good


def test_a_violation_before_a_scenario_is_void_is_kept(arena: Arena) -> None:
    def hurt(scene: Scene) -> None:
        scene.violations.append("once: written twice")
        raise NotStaged("the standby does not lag")

    assert play(arena, Kind("hurt", "", hurt)).violations == ["once: written twice"]


class Lane:
    """In the place of a lane's process: says that a scenario was void so many times."""

    def __init__(self, voids: dict[str, int], started: list[Orders]) -> None:
        self.voids, self.started = voids, started

    async def start(self, orders: Orders) -> Lane:
        self.started.append(orders)
        return self

    async def play(self, scenario: Scenario) -> Result:
        self.voids[scenario.id] -= 1
        is_void = self.voids[scenario.id] >= 0
        return replace(Result.of(scenario), void="no lag" if is_void else None)

    async def close(self) -> None: ...


def test_a_void_scenario_is_staged_again_in_a_new_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    voids = {"failover-1": 2, "failover-2": 0, "failover-3": 9, "failover-4": 0}
    started: list[Orders] = []
    heard: list[Result] = []
    monkeypatch.setattr(run, "_Lane", Lane(dict(voids), started))
    asyncio.run(run.run(map(Scenario.parse, voids), "", heard.append, lanes=1))
    assert [result.id for result in heard] == list(voids)
    assert [result.void for result in heard] == [None, None, "no lag", None]
    assert len({orders.name for orders in started}) == len(started) == 1 + 2 + 3


def test_a_job_that_never_ends_is_not_overlooked(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("faultline.drills.scene.REST_SECONDS", 1.0)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as bystander:

        def forget(scene: Scene) -> None:
            scene.record(scene.arena.fault("SIGKILL", bystander.pid))
            scene.enqueue("pay", delay_seconds=3600)

        result = play(arena, Kind("forgotten", "", forget))
        bystander.kill()
    assert result.lost == 1
    assert any("scheduled, not succeeded" in said for said in result.violations)


def test_a_signal_to_a_process_that_has_ended_is_no_fault(tmp_path: Path) -> None:
    for act in (WorkerProcess.kill, WorkerProcess.stop):
        worker = WorkerProcess("nowhere:app", [], log=tmp_path / "log", environment={})
        until(lambda worker=worker: not worker.is_alive(), "it has ended by itself")
        with pytest.raises(RuntimeError, match="had ended by itself"):
            act(worker)


def test_a_stopped_worker_is_really_stopped_and_a_killed_one_dead(arena: Arena) -> None:
    worker = arena.start_worker()
    until(worker.is_ready, "it is ready")
    arena.stop(worker)
    state = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0]
    assert state == "T"
    arena.kill(worker)
    assert worker.process.returncode == -signal.SIGKILL


# ── which scenarios ──────────────────────────────────────────────────────────────────────────────


def test_an_id_is_all_it_takes_to_play_a_scenario_again() -> None:
    for scenario in (Scenario("crash", 7), Scenario("crash", 7, DEFAULT_LEASE_SECONDS)):
        again = Scenario.parse(scenario.id)
        assert again == scenario
        assert again.random().random() == scenario.random().random()
    for text in ("", "crash", "crash-", "crash-x", "7", "crash-7@", "../crash-7"):
        with pytest.raises(InvalidArgument, match="is no scenario"):
            Scenario.parse(text)


def test_a_full_run_has_as_many_scenarios_of_each_kind_as_was_promised() -> None:
    chosen = choose(list(KINDS))
    counts = {name: sum(s.kind == name for s in chosen) for name in KINDS}
    for name in ("crash", "takeover", "retry_storm", "timeout_burst", "duplicate_submission"):
        assert counts[name] >= 100
    assert counts["partial_write"] >= 100
    assert all(count >= 20 for count in counts.values())
    assert len({scenario.id for scenario in chosen}) == len(chosen) >= 1500
    assert {s.kind for s in choose(list(KINDS), quick=True)} == set(KINDS)


def test_the_seed_decides_what_a_scenario_does() -> None:
    told = [s.random().choice(["begin", "written"]) for s in choose(["takeover"], each=20)]
    assert set(told) == {"begin", "written"}


# ── the command ──────────────────────────────────────────────────────────────────────────────────


def test_a_run_ends_with_one_line_of_json_and_leaves_its_results(tmp_path: Path) -> None:
    options = ["--each", "1", "--seed", "3", "--out", str(tmp_path)]
    said = faultline("drill", "run", "crash", *options, home=tmp_path).splitlines()
    figures = json.loads(said[-1])
    assert list(figures) == FIGURES
    assert figures["scenarios"] == figures["faults"] == 1
    assert figures["violations"] == figures["duplicates"] == figures["lost"] == 0
    (line,) = (tmp_path / "drills.jsonl").read_text().splitlines()
    assert Result(**json.loads(line)).id == "crash-3"
    facts = json.loads((tmp_path / "drills.json").read_text())
    assert facts["command"].startswith("faultline drill run crash")
    assert facts.items() >= figures.items()


def test_a_scenario_is_told_as_a_story(tmp_path: Path) -> None:
    said = faultline("drill", "replay", "takeover-2", home=tmp_path)
    assert "fault: SIGSTOP, process " in said
    assert "the lease of token 1 runs out" in said
    assert "refuses a write under token 1" in said
    assert said.splitlines()[-1].startswith("takeover-2: good (")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", "earthquake"], "there is no kind 'earthquake': there are crash, "),
        (["replay", "crash"], "'crash' is no scenario: give a kind and a seed, as in crash-7"),
        (["replay", "earthquake-1"], "there is no kind 'earthquake'"),
    ],
)
def test_what_cannot_be_played_is_said_in_one_sentence(
    arguments: list[str], complaint: str, tmp_path: Path
) -> None:
    assert complaint in faultline("drill", *arguments, home=tmp_path, status=1)


def test_the_kinds_are_listed(tmp_path: Path) -> None:
    rows = json.loads(faultline("drill", "list", "--json", home=tmp_path))
    assert [row["kind"] for row in rows] == list(KINDS)
    assert all(replace(KINDS[row["kind"]]).sentence == row["fault"] for row in rows)


# ── on one's own handlers ────────────────────────────────────────────────────────────────────────

SHOP = """
import time
from faultline import App, Context
app = App()
ROW = "insert into charges values (%s, %s)"

@app.task
def careful(ctx: Context) -> None:
    time.sleep(0.4)
    with ctx.transaction() as tx:
        tx.execute(ROW, (ctx.job_id, ctx.token))
        tx.complete()

@app.task
def careless(ctx: Context) -> None:
    with app.connect() as conn:
        conn.execute(ROW, (ctx.job_id, ctx.token))
    time.sleep(0.4)
"""


def staging(task: str, database: str, folder: Path, status: int) -> str:
    """What the drill printed; with a status other than 0, with what it said meanwhile."""
    (folder / "shop.py").write_text(SHOP)
    (folder / "jobs.jsonl").write_text(json.dumps({"task": task}) + "\n" + "\n")
    with (folder / "jobs.jsonl").open("a") as file:
        file.writelines(json.dumps({"task": task, "arguments": {}}) + "\n" for _ in range(79))
    command = CommandLine(database, folder, directory=folder)
    options = "--faults 3 --workers 2 --lease-seconds 1 --jobs jobs.jsonl --app shop:app"
    query = "select job_id from charges"
    said = command("drill", "run", *options.split(), "--effects", query, status=status)
    return said + command.said if status else said


def test_on_a_database_that_is_no_drill_target_nobody_is_hit(database: str, tmp_path: Path) -> None:
    said = staging("careful", database, tmp_path, status=1)
    assert "is no drill target" in said
    assert "SET faultline.drill_target = 'yes'" in said


@pytest.fixture
def target(database: str) -> str:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("create table charges (job_id uuid, token bigint)")
        name = conn.info.dbname
        conn.execute(f"alter database {name} set faultline.drill_target = 'yes'")
    return database


def test_a_careful_handler_passes_and_a_careless_one_is_found_out(
    target: str, tmp_path: Path
) -> None:
    figures = json.loads(staging("careful", target, tmp_path, status=0).splitlines()[-1])
    assert (figures["jobs"], figures["violations"], figures["duplicates"]) == (80, 0, 0)
    said = staging("careless", target, tmp_path, status=1)
    assert "a row of job " in said
