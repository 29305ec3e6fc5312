"""`faultline top`: printed, as a process; and its screen, driven by Textual's own pilot, on a real
database that may go away."""

from __future__ import annotations

import asyncio
import html
import os
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from textual.pilot import Pilot

from faultline import App
from faultline.cli.top.look import Looks
from faultline.cli.top.screen import Top
from faultline.launcher import Server
from faultline.migrate import migrate
from tests.command import FAULTLINE, CommandLine
from tests.conftest import OPTIONS
from tests.stage import DEADLINE_SECONDS, Stage, until
from tests.test_jobs_command import dead, plain, stale_worker
from tests.test_worker_outage import crash

TEXT = re.compile(r'<text [^>]*?x="([\d.]+)" y="([\d.]+)"[^>]*?>(.*?)</text>')
CELL_WIDTH = 12.2
Scene = Callable[["Screen"], Awaitable[None]]


class Screen:
    """What a person sees and presses."""

    def __init__(self, top: Top, pilot: Pilot[None]) -> None:
        self.top = top
        self.pilot = pilot

    @property
    def lines(self) -> list[str]:
        """The screen as text."""
        rows: dict[float, list[tuple[float, str]]] = {}
        for x, y, piece in TEXT.findall(self.top.export_screenshot(title=" ")):
            shown = html.unescape(piece).replace("\xa0", " ")
            rows.setdefault(float(y), []).append((float(x), shown))
        found = []
        for y in sorted(rows):
            line = ""
            for x, piece in sorted(rows[y]):
                line = line.ljust(round(x / CELL_WIDTH)) + piece
            found.append(line.rstrip())
        return found

    def shows(self, *words: str) -> bool:
        seen = "\n".join(self.lines)
        return all(word in seen for word in words)

    async def until_shown(self, *words: str) -> None:
        await self._until(lambda: self.shows(*words), words)

    async def until_gone(self, word: str) -> None:
        await self._until(lambda: not self.shows(word), f"no {word}")

    async def _until(self, condition: Callable[[], bool], what: object) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, (what, *self.lines)
            await self.pilot.pause(0.02)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)


def play(url: str, scene: Scene, size: tuple[int, int] = (80, 24)) -> None:
    """Open the screen, and let the scene happen on it."""

    async def playing() -> None:
        looks = Looks(App(url))
        try:
            top = Top(looks, looks.frame())
            async with top.run_test(size=size) as pilot:
                await scene(Screen(top, pilot))
        finally:
            looks.close()

    asyncio.run(playing())


@pytest.fixture
def faultline(stage: Stage, tmp_path: Path) -> CommandLine:
    return CommandLine(stage.url, tmp_path)


# ── printed ──────────────────────────────────────────────────────────────────────────────────────


def test_once_prints_what_runs_and_what_was_refused_and_ends(
    stage: Stage, faultline: CommandLine
) -> None:
    stale_worker(stage)
    stage.running("host-7", task="charge", queue="billing", lease_seconds=600)
    stage.crowd(1)
    said = faultline("top", "--once")
    assert re.search(r"^risk +MEDIUM  20 of 100, 1 active worker$", said, re.M)
    assert "the database refused what they wrote (1)" in " ".join(said.split())
    assert re.search(r"a second \d+\.\d enqueued, .* \(over ", " ".join(said.split()))
    assert re.search(r"^billing +0 +0 +1 +0$", said, re.M)
    assert re.search(r"^ *(10 min|59\d s)  good +charge +host-7 ", said, re.M)
    assert re.search(r"^w1 +idle ", said, re.M)
    assert re.search(r"ago +complete +1 +2 .* A ", said)


def test_once_in_a_terminal_has_colours_and_fits(stage: Stage, faultline: CommandLine) -> None:
    stale_worker(stage)
    stage.enqueue(queue="q" * 60)
    stage.running("w" * 60)
    status, shown = faultline.in_a_terminal("top", "--once")
    assert status == 0
    assert "\x1b[33mMEDIUM" in shown
    assert all(len(plain(line)) <= 80 for line in shown.splitlines()), shown


def test_json_is_the_same_data_under_the_names_of_the_service(
    stage: Stage, faultline: CommandLine
) -> None:
    job_id, _ = stage.running("host-7")
    facts = faultline.json("top")
    assert facts["risk"]["stale_risk"] == "low"
    assert [lease["job_id"] for lease in facts["leases"]] == [str(job_id)]
    assert facts["queues"][0]["running"] == 1
    assert facts["throughput"]["per_second"]["claimed"] >= 0
    assert (facts["workers"], facts["refusals"], facts["more_leases"]) == ([], [], False)


def test_a_screen_needs_a_terminal(faultline: CommandLine) -> None:
    faultline("top", status=2)
    assert "--once" in faultline.said


def test_a_database_that_is_away_at_the_start_is_said_in_one_line(tmp_path: Path) -> None:
    away = CommandLine("postgresql://nobody@127.0.0.1:1/none", tmp_path)
    away("top", "--once", status=1)
    assert away.said.startswith("faultline: ")
    assert away.said.count("\n") == 1


def test_a_login_that_only_reads_is_enough(stage: Stage, tmp_path: Path) -> None:
    stage.running("host-7")
    with stage.login("reader") as url:
        said = CommandLine(url, tmp_path)("top", "--once")
    assert "host-7" in said
    assert "pg_read_all_stats" in said, "what it may not see is said"


def test_without_textual_the_screen_says_what_to_install_and_once_works(
    stage: Stage, tmp_path: Path
) -> None:
    (tmp_path / "textual.py").write_text(
        "raise ModuleNotFoundError('No module named textual', name='textual')\n"
    )
    bare = CommandLine(stage.url, tmp_path, PYTHONPATH=str(tmp_path))
    status, shown = bare.in_a_terminal("top")
    assert status == 1
    assert "this needs textual, which is not installed" in shown
    assert "faultline-queue[tui]" in shown
    assert bare.in_a_terminal("top", "--once")[0] == 0


def test_neither_the_core_nor_printing_needs_textual_or_the_service() -> None:
    code = (
        "import sys, faultline.cli, faultline.cli.top.look, faultline.cli.top.views; sys.exit("
        "' '.join({'textual', 'fastapi', 'faultline.service'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_q_ends_a_screen_in_a_real_terminal(stage: Stage, faultline: CommandLine) -> None:
    stage.running("host-7", task="charge")
    status, shown = faultline.in_a_terminal("top", answer="q")
    assert status == 0
    assert "overview" in shown


# ── the screen ───────────────────────────────────────────────────────────────────────────────────


def test_the_views_are_reached_by_number_and_by_tab_and_fit_into_80_by_24(stage: Stage) -> None:
    refused = stale_worker(stage)
    job_id, _ = stage.running("host-7", task="charge", queue="billing", lease_seconds=600)
    stage.crowd(1)

    async def scene(screen: Screen) -> None:
        await screen.until_shown("risk        MEDIUM", "billing", " refused", "5 jobs", "q quit")
        await screen.press("2")
        await screen.until_shown("good   charge  host-7", str(job_id))
        await screen.press("tab")
        await screen.until_shown("w1", "idle")
        await screen.press("4")
        await screen.until_shown("complete", str(refused)[-12:])
        await screen.press("5")
        await screen.until_shown("succeeded", str(refused), "running", str(job_id))
        await screen.press("tab")
        await screen.until_shown("risk        MEDIUM")
        assert len(screen.lines) <= 24
        assert max(map(len, screen.lines)) <= 80

    play(stage.url, scene)


def test_what_happens_is_seen_without_a_key_and_a_pause_says_so(stage: Stage) -> None:
    async def scene(screen: Screen) -> None:
        await screen.press("2")
        await screen.until_shown("nothing runs")
        job_id, _ = stage.running("host-7")
        await screen.until_shown(str(job_id), "host-7")
        await screen.press("p")
        await screen.until_shown("PAUSED")
        await screen.press("p")
        stage.running("host-8")
        await screen.until_shown("host-8")
        assert not screen.shows("PAUSED")

    play(stage.url, scene)


def test_enter_shows_the_chosen_job_with_its_timeline(stage: Stage) -> None:
    job_id = stale_worker(stage)

    async def scene(screen: Screen) -> None:
        await screen.press("4")
        await screen.until_shown(str(job_id)[-12:])
        await screen.press("enter")
        await screen.until_shown(str(job_id), "╷enqueued", "◆", "╫", "✗", "succeeded")
        await screen.press("escape")
        await screen.until_shown("4 refusals")

    play(stage.url, scene)


def test_a_job_is_cancelled_after_a_question_and_not_without(stage: Stage) -> None:
    job_id, _ = stage.running("host-7")
    acted: list[str] = []

    async def scene(screen: Screen) -> None:
        access = screen.top.looks.access
        act = access.act
        access.act = lambda role, call: (acted.append(f"{role}: {call.verb}"), act(role, call))[1]
        await screen.press("c")
        await screen.until_shown("choose a job first")
        await screen.press("2")
        await screen.until_shown(str(job_id))
        await screen.press("c")
        await screen.until_shown(f"cancel job {job_id}?")
        await screen.press("n")
        await screen.until_gone("cancel job")
        await screen.press("c")
        await screen.until_shown(f"cancel job {job_id}?")
        await screen.press("y")
        await screen.until_shown(f"job {job_id} runs, and is asked to stop")

    play(stage.url, scene)
    assert stage.job(job_id)["cancel_reason"] == "from faultline top"
    assert acted == ["operator: cancel"], "a no is nothing, a yes is one verb"


def test_a_dead_job_is_found_by_its_state_and_gets_another_life(stage: Stage) -> None:
    job_id = dead(stage)
    alive = stage.enqueue()

    async def scene(screen: Screen) -> None:
        await screen.press("5")
        await screen.until_shown(str(alive), str(job_id))
        for _ in range(8):
            if screen.shows("jobs failed"):
                break
            await screen.press("s")
        await screen.until_shown("jobs failed", str(job_id))
        await screen.until_gone(str(alive))
        await screen.press("r")
        await screen.until_shown(f"retry job {job_id}?")
        await screen.press("y")
        await screen.until_shown(f"job {job_id} has another life")

    play(stage.url, scene)
    assert stage.state(job_id) == "queued"


def test_a_reader_may_look_and_is_told_that_it_may_not_act(stage: Stage) -> None:
    job_id, _ = stage.running("host-7")

    async def scene(screen: Screen) -> None:
        await screen.press("2")
        await screen.until_shown(str(job_id))
        await screen.press("c")
        await screen.until_shown("cancel job")
        await screen.press("y")
        await screen.until_shown("faultline_operator")

    with stage.login("reader") as url:
        play(url, scene)
    assert stage.job(job_id)["cancel_reason"] is None


def test_the_cursor_stays_with_its_job_when_others_come_before_it(stage: Stage) -> None:
    _, chosen = (stage.running("A", lease_seconds=n)[0] for n in (600, 900))

    async def scene(screen: Screen) -> None:
        await screen.press("2")
        await screen.until_shown(str(chosen))
        await screen.press("down")
        sooner, _ = stage.running("B", lease_seconds=300)
        await screen.until_shown(str(sooner))
        await screen.press("c")
        await screen.until_shown(f"cancel job {chosen}?")

    play(stage.url, scene)


def test_names_from_the_database_are_shown_and_never_obeyed(stage: Stage) -> None:
    stage.running("[red]w[/red]", task="[bold]t\x1b[2J", queue="[link]q")

    async def scene(screen: Screen) -> None:
        await screen.until_shown("[link]q")
        await screen.press("2")
        await screen.until_shown("[red]w[/red]", "[bold]t\\x1b[2J")

    play(stage.url, scene)


# ── the database goes away ───────────────────────────────────────────────────────────────────────


@pytest.fixture
def own_server() -> Iterator[Server]:
    with Server.temporary(options=OPTIONS) as server:
        with psycopg.connect(server.url, autocommit=True) as conn:
            migrate(conn, "faultline")
        yield server


def test_the_screen_outlives_the_database_and_says_since_when_it_is_blind(
    own_server: Server,
) -> None:
    def running(worker: str) -> UUID:
        with Stage(own_server.url) as stage:
            return stage.running(worker, lease_seconds=600)[0]

    async def scene(screen: Screen) -> None:
        await screen.press("2")
        await screen.until_shown(str(job_id))
        await asyncio.to_thread(crash, own_server)
        await screen.until_shown("NO ANSWER for", str(job_id))
        await asyncio.to_thread(own_server.restart)
        await screen.until_shown("the database answers again")
        assert not screen.shows("NO ANSWER")
        await screen.until_shown(str(await asyncio.to_thread(running, "B")))

    job_id = running("A")
    play(own_server.url, scene)


def test_q_ends_it_also_while_the_database_is_away(own_server: Server, tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    environment = {
        **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
        "FAULTLINE_DATABASE_URL": own_server.url,
        "FAULTLINE_HOME": str(tmp_path),
        "TERM": "xterm-256color",
    }
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    process = subprocess.Popen([*FAULTLINE, "top"], env=environment, **streams)
    os.close(theirs)
    shown = bytearray()
    os.set_blocking(ours, False)

    def seen(words: bytes) -> bool:
        with suppress(OSError):  # nothing to read yet, or nobody writes any more
            shown.extend(os.read(ours, 65536))
        return words in shown

    try:
        until(lambda: seen(b"overview"), "the screen is there")
        crash(own_server)
        until(lambda: seen(b"NO ANSWER"), "it says that it is blind")
        os.write(ours, b"q")
        until(lambda: seen(b"\0") or process.poll() is not None, "it ends")  # what it says is read
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
