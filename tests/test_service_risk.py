"""The lease risk, in situations that are real: a stopped worker process, a poison job, a held
snapshot, a wrong clock, a standby. Its arithmetic by itself, at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from faultline import App
from faultline.launcher import Server
from faultline.migrate import migrate
from faultline.risk import (
    RULES,
    Lease,
    Limits,
    Observations,
    Worker,
    assess,
)
from faultline.service import service
from tests.clocks import needs_a_wrong_clock, off_by
from tests.conftest import OPTIONS
from tests.serving import Client, served
from tests.stage import Stage, until
from tests.workers import Ground, Process

pytestmark = pytest.mark.both_servers


@contextmanager
def inspector(url: str, limits: Limits | None = None) -> Iterator[Callable[[], dict[str, Any]]]:
    """What /api/risk says."""
    with served(service(App(url), limits=limits)) as client:
        yield lambda: dict(client.get("/api/risk").body)


def signs(risk: dict[str, Any]) -> dict[str, list[str]]:
    return {reason["sign"]: reason["examples"] for reason in risk["reasons"]}


def test_a_worker_that_is_stopped_is_a_high_risk_until_its_late_write_is_refused(
    stage: Stage,
) -> None:
    ground = Ground(stage)
    with inspector(stage.url) as risk, Process(stage.url) as worker:
        worker.ready()
        job_id = stage.enqueue("held_sync", lease_seconds=1)
        ground.until_in(job_id, 1)
        calm = until(lambda: "slow_handlers" in signs(told := risk()) and told, "it outlives 1 s")
        assert (calm["stale_risk"], calm["active_workers"]) == ("low", 1)
        worker.stall()
        high = until(
            lambda: (told := risk())["stale_risk"] == "high" and told, "the worker is missed"
        )
        assert signs(high)["expired_leases"] == [str(job_id)]
        (silent,) = signs(high)["missed_renewals"]
        assert silent == stage.value("select worker from {schema}.leases")
        assert high["score"] >= 60
        stage.take_over(job_id)
        worker.wake()
        refused = until(lambda: signs(risk()).get("recent_refusals"), "its late renewal is refused")
        assert refused == [str(job_id)]


def test_a_job_that_kills_its_process_is_a_sign_while_it_runs_and_when_it_is_parked(
    stage: Stage,
) -> None:
    Ground(stage)
    job_id = stage.enqueue("kills_its_process", lease_seconds=1, max_crashes=1)
    with inspector(stage.url) as risk:
        with Process(stage.url) as worker:
            worker.process.wait(60)
        until(lambda: stage.verbs.reclaim().run(stage.conn), "its lease expires")
        assert stage.state(job_id) == "quarantined"
        told = risk()
        assert signs(told)["crash_loops"] == [str(job_id)]
        assert told["stale_risk"] == "medium"
        again = stage.enqueue(max_crashes=3)
        stage.claim()
        stage.take_over(again)
        assert signs(risk())["crash_loops"] == [str(job_id)], "once is a worker that was killed"
        stage.take_over(again)
        assert set(signs(risk())["crash_loops"]) == {str(again), str(job_id)}


def test_a_snapshot_that_is_held_is_a_sign_for_who_may_see_it(stage: Stage) -> None:
    holder = stage.connect(isolation="repeatable read")
    holder.execute("select 1")
    limits = Limits(pinned_seconds=0.01)
    with inspector(stage.url, limits) as risk:
        (what,) = until(lambda: signs(risk()).get("pinned_snapshots"), "it is old enough")
        assert f"process {holder.info.backend_pid} " in what
        assert risk()["stale_risk"] == "medium"
        with stage.login("reader") as url, inspector(url, limits) as blind:
            told = blind()
            assert "pinned_snapshots" not in signs(told)
            assert "pg_read_all_stats" in told["unseen"][0]
        holder.rollback()
        until(lambda: not risk()["reasons"], "it is over")


def test_dead_rows_of_a_busy_table_are_a_sign(stage: Stage) -> None:
    ids = [stage.enqueue() for _ in range(50)]
    stage.verbs.cancel(ids).run(stage.conn)
    with inspector(stage.url, Limits(dead_rows=20)) as risk:
        (what,) = until(lambda: signs(risk()).get("dead_rows"), "the statistics have it")
        assert what == "ready: 50 dead rows, 0 live"


@needs_a_wrong_clock
def test_a_worker_whose_clock_is_wrong_is_a_small_sign(stage: Stage) -> None:
    Ground(stage)
    with (
        inspector(stage.url) as risk,
        Process(stage.url, prefix=" ".join(off_by("+1h"))) as worker,
    ):
        worker.ready()
        (what,) = until(lambda: signs(risk()).get("clock_difference"), "it has said its time")
        assert what.startswith(stage.value("select worker from {schema}.workers"))
        assert float(what.rpartition(": ")[2].removesuffix(" s")) == pytest.approx(3600, abs=30)
        assert risk()["stale_risk"] == "low"


def test_a_standby_that_may_lose_commits_is_a_small_sign() -> None:
    with Server.temporary(options=OPTIONS) as primary:
        with psycopg.connect(primary.url, autocommit=True) as conn:
            migrate(conn, "faultline")
        with inspector(primary.url) as risk:
            assert risk()["reasons"] == []
            with primary.standby(options=OPTIONS) as standby:
                told = until(
                    lambda: signs(answer := risk()).get("asynchronous_standby") and answer,
                    "the standby has connected",
                )
                assert (told["score"], told["stale_risk"]) == (5, "low")
                with served(service(App(standby.url))) as there:
                    problem = there.get("/health").problem(503, "database_unavailable")
                    assert "takes no writes" in problem["detail"]
                    job = {"task": "charge"}
                    there.post("/jobs", job).problem(503, "read_only_database")


def test_a_user_who_reads_only_is_enough_for_the_risk(stage: Stage) -> None:
    stage.running()
    with stage.login("reader") as url, inspector(url) as risk:
        assert risk()["stale_risk"] == "low"


def test_the_answer_has_the_names_of_the_contract(stage: Stage, client: Client) -> None:
    body = client.get("/api/risk").body
    assert {"stale_risk", "active_workers", "score", "reasons"} <= set(body)
    assert (body["stale_risk"], body["active_workers"], body["score"]) == ("low", 0, 0)


@pytest.fixture
def client(stage: Stage) -> Iterator[Client]:
    with served(service(App(stage.url))) as client:
        yield client


# ── the arithmetic ───────────────────────────────────────────────────────────────────────────────


def lease(remaining: float, *, worker: str = "A", held: float = 1.0, crashes: int = 0) -> Lease:
    return Lease("job", worker, remaining, 10.0, held, crashes)


@pytest.mark.parametrize(
    ("remaining", "expected"),
    [
        (10.0, set()),
        (5.1, set()),
        (4.9, {"missed_renewals"}),
        (2.4, {"missed_renewals", "near_expiry"}),
        (0.0, {"missed_renewals", "expired_leases"}),
        (-5.0, {"missed_renewals", "expired_leases"}),
    ],
)
def test_what_is_left_of_a_lease_decides_which_signs_it_gives(
    remaining: float, expected: set[str]
) -> None:
    risk = assess(Observations(leases=[lease(remaining)]))
    assert {sign.sign for sign in risk.reasons} == expected


def test_nothing_seen_is_no_risk() -> None:
    risk = assess(Observations())
    assert (risk.stale_risk, risk.score, list(risk.reasons)) == ("low", 0, [])


def test_a_silent_worker_counts_only_while_it_holds_something_and_is_not_active() -> None:
    idle, busy, well = Worker("I", 26, 0, 0), Worker("B", 26, 0, 1), Worker("W", 24, 0, 1)
    risk = assess(Observations(workers=[idle, busy, well]))
    assert risk.active_workers == 1
    assert [sign.examples for sign in risk.reasons] == [("B",)]


def test_a_sign_never_has_more_than_its_most_and_the_score_never_more_than_100() -> None:
    many = [lease(-1, worker=str(n), held=99, crashes=1) for n in range(100)]
    seen = Observations(
        leases=many,
        workers=[Worker(str(n), 0, 60, 1) for n in range(100)],
        refusals=["job"] * 100,
        quarantined=["job"] * 100,
        dead_tables=[("ready", 10**6, 1)],
        pins=["process 1"] * 5,
        asynchronous_standbys=2,
    )
    risk = assess(seen)
    assert (risk.score, risk.stale_risk) == (100, "high")
    assert {sign.sign: sign.points for sign in risk.reasons} == {
        name: rule.most for name, rule in RULES.items() if name != "near_expiry"
    }
    assert all(len(sign.examples) <= 5 for sign in risk.reasons)
    points = [sign.points for sign in risk.reasons]
    assert points == sorted(points, reverse=True), "the worst comes first"


def test_rows_that_are_dead_count_only_beside_many_more_than_the_living() -> None:
    def dead(rows: int, live: int) -> int:
        return assess(Observations(dead_tables=[("ready", rows, live)])).score

    assert dead(50_000, 0) == dead(60_000, 20_000) == 0
    assert dead(50_001, 0) == dead(100_001, 20_000) == RULES["dead_rows"].first
