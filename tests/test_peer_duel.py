"""The duel with the peers: forged outcomes for the judge, real workers for our own adapter.

The peers themselves are installed and fought by `make duel` only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from proofs.duel.__main__ import choose, duel, kept, play
from proofs.duel.judge import Effect, Event, Outcome, judge, summarise
from proofs.duel.peer import Peer
from proofs.duel.peers import peers
from proofs.duel.report import COLUMNS, cells, document, last_line
from proofs.peers.environment import Here, Unavailable

ROOT = Path(__file__).parent.parent
START = datetime(2026, 1, 1, tzinfo=UTC)
STORY = (
    ("A", "ready"),
    ("A", "began"),
    ("B", "ready"),
    ("duel", "stalled"),
    ("B", "began"),
    ("B", "wrote"),
    ("duel", "finished"),
    ("duel", "resumed"),
    ("A", "stopped: StaleLease"),
)
PIDS = {"A": 1, "B": 2, "duel": 0}
# While B starts on a busy machine, A might lose its lease of 1 s before it is stopped.
QUICK = {"linger_seconds": 0.5, "late_successor": True}


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


def told_as(*story: tuple[str, str], late: bool = False, log: tuple[str, ...] = ()) -> Outcome:
    """The outcome of a duel that went like this, one event a second."""
    events = [Event(who, PIDS[who], what, at(s)) for s, (who, what) in enumerate(story)]
    effects = [Effect("B", 2, at(5))] + ([Effect("A", 1, at(8))] if late else [])
    return Outcome("write", events, effects, list(log))


def unlike(index: int, *instead: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    """The story with one line replaced."""
    return (*STORY[:index], *instead, *STORY[index + 1 :])


LANDED = unlike(8, ("A", "wrote"))


def test_a_worker_that_was_refused_left_nothing_and_was_told() -> None:
    verdict = judge(told_as(*STORY))
    assert verdict.void is None
    assert (verdict.late_effect, verdict.ran_again, verdict.effects) == (False, False, 1)
    assert verdict.told == "handler stopped: StaleLease"
    assert verdict.takeover_seconds == 1.0


def test_a_late_row_is_seen_and_silence_is_not_taken_for_being_told() -> None:
    verdict = judge(told_as(*LANDED, late=True, log=("INFO job 1 succeeded", "released 1 slot")))
    assert (verdict.late_effect, verdict.effects, verdict.told) == (True, 2, None)


@pytest.mark.parametrize(
    "line",
    [
        "error event: Missing lock for job 1. moveToFinished",
        "WARNING Workflow 9c is no longer owned by this execution",
        'RaiseException: Job was not found or not in "doing" or "todo" status (job id: 1)',
        "warning  0198 #1  charge  lease lost (deadline): the handler is told to stop",
    ],
)
def test_a_line_of_its_own_log_tells_a_worker_also_when_its_row_landed(line: str) -> None:
    verdict = judge(told_as(*LANDED, late=True, log=("INFO hello", line)))
    assert verdict.late_effect
    assert verdict.told == f"log: {line}"


def test_an_error_that_says_nothing_of_the_job_is_not_being_told() -> None:
    story = unlike(8, ("A", "stopped: OperationalError"))
    assert judge(told_as(*story)).told is None
    assert judge(told_as(*story, log=("Worker has lost leadership of the cluster.",))).told is None


def test_a_handler_that_begins_after_the_success_is_a_finished_job_that_ran_again() -> None:
    assert judge(told_as(*STORY, ("B", "began"))).ran_again
    assert judge(told_as(*STORY, ("A", "began"))).ran_again


@pytest.mark.parametrize(
    ("story", "reason"),
    [
        (unlike(1), "A was not stopped inside its handler"),
        (unlike(3), "A was not stopped inside its handler"),
        (unlike(4), "B did not take the job over"),
        ((*STORY[:3], STORY[4], STORY[3], *STORY[5:]), "B had the job before A was stopped"),
        (unlike(5), "B did not finish the job"),
        (unlike(6), "B did not finish the job"),
        (unlike(7), "A was not resumed after B had finished"),
        (unlike(8), "A did not come to its write"),
    ],
)
def test_a_duel_that_did_not_take_place_is_void_and_counts_for_nothing(
    story: tuple[tuple[str, str], ...], reason: str
) -> None:
    verdict = judge(told_as(*story, late=True))
    assert verdict.void == reason
    summary = summarise([verdict, judge(told_as(*STORY))])
    assert (summary["duels"], summary["void"]) == (1, [reason])
    assert summary["late_effects"]["write"] == {"landed": 0, "duels": 1}


def test_two_workers_with_one_pid_are_no_duel() -> None:
    outcome = told_as(*STORY)
    same = [replace(event, pid=1) for event in outcome.events]
    assert judge(replace(outcome, events=same)).void == "A and B were the same process"


def forged_row(*outcomes: Outcome, skipped: str | None = None) -> dict:
    verdicts = [judge(outcome) for outcome in outcomes]
    return {
        "peer": "Faultline",
        "version": "1",
        "settings": "s",
        "recovery": "r",
        "skipped": skipped,
        "runs": [vars(verdict) for verdict in verdicts],
        **summarise(verdicts),
    }


def test_the_exit_status_turns_on_one_late_row_one_rerun_one_silence_or_one_void_duel() -> None:
    good = told_as(*STORY)
    assert kept(forged_row(good, good))
    assert not kept(forged_row(good, told_as(*LANDED, late=True, log=("stale",))))
    assert not kept(forged_row(good, told_as(*STORY, ("B", "began"))))
    assert not kept(forged_row(good, told_as(*LANDED)))
    assert not kept(forged_row(good, told_as(*unlike(8))))


def test_the_table_has_figures_or_a_reason_in_every_row() -> None:
    fought, skipped = forged_row(told_as(*STORY)), forged_row(skipped="no node here")
    assert cells(fought)[2:] == ["0 of 0", "0 of 1", "0 of 1", "1 of 1", "1.0"]
    assert cells(skipped)[2] == "no node here"
    assert len(cells(fought)) == len(cells(skipped)) == len(COLUMNS)
    where = {"command": "c", "at": "2026-01-01T00:00", "commit": "abc", "postgresql": "18"}
    report = {**where, "python": "3", "runs": 1, "rows": [fought, skipped]}
    assert "no node here" in document(report)
    assert last_line(report)["skipped"] == ["Faultline"]


def test_a_peer_that_cannot_be_installed_is_a_row_with_its_reason(tmp_path: Path) -> None:
    class Nowhere(Here):
        def make(self, cache: Path) -> bool:
            raise Unavailable(f"cannot be installed in {cache.name}")

    peer = Peer("ghost", Nowhere(), "ghost.py", "none", "none")
    row = play(peer, tmp_path, "postgresql://nowhere", 3, tmp_path, Console(quiet=True))
    assert (row["duels"], row["skipped"]) == (0, f"cannot be installed in {tmp_path.name}")


def test_each_adapter_has_its_script_and_a_name_of_its_own() -> None:
    scripts = ROOT / "proofs" / "duel" / "scripts"
    assert all((scripts / peer.script).is_file() for peer in peers())
    assert len({peer.name for peer in peers()}) == len(peers()) >= 13


@pytest.mark.parametrize("point", ["early", "write"])
def test_nothing_that_a_stale_worker_of_ours_writes_lands(
    server_url: str, tmp_path: Path, point: str
) -> None:
    ours, _ = choose("faultline")
    quick = replace(ours, **QUICK)
    verdict = duel(quick, tmp_path, server_url, 1, point, tmp_path / "logs")
    assert verdict.void is None
    assert (verdict.late_effect, verdict.ran_again, verdict.effects) == (False, False, 1)
    assert verdict.told is not None


def test_the_naive_queue_shows_that_the_same_duel_can_be_lost(
    server_url: str, tmp_path: Path
) -> None:
    (naive,) = choose("naive")
    quick = replace(naive, **QUICK)
    verdict = duel(quick, tmp_path, server_url, 1, "write", tmp_path / "logs")
    assert verdict.void is None
    assert (verdict.late_effect, verdict.effects, verdict.told) == (True, 2, None)


def test_the_list_of_peers_needs_no_server(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "proofs.duel", "--list"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    listed = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert [line[:30].strip() for line in listed.splitlines()] == [p.name for p in peers()]
