"""The comparison on real processes, and its counting and its validity on forged ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from faultline.demo import naive
from faultline.demo.comparison import contenders, driver, tables
from faultline.demo.comparison.contenders import Faultline, Findings, Naive, stale_writes
from faultline.demo.comparison.driver import Drive, Injected, Run
from faultline.demo.comparison.schedule import LEASE_SECONDS, Fault, Schedule, plan
from faultline.demo.comparison.side_by_side import arena, compare
from faultline.demo.comparison.verdict import complaints, figures
from proofs.comparison import held, summary
from tests.stage import Stage, until
from tests.test_demo import left_behind, offspring
from tests.workers import PATH

ROOT = Path(__file__).parent.parent
QUIET = Schedule("made up", 0.0, (0.01,) * 4, ())


def hits(listed: list[dict[str, object]]) -> set[tuple[object, ...]]:
    return {(fault["job"], fault["what"], fault["point"]) for fault in listed}


# ── schedules ────────────────────────────────────────────────────────────────────────────────────


def test_the_same_seed_gives_the_same_jobs_and_faults_and_another_gives_others() -> None:
    assert plan(7, 0.1, 200) == plan(7, 0.1, 200)
    assert plan(7, 0.1, 200).faults != plan(8, 0.1, 200).faults


@pytest.mark.parametrize("fault_rate", [0.05, 0.1, 0.2])
def test_a_schedule_hits_as_many_jobs_as_it_says_and_stalls_outlast_the_lease(fault_rate) -> None:
    schedule = plan(1, fault_rate, 200)
    assert len({fault.job for fault in schedule.faults}) == round(200 * fault_rate)
    assert {fault.what for fault in schedule.faults} == {"SIGSTOP", "SIGKILL", "disconnect"}
    stalls = [fault.stall_seconds for fault in schedule.faults if fault.what == "SIGSTOP"]
    assert min(stalls) > LEASE_SECONDS


def test_a_job_knows_where_it_is_going_to_be_hit_but_not_by_what() -> None:
    schedule = plan(1, 0.2, 40)
    for payload in schedule.payloads("run"):
        assert payload.keys() == {"run", "job", "work_seconds", "point"}


# ── real processes ───────────────────────────────────────────────────────────────────────────────


def test_both_queues_are_hit_by_the_same_faults_and_faultline_does_every_job_once(database) -> None:
    schedule = plan(3, 0.5, 8)
    with arena(database, "faultline"):
        found = compare(database, "faultline", schedule)
    assert found["invalid"] == []
    planned = hits(found["schedule"])
    assert len(planned) == 4
    for name in ("faultline", "naive"):
        side = found[name]
        assert hits(side["injected"]) == planned
        assert side["lost"] == 0
        assert side["effects"] == side["duplicates"] + 8
    pids = [{fault["pid"] for fault in found[name]["injected"]} for name in ("faultline", "naive")]
    assert pids[0].isdisjoint(pids[1])
    assert found["faultline"]["duplicates"] == found["faultline"]["violations"] == 0
    json.dumps(found)


class WithoutFence(Faultline):
    """Real `faultline worker` processes, with a handler that does not ask for the fence."""

    @property
    def command(self) -> list[str]:
        return [*super().command[:4], "tests.unfenced:app", *super().command[5:]]


def test_without_the_fence_a_stalled_handler_of_faultlines_takes_effect_twice(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", PATH)
    stall = Fault(0, "SIGSTOP", "before_commit", 3 * LEASE_SECONDS)
    schedule = Schedule("made up", 0.25, (0.01,) * 4, (stall,))
    with (
        arena(database, "faultline"),
        tables.harness(database) as conn,
        Drive(database, WithoutFence("faultline"), schedule, conn) as drive,
    ):
        until(lambda: drive.step() or drive.over, "all jobs have ended")
        run = drive.finish()
    assert complaints(run) == []
    assert 0 in figures(run)["duplicated_jobs"]


def test_without_a_fault_the_naive_queue_does_every_job_once(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contenders, "LEASE_SECONDS", 60.0)  # a busy machine is a fault, too
    with arena(database, "faultline"), tables.harness(database) as conn:
        with Drive(database, Naive("faultline"), QUIET, conn) as drive:
            until(lambda: drive.step() or drive.over, "all jobs have ended")
            run = drive.finish()
        found = figures(run)
    assert complaints(run) == []
    assert (found["effects"], found["duplicates"], found["lost"]) == (4, 0, 0)
    assert found["executions"] == 4


def test_the_naive_queue_retries_what_failed_and_takes_over_what_expired(database: str) -> None:
    with arena(database, "faultline"), tables.harness(database) as conn:
        naive.enqueue(conn, "faultline", [{"name": "fails once"}, {"name": "was left behind"}])
        conn.execute(
            "update faultline_naive.job set state = 'running', owner = 'gone', attempts = 1, "
            "lease_expires_at = clock_timestamp() - interval '1 s' where id = 2"
        )
        worker = subprocess.Popen(
            [sys.executable, "-m", "faultline.demo.naive", "tests.test_comparison:fails_once"],
            cwd=ROOT,
            env={**os.environ, "FAULTLINE_DATABASE_URL": database},
        )
        try:
            ended = "select id, attempts from faultline_naive.job where state = 'done' order by id"
            until(lambda: conn.execute(ended).fetchall() == [(1, 2), (2, 2)], "both are done")
            worker.terminate()
            assert worker.wait(60) == 0
        finally:
            worker.kill()
            worker.wait()


def fails_once(job: naive.Job) -> None:
    """The handler of the test above."""
    if job.attempt == 1:
        raise ValueError("the first time")
    with job.transaction() as tx:
        tx.complete()


def test_a_run_whose_fault_never_comes_is_invalid_and_says_which(database, monkeypatch) -> None:
    monkeypatch.setattr(driver, "QUIET_SECONDS", 0.3)
    nowhere = Schedule("made up", 0.25, (0.01,) * 4, (Fault(9, "SIGKILL", "before_write"),))
    with (
        arena(database, "faultline"),
        tables.harness(database) as conn,
        Drive(database, Naive("faultline"), nowhere, conn) as drive,
    ):
        until(lambda: drive.step() or drive.over, "it has waited long enough")
        run = drive.finish()
    assert complaints(run) == ["naive: SIGKILL before_write of job 9 did not happen"]


def test_a_run_whose_workers_cannot_start_is_invalid_and_says_why(database, monkeypatch) -> None:
    monkeypatch.setattr(Naive, "command", [sys.executable, "-c", "import no_such_thing"])
    with (
        arena(database, "faultline"),
        tables.harness(database) as conn,
        Drive(database, Naive("faultline"), QUIET, conn) as drive,
    ):
        until(lambda: drive.over or drive.step(), "it has given up")
        run = drive.finish()
    first, second = complaints(run)
    assert "ended by itself with 1" in first
    assert "no_such_thing" in first
    assert second == "naive: not every job came to an end"


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_comparison_leaves_no_process_behind(tmp_path, empty_database, sign) -> None:
    comparison = subprocess.Popen(
        [sys.executable, "-m", "proofs.comparison", "--jobs", "20", "--rates", "0.2"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "FAULTLINE_DATABASE_URL": empty_database,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert comparison.stdout is not None
    # Workers of both queues are being stopped, killed and replaced.
    until(lambda: "of 4 faults" in comparison.stdout.readline(), "it is under way")
    comparison.send_signal(sign)
    comparison.communicate(timeout=180)
    until(lambda: offspring(tmp_path) == [], "nobody is left")
    if sign == signal.SIGINT:
        assert comparison.returncode == 130
        assert left_behind(empty_database) == []


# ── counting, on forged tables ───────────────────────────────────────────────────────────────────


def forged(counted: tables.Counted, succeeded: set[int], schedule=QUIET, faults=()) -> Run:
    findings = Findings(succeeded, 0, {}, 0)
    return Run("faultline", schedule, counted, findings, list(faults), True, 1.0)


def test_a_second_effect_is_a_duplicate_and_a_missing_one_a_loss(stage: Stage) -> None:
    stage.execute(tables.at_home(tables.SETUP, "faultline"))
    effect = tables.at_home(tables.EFFECT, "faultline")
    rows = [("run", 0), ("run", 1), ("run", 1), ("run", 1), ("run", 2), ("another", 3)]
    for run, job in rows:
        stage.execute(effect, run, job, 1)
    found = figures(forged(tables.count(stage.conn, "faultline", "run"), {0, 1, 2, 3}))
    assert (found["effects"], found["duplicates"], found["duplicated_jobs"]) == (5, 2, [1])
    assert (found["lost"], found["lost_jobs"]) == (1, [3])


def test_a_job_that_its_queue_does_not_call_done_is_lost_although_it_had_its_effect() -> None:
    counted = tables.Counted({}, dict.fromkeys(range(4), 1))
    assert figures(forged(counted, {0, 1, 3}))["lost_jobs"] == [2]


def test_a_stale_attempt_counts_once_however_often_it_is_refused_and_renewals_do_not() -> None:
    refusals = [
        {"job_id": 1, "stale_token": 1, "operation": "renew"},
        {"job_id": 1, "stale_token": 1, "operation": "fence"},
        {"job_id": 1, "stale_token": 1, "operation": "release"},
        {"job_id": 1, "stale_token": 2, "operation": "complete_one"},
        {"job_id": 2, "stale_token": 1, "operation": "renew"},
    ]
    assert stale_writes(refusals) == 2


STALL = Fault(0, "SIGSTOP", "before_commit", 2.0)


@pytest.mark.parametrize(
    ("what", "point", "confirmed", "complaint"),
    [
        ("SIGSTOP", "before_commit", "stopped, continued after its lease", None),
        ("SIGSTOP", "before_commit", "stopped", "was not seen to happen (stopped)"),
        ("SIGSTOP", "before_commit", "", "was not seen to happen (nothing seen)"),
        ("SIGSTOP", "before_write", "stopped, continued after its lease", "did not happen"),
        ("SIGKILL", "before_commit", "killed", "did not happen"),
    ],
)
def test_a_fault_counts_only_if_it_was_the_planned_one_and_was_seen(
    what, point, confirmed, complaint
) -> None:
    schedule = Schedule("made up", 0.25, (0.01,) * 4, (STALL,))
    hit = Injected(0, what, point, "a worker", 123, "now", confirmed)
    run = forged(tables.Counted({}, {}), set(), schedule, [hit])
    said = "" if complaint is None else f"faultline: SIGSTOP before_commit of job 0 {complaint}"
    assert complaints(run) == ([said] if said else [])


def rate(invalid: list[str], **faultline: int) -> dict[str, object]:
    usual = {"jobs": 4, "faults": 1, "duplicates": 0, "lost": 0, "violations": 0}
    side = {**usual, "stale_refused": 1}
    return {
        "fault_rate": 0.2,
        "invalid": invalid,
        "faultline": {**side, **faultline},
        "naive": {**side, "duplicates": 2},
    }


def test_the_comparison_fails_for_a_broken_promise_and_for_an_invalid_run_alike() -> None:
    assert held(summary([rate([]), rate([])]))
    assert summary([rate([]), rate([])])["naive_duplicates"] == 4
    assert not held(summary([rate([]), rate(["a fault did not happen"])]))
    for broken in ("duplicates", "lost", "violations"):
        assert not held(summary([rate([], **{broken: 1}), rate([])]))
