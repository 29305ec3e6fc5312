"""commit_status: what became of a COMMIT whose answer was lost, asked from another session.

Another life of the server is made by emptying `server_life`, as a crash does; one test crashes a
server of its own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from psycopg import Connection

from faultline.errors import InvalidArgument
from faultline.launcher import Server
from faultline.migrate import migrate
from tests.conftest import OPTIONS
from tests.stage import Stage, until

LIFE = "select life::text from {schema}.server_life"


def opened(stage: Stage, attempt: Any) -> tuple[Connection[Any], str]:
    """A worker's transaction with a fence, and the mark to ask about."""
    conn = stage.connect(isolation="read committed")
    mark = stage.verbs.fence(*attempt).run(conn)
    assert mark is not None
    return conn, mark


def status(stage: Stage, attempt: Any, mark: str | None) -> str:
    return stage.verbs.commit_status(*attempt, mark).run(stage.conn)


def another_life(stage: Stage) -> None:
    """The server crashes, and a worker beats."""
    stage.execute("truncate {schema}.server_life")
    stage.verbs.beat("A", ["default"]).run(stage.conn)


@pytest.mark.both_servers
def test_a_commit_is_in_progress_until_it_is_committed_or_aborted(stage: Stage) -> None:
    for end, expected in (("commit", "committed"), ("rollback", "aborted")):
        attempt = stage.running("A")
        conn, mark = opened(stage, attempt)
        assert status(stage, attempt, mark) == "in progress"
        conn.execute(end)
        assert status(stage, attempt, mark) == expected


def test_a_commit_that_the_fence_refused_is_aborted(stage: Stage) -> None:
    attempt = stage.running("A")
    conn, mark = opened(stage, attempt)
    stage.take_over(attempt[0])
    with pytest.raises(Exception, match="stale lease"):
        conn.execute("commit")
    assert status(stage, attempt, mark) == "aborted"


def test_a_session_that_dies_before_its_commit_is_aborted(stage: Stage) -> None:
    attempt = stage.running("A")
    conn, mark = opened(stage, attempt)
    stage.execute("select pg_terminate_backend(%s)", conn.info.backend_pid)
    until(lambda: status(stage, attempt, mark) == "aborted", "the session is gone")


@pytest.mark.both_servers
@pytest.mark.parametrize("kept", ["ending", "step", "nothing"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_in_another_life_only_what_the_commit_left_behind_is_believed(
    stage: Stage, kept: str, end: str
) -> None:
    attempt = stage.running("A")
    conn, mark = opened(stage, attempt)
    if kept == "ending":
        stage.verbs.complete_one(*attempt).run(conn)
    if kept == "step":
        stage.verbs.record_step(*attempt, "charge").run(conn)
    conn.execute(end)
    another_life(stage)
    found = end == "commit" and kept != "nothing"
    assert status(stage, attempt, mark) == ("committed" if found else "unknown")


def test_in_another_life_a_transaction_id_is_somebody_elses(stage: Stage) -> None:
    """It was lost with the crash, and given out again: whoever has it now has committed."""
    attempt = stage.running("A")
    life = stage.value(LIFE)
    another_life(stage)
    conn, mark = opened(stage, stage.running("A"))
    conn.execute("commit")
    theirs = mark.partition(":")[0]
    assert status(stage, attempt, f"{theirs}:{life}") == "unknown"


def test_an_ending_or_a_step_of_another_transaction_does_not_count(stage: Stage) -> None:
    """An intermediate commit was lost in the crash; the attempt went on, and committed others."""
    attempt = stage.running("A")
    conn, mark = opened(stage, attempt)
    conn.execute("rollback")
    another_life(stage)
    stage.verbs.record_step(*attempt, "charge").run(stage.conn)
    stage.verbs.complete_one(*attempt).run(stage.conn)
    assert status(stage, attempt, mark) == "unknown"


def test_a_fence_opened_after_a_crash_and_before_a_worker_beats_can_be_asked_about(
    stage: Stage,
) -> None:
    """Nobody can tell yet which life it is: what is left behind is what counts, once it is over."""
    stage.execute("truncate {schema}.server_life")
    ended, lost = stage.running("A"), stage.running("A")
    conn, mark = opened(stage, ended)
    assert status(stage, ended, mark) == "in progress"
    stage.verbs.complete_one(*ended).run(conn)
    conn.execute("commit")
    assert status(stage, ended, mark) == "committed"
    conn, mark = opened(stage, lost)
    conn.execute("rollback")
    assert status(stage, lost, mark) == "unknown"


@pytest.mark.parametrize("mark", ["", "x", "1:", "1:x", "-1:", ":" + "0" * 36, "1:0;drop"])
def test_a_mark_that_no_fence_gave_is_refused(stage: Stage, mark: str) -> None:
    with pytest.raises(InvalidArgument, match="the mark is not one"):
        status(stage, stage.running("A"), mark)


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of this test's own, to be crashed."""
    with Server.temporary(options=OPTIONS) as server:
        yield server


def test_a_crash_ends_the_life_and_the_next_beat_begins_another(server: Server) -> None:
    with Stage(server.url) as stage:
        migrate(stage.conn, "faultline")
        before = stage.value(LIFE)
        completed, lost = stage.running("A"), stage.running("A")
        conn, mark = opened(stage, completed)
        stage.verbs.complete_one(*completed).run(conn)
        conn.execute("commit")
        _, open_mark = opened(stage, lost)
    os.kill(server.pid, signal.SIGQUIT)  # an immediate shutdown: no checkpoint, no good-bye
    until(lambda: not server.is_running(), "the server is down")
    server.restart()
    with Stage(server.url) as stage:
        assert stage.execute(LIFE) == []
        assert status(stage, completed, mark) == "committed"
        assert status(stage, lost, open_mark) == "unknown"
        stage.verbs.beat("A", ["default"]).run(stage.conn)
        [(after,)] = stage.execute(LIFE)
        assert after != before
        stage.verbs.beat("A", ["default"]).run(stage.conn)
        assert stage.execute(LIFE) == [(after,)]
        assert status(stage, completed, mark) == "committed"
        assert status(stage, lost, open_mark) == "unknown"
    server.restart()  # an orderly one: nothing was lost, and ids go on
    with Stage(server.url) as stage:
        assert stage.execute(LIFE) == [(after,)]
