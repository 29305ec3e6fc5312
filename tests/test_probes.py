"""What a worker answers to whoever probes it: `/livez` and `/readyz`, of real processes whose
database is killed, stopped or locked."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from faultline import App
from faultline.beats import SILENT_SECONDS
from faultline.drills.workers import descendants
from faultline.jobs import Lease
from faultline.launcher import Server
from faultline.migrate import migrate
from faultline.observer import Standing
from faultline.telemetry.pulse import BEGIN_SECONDS, QUIET_SECONDS, STUCK_SECONDS, Pulse
from faultline.worker import Worker
from faultline.worker.attempt import Attempt
from faultline.worker.outage import nothing
from faultline.worker.reconciler import reconcile_forever
from tests.command import CommandLine
from tests.conftest import OPTIONS
from tests.ports import answers, free_port
from tests.scraping import Scrape, port_of
from tests.stage import DEADLINE_SECONDS, Stage, until
from tests.workers import Ground, Process

NOWHERE = ("--metrics-port", "0")


def probe(port: int, path: str) -> tuple[int, str]:
    """The status, and what it says."""
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}{path}", timeout=DEADLINE_SECONDS
        ) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode().strip()


def until_ready(port: int) -> None:
    until(lambda: probe(port, "/readyz") == (200, "ready"), "it is ready")


def until_not_ready(port: int, because: str) -> str:
    """Until it says no for this reason; then it lives all the same."""
    said = until(
        lambda: (found := probe(port, "/readyz"))[0] == 503 and because in found[1] and found,
        f"it is not ready: {because}",
    )
    assert probe(port, "/livez") == (200, "live"), "starting it anew would not help"
    return str(said[1])


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of this test's own, to be mistreated."""
    with Server.temporary(options=OPTIONS) as server:
        with Stage(server.url) as stage:
            migrate(stage.conn, "faultline")
            Ground(stage)
        yield server


@pytest.fixture
def ground(stage: Stage) -> Ground:
    return Ground(stage)


def crash(server: Server) -> None:
    os.kill(server.pid, signal.SIGQUIT)
    until(lambda: not server.is_running(), "the server is down")


# ── the database ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_worker_is_ready_only_while_the_database_answers_and_lives_all_the_time(
    server: Server, processes: str
) -> None:
    with Process(server.url, *NOWHERE, "--processes", processes) as worker:
        port = port_of(worker)
        until_ready(port)
        assert probe(port, "/livez") == (200, "live")
        crash(server)
        until_not_ready(port, "cannot be")
        server.restart()
        until_ready(port)
        assert Scrape.of(port).sum("worker_processes") == int(processes)


def test_a_worker_whose_database_has_frozen_is_not_ready_and_is_again_when_it_goes_on(
    server: Server,
) -> None:
    """Nothing is refused and nothing breaks off: there is just no answer."""
    with Stage(server.url) as stage:
        job_id = stage.enqueue("stays", lease_seconds=3)
    with Process(server.url, *NOWHERE) as worker:
        worker.until("execution_started", job_id=job_id)
        port = port_of(worker)
        until_ready(port)
        frozen = [server.pid, *descendants(server.pid)]
        try:
            for pid in frozen:
                os.kill(pid, signal.SIGSTOP)
            until_not_ready(port, "cannot be")
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)
        until_ready(port)


def test_a_lease_that_somebody_keeps_locked_makes_its_worker_not_ready(ground: Ground) -> None:
    """The database answers, and other jobs could be claimed: only this one cannot be renewed."""
    job_id = ground.stage.enqueue("stays", lease_seconds=3)
    with Process(ground.stage.url, *NOWHERE) as worker:
        worker.until("execution_started", job_id=job_id)
        port = port_of(worker)
        until_ready(port)
        with Stage(ground.stage.url) as other, other.conn.transaction():
            other.execute("select from {schema}.lease where job_id = %s for update", job_id)
            assert str(job_id) in until_not_ready(port, "not renewed in time")
        until_ready(port)


def test_a_worker_that_has_lost_its_rights_says_so(ground: Ground) -> None:
    with (
        ground.stage.login("worker", "producer") as url,
        Process(url, *NOWHERE, "--poll-seconds", "0.1") as worker,
    ):
        port = port_of(worker)
        until_ready(port)
        ground.stage.execute(
            "revoke execute on all functions in schema {schema} from faultline_worker"
        )
        until_not_ready(port, "GRANT faultline_worker")
        migrate(ground.stage.conn, "faultline")
        until_ready(port)


# ── the worker ───────────────────────────────────────────────────────────────────────────────────


def test_a_draining_worker_is_ready_as_long_as_it_renews(server: Server) -> None:
    with Stage(server.url) as stage:
        job_id = stage.enqueue("stays", lease_seconds=3)
    with Process(server.url, *NOWHERE, "--grace-seconds", "100") as worker:
        worker.until("execution_started", job_id=job_id)
        port = port_of(worker)
        worker.terminate()
        worker.until("worker_draining")
        renewals = Scrape.of(port).sum("lease_renewals_total")
        until(lambda: Scrape.of(port).sum("lease_renewals_total") > renewals, "it renews")
        assert probe(port, "/readyz") == (200, "ready")
        crash(server)
        until_not_ready(port, "cannot be")
        worker.terminate()
        assert worker.ended() == 1, "it could not hand its job back"
        assert not answers(port)


def test_a_handler_that_blocks_the_loop_leaves_its_worker_live_and_ready(ground: Ground) -> None:
    job_id = ground.stage.enqueue("duel_blocking", lease_seconds=1)
    with Process(ground.stage.url, *NOWHERE) as worker:
        ground.until_in(job_id, 1)
        port = port_of(worker)
        until(lambda: Scrape.of(port).sum("lease_renewals_total") >= 6, "two leases have gone by")
        assert probe(port, "/readyz") == (200, "ready")
        assert probe(port, "/livez") == (200, "live")
        ground.go(job_id, 1)
        ground.until_state(job_id, "succeeded")


def test_the_parent_says_that_a_process_of_its_own_is_silent(ground: Ground) -> None:
    with Process(ground.stage.url, *NOWHERE, "--processes", "2") as worker:
        port = port_of(worker)
        until_ready(port)
        stopped = worker.told("worker_started")[0]
        os.kill(stopped["pid"], signal.SIGSTOP)
        until_not_ready(port, f"process {stopped['worker']} has said nothing")
        os.kill(stopped["pid"], signal.SIGCONT)
        until_ready(port)


def test_a_parent_that_drains_is_ready_though_some_of_its_processes_have_ended(
    server: Server,
) -> None:
    with Stage(server.url) as stage:
        job_id = stage.enqueue("stays", lease_seconds=3)
    options = (*NOWHERE, "--processes", "2", "--grace-seconds", "100")
    with Process(server.url, *options) as worker:
        port = port_of(worker)
        busy = worker.until("execution_started", job_id=job_id)["worker"]
        until_ready(port)
        [idle] = [seen for seen in worker.told("worker_started") if seen["worker"] != busy]
        worker.terminate()
        worker.until("worker_exit", worker=idle["worker"])
        until(lambda: not Path(f"/proc/{idle['pid']}").exists(), "it has ended")
        assert not worker.told("worker_exit", worker=busy)
        until_ready(port)


@pytest.mark.parametrize("who", ["worker", "reconciler"])
def test_the_loop_that_is_asked_whether_it_turns_says_so_again_and_again(
    stage: Stage, who: str
) -> None:
    """Else nobody would ever be stuck, or everybody after a minute."""
    app = App(stage.url)
    seen = Looks()
    app.telemetry.pulse = seen

    async def story() -> None:
        running = asyncio.ensure_future(
            app.arun_worker(emit=nothing, allow_empty=True)
            if who == "worker"
            else reconcile_forever(stage.url, stage.schema, nothing, observer=app.telemetry)
        )
        while len(set(seen.turns()) - {None}) < 3:
            assert not running.done()
            await asyncio.sleep(0.05)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    asyncio.run(asyncio.wait_for(story(), DEADLINE_SECONDS))
    app.close()
    moments = [moment for moment in seen.seen if moment is not None]
    assert moments == sorted(moments)


class Looks(Pulse):
    """Remembers when the loops have turned."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float | None] = []

    def turns(self) -> list[float | None]:
        """Each time that anybody has seen so far."""
        self.seen += [look().turned_at for look in self._looks.copy().values()]
        return self.seen


def test_a_keeper_that_was_not_answered_for_long_says_so(stage: Stage) -> None:
    """Also where no call has failed: it waits for ever, say. The moment is moved."""

    async def story() -> None:
        worker = Worker(App(stage.url), emit=nothing)
        worker.prepare()
        keeper = worker._keeper
        assert keeper.trouble() is None
        keeper._answered_at = time.monotonic() - SILENT_SECONDS + 5
        assert keeper.trouble() is None
        keeper._answered_at = time.monotonic() - SILENT_SECONDS - 5
        assert "the database has not answered for 30 s" in str(keeper.trouble())

    asyncio.run(story())


def test_a_lease_is_overdue_long_before_its_handler_has_to_stop() -> None:
    """Past half of it, as the guide says: a probe that spoke only then would come too late."""
    for seconds in (1.0, 10.0, 30.0, 3600.0):
        lease = Lease(uuid4(), 1, 1, 1, 0, 0, 0, seconds, "work", {}, None)
        attempt = Attempt(lease, None, sent=1000.0)
        assert 1000 + seconds / 2 <= attempt.overdue_at + 1e-6
        assert attempt.overdue_at <= attempt.deadline - seconds / 4


def test_a_worker_that_has_left_is_asked_no_more() -> None:
    """In a process that goes on without it: it would be stuck there for ever."""
    pulse = Pulse()
    pulse.standing("worker", lambda: Standing(turned_at=time.monotonic() - STUCK_SECONDS - 1))
    assert pulse.stuck() is not None
    pulse.left("worker")
    assert pulse.stuck() is None
    assert pulse.trouble() == "it has not begun yet"


def test_a_worker_is_not_ready_before_it_is_connected() -> None:
    assert Pulse().trouble() == "it has not begun yet"
    assert Pulse().stuck() is None, "nor is it to be started anew"


def test_a_loop_that_does_not_turn_is_stuck_and_so_is_the_parent_of_its_process() -> None:
    """Moments are moved, not the clock."""
    now = time.monotonic()
    child, parent = Pulse(), Pulse()
    parent.standing("parent", lambda: Standing(children={"child": now}))
    parent.heard("child", child.words())
    assert parent.trouble() == "process child has not begun yet"
    turned_at = now
    child.standing("child", lambda: Standing(turned_at=turned_at))
    parent.heard("child", child.words())
    assert (parent.stuck(), parent.trouble()) == (None, None)
    turned_at = now - STUCK_SECONDS - 1
    assert "has not turned" in str(child.stuck())
    assert child.trouble() == child.stuck(), "who is stuck is not ready either"
    parent.heard("child", child.words())
    assert parent.stuck() == f"process child: {child.stuck()}"
    parent.lost("child")
    assert parent.stuck() is None


def test_a_child_that_says_nothing_is_trouble_first_and_then_stuck() -> None:
    parent = Pulse()
    now = time.monotonic()
    parent.standing("parent", lambda: Standing(children={"child": now}))
    parent._children["child"] = (now - QUIET_SECONDS - 1, None, None)
    assert "has said nothing" in str(parent.trouble())
    assert parent.stuck() is None
    parent._children["child"] = (now - STUCK_SECONDS - 1, None, None)
    assert "has said nothing" in str(parent.stuck())


def test_a_child_that_was_started_long_ago_and_has_not_begun_is_stuck() -> None:
    """It hangs while it imports the app, say. Moments are moved, not the clock."""
    parent, child = Pulse(), Pulse()
    started_at = time.monotonic()
    parent.standing("parent", lambda: Standing(children={"child": started_at}))
    assert parent.trouble() == "process child has not begun yet"
    assert parent.stuck() is None
    started_at -= BEGIN_SECONDS + 1
    parent.heard("child", child.words())
    assert "process child has not begun yet, 121 s after its start" in str(parent.stuck())
    assert parent.trouble() == parent.stuck()
    child.standing("child", Standing)
    parent.heard("child", child.words())
    assert (parent.stuck(), parent.trouble()) == (None, None), "it has"


def test_a_process_that_hangs_at_the_import_of_the_app_is_stuck_for_its_parents_probe(
    ground: Ground, tmp_path: Path
) -> None:
    """The app itself makes the time for it shorter, in the parent; the children it holds up."""
    (tmp_path / "hangs.py").write_text(
        "import sys, threading\n"
        "from faultline.telemetry import pulse\n"
        "from tests.playground import app\n"
        "pulse.BEGIN_SECONDS = 0.5\n"
        "if sys.argv[0].endswith('worker/__main__.py'):\n"
        "    threading.Event().wait()\n"
    )
    options = (*NOWHERE, "--processes", "2")
    with Process(ground.stage.url, *options, app="hangs:app", FOLDER=str(tmp_path)) as worker:
        port = port_of(worker)
        _, said = until(
            lambda: (found := probe(port, "/livez"))[0] == 503 and found, "it is not live"
        )
        assert "has not begun yet" in said
        assert "s after its start" in said
        assert ".1.1 " in said or ".2.1 " in said, "it says which"


# ── the reconciler ───────────────────────────────────────────────────────────────────────────────


def test_a_reconciler_is_ready_only_while_the_database_answers(
    server: Server, tmp_path: Path
) -> None:
    port = free_port()
    process = CommandLine(server.url, tmp_path).start("reconcile", "--metrics-port", str(port))
    try:
        until(lambda: answers(port), "it listens")
        until_ready(port)
        crash(server)
        until_not_ready(port, "expired leases cannot be taken over")
        server.restart()
        until_ready(port)
    finally:
        process.terminate()
        process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0
