"""Tokens across a failover, a dump and restore, and a bump: no token is ever handed out twice.

Method: a primary and an asynchronous streaming standby of this test's own. The walsender is stopped
(SIGSTOP), so that the standby really lags; the primary goes on handing out tokens, is killed, and
the standby is promoted.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from faultline.errors import StaleLease
from faultline.launcher import Server
from faultline.migrate import migrate
from tests.conftest import OPTIONS, debian_binaries
from tests.stage import Stage, until

EPOCH = 1 << 40
JOBS = 12


@pytest.fixture(params=["18", "15"])
def primary(request: pytest.FixtureRequest) -> Iterator[Server]:
    binaries = debian_binaries() if request.param == "15" else None
    if request.param == "15" and binaries is None:
        pytest.skip("PostgreSQL 15 is not installed")
    with Server.temporary(binaries=binaries, options=OPTIONS) as server:
        with psycopg.connect(server.url, autocommit=True) as conn:
            migrate(conn, "faultline")
        yield server


@pytest.fixture
def standby(primary: Server) -> Iterator[Server]:
    with primary.standby(options=OPTIONS) as server:
        yield server


def catch_up(stage: Stage) -> None:
    until(
        lambda: stage.value(
            "select count(*) from pg_stat_replication "
            "where replay_lsn >= pg_current_wal_insert_lsn()"
        ),
        "the standby has replayed everything",
    )


def cut_off(stage: Stage) -> int:
    """Stop the walsender: from here on nothing reaches the standby."""
    walsender = int(stage.value("select pid from pg_stat_replication"))
    os.kill(walsender, signal.SIGSTOP)
    return walsender


def fail_over(primary: Server, standby: Server, walsender: int) -> None:
    os.kill(primary.pid, signal.SIGKILL)
    os.kill(walsender, signal.SIGKILL)
    standby.run("pg_ctl", "promote", "--pgdata", standby.data, "--wait")


def attempts_of(stage: Stage, worker: str) -> set[tuple[UUID, int]]:
    return {(lease.job_id, lease.token) for lease in stage.claim(worker, 1000)}


def test_a_standby_that_lost_commits_hands_out_no_token_twice(
    primary: Server, standby: Server
) -> None:
    with Stage(primary.url) as before:
        ids = {before.enqueue() for _ in range(JOBS)}
        catch_up(before)
        walsender = cut_off(before)
        lost = attempts_of(before, "A")
        before.expire(*ids)
        before.verbs.reclaim().run(before.conn)
        lost |= attempts_of(before, "A")
        assert {token for _, token in lost} == {1, 2}
    fail_over(primary, standby, walsender)
    with Stage(standby.url) as after:
        assert after.reading.current_epoch(after.conn)["epoch"] == 0  # as replicated
        rightful = attempts_of(after, "B")
        assert {job_id for job_id, _ in rightful} == ids
        assert not rightful & lost
        assert min(token for _, token in rightful) == EPOCH
        refused = after.verbs.complete(sorted(lost)).run(after.conn)
        assert {(x.job_id, x.token) for x in refused} == lost
        for job_id, token in sorted(lost):
            with pytest.raises(StaleLease):
                after.verbs.complete_one(job_id, token).run(after.conn)
        assert after.verbs.complete(sorted(rightful)).run(after.conn) == []
        assert {after.state(job_id) for job_id in ids} == {"succeeded"}
        assert after.violations() == []
        assert after.reading.current_epoch(after.conn)["epoch"] == 1


def test_a_synchronous_standby_has_every_success_that_was_acknowledged(
    primary: Server, standby: Server
) -> None:
    """And none is waited for here: the primary is killed right after the last answer."""
    with Stage(primary.url) as before:
        before.execute("alter system set synchronous_standby_names = '*'")
        before.execute("select pg_reload_conf()")
        until(
            lambda: before.value("select sync_state from pg_stat_replication") == "sync",
            "the standby is synchronous",
        )
        attempts = [before.running("A") for _ in range(JOBS)]
        for attempt in attempts:
            assert before.verbs.complete([attempt]).run(before.conn) == []
        os.kill(primary.pid, signal.SIGKILL)
    standby.run("pg_ctl", "promote", "--pgdata", standby.data, "--wait")
    with Stage(standby.url) as after:
        assert {after.state(job_id) for job_id, _ in attempts} == {"succeeded"}
        assert after.violations() == []


def test_after_a_failover_living_workers_can_renew_before_anybody_reclaims(
    primary: Server, standby: Server
) -> None:
    with Stage(primary.url) as before:
        attempt = before.running("A")
        before.expire(attempt[0])  # what the standby has: the renewals after this are lost
        catch_up(before)
        walsender = cut_off(before)
        before.execute("update {schema}.lease set expires_at = now() + interval '30 s'")
    fail_over(primary, standby, walsender)
    with Stage(standby.url) as after:
        assert after.verbs.reclaim().run(after.conn) == []
        assert after.verbs.renew([attempt]).run(after.conn)[0].verdict == "renewed"
        after.expire(attempt[0])
        assert len(after.verbs.reclaim().run(after.conn)) == 1  # the grace is given once


def test_tokens_rise_over_a_restart_by_one_and_not_by_an_epoch(primary: Server) -> None:
    with Stage(primary.url) as stage:
        job_id, token = stage.running("A")
    primary.restart()
    with Stage(primary.url) as stage:
        assert (token, stage.take_over(job_id)[1]) == (1, 2)
        assert stage.reading.current_epoch(stage.conn)["epoch"] == 0


def test_tokens_rise_over_a_dump_and_restore_to_another_server(
    primary: Server, server_url: str, empty_database: str, tmp_path: Path
) -> None:
    with Stage(primary.url) as before:
        job_id, dumped = before.running("A")
        primary_dump = primary.run("pg_dump", "--schema=faultline", "--no-comments").stdout
        lost = before.take_over(job_id, "A")  # handed out after the dump
    script = tmp_path / "dump.sql"
    script.write_text(primary_dump)
    primary.run("psql", "-v", "ON_ERROR_STOP=1", "-q", "-d", empty_database, "-f", script)
    with Stage(empty_database) as after:
        after.expire(job_id)
        assert after.verbs.reclaim().run(after.conn) == []  # another server: leases start anew
        rightful = after.take_over(job_id, "B")
        assert rightful[1] >= EPOCH > lost[1] > dumped
        with pytest.raises(StaleLease):
            after.verbs.complete_one(*lost).run(after.conn)
        assert after.verbs.complete([rightful]).run(after.conn) == []
        assert after.violations() == []


def test_tokens_rise_after_a_bump_and_leases_start_anew(primary: Server) -> None:
    with Stage(primary.url) as stage:
        attempt = stage.running("A")
        stage.expire(attempt[0])
        assert stage.verbs.epoch_bump().run(stage.conn) == 16
        assert stage.verbs.reclaim().run(stage.conn) == []
        assert stage.take_over(attempt[0])[1] == 16 * EPOCH


def test_an_epoch_that_would_pass_the_range_is_refused_and_tokens_stay_json_safe(
    primary: Server,
) -> None:
    with Stage(primary.url) as stage:
        stage.enqueue()
        stage.execute("update {schema}.epoch set epoch = 8191")
        (lease,) = stage.claim("A")
        assert lease.token == 8191 * EPOCH < 2**53
        with pytest.raises(psycopg.errors.CheckViolation, match="below_two_to_the_53rd"):
            stage.verbs.epoch_bump().run(stage.conn)


def test_a_timeline_below_the_recorded_one_raises_the_epoch(primary: Server) -> None:
    with Stage(primary.url) as stage:
        stage.execute("update {schema}.epoch set timeline = 5, epoch = 4")
        assert stage.running("A")[1] == 5 * EPOCH
        assert stage.reading.current_epoch(stage.conn)["timeline"] == 1
