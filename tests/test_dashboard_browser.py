"""The dashboard in a real browser: the story that a person on call goes through, and who that may
be: in the dark, on a phone, without a mouse, with a job full of markup, with the database gone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import psycopg
import pytest

from faultline import App
from faultline.launcher import Server
from faultline.migrate import migrate
from faultline.protocol import Protocol
from faultline.service import service
from faultline.service.dashboard.stalling import Stalling
from tests.browsing import browser, needs_browser, page
from tests.serving import Client, Serving, served
from tests.stage import Stage, until
from tests.test_dashboard import MARKUP, dead, refused
from tests.workers import Ground, Process

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture
def web(stage: Stage) -> Iterator[Client]:
    with served(service(App(stage.url))) as client:
        yield client


def address(client: Client, path: str = "") -> str:
    return f"http://{client.host}:{client.port}/dashboard{path}"


def pressed(shown: Page, name: str, *, asked: bool = True) -> None:
    """A button, and Yes where it asks first."""
    shown.get_by_role("button", name=name, exact=True).first.click()
    if asked:
        shown.get_by_role("dialog").get_by_role("button", name="Yes").click()


def test_the_story_from_a_stall_to_a_requeue(stage: Stage, chromium: Browser) -> None:
    """A worker stalls, the risk rises, another takes over, the first one is refused; what failed on
    the way is tried again. Nothing is loaded anew by hand but where a link is followed."""
    ground = Ground(stage)
    with stage.login("worker", "producer") as url, Process(url) as first:
        first.ready()
        stalling = Stalling(lambda: [first.process.pid])
        with served(service(App(stage.url), stalling=stalling)) as client, page(chromium) as shown:
            shown.goto(address(client))
            assert shown.locator("#live.on").wait_for() is None
            shown.locator("#risk.low").wait_for()
            job_id = stage.enqueue("duel_sync", lease_seconds=2)
            first.until("execution_started", job_id=job_id)
            shown.locator("#leases").get_by_title(str(job_id)).wait_for()

            shown.get_by_role("link", name="Workers", exact=True).click()
            pressed(shown, "Stall this worker", asked=False)
            shown.get_by_text("is stopped in the middle of its work").wait_for()
            shown.get_by_text("stalled by you").wait_for()
            shown.locator(".countdown.gone").wait_for()
            shown.get_by_role("link", name="Overview").click()
            shown.locator("#risk.high, #risk.medium").wait_for()
            shown.get_by_text("expired leases").wait_for()

            with Process(url) as second:
                second.until("lease_reclaimed", job_id=job_id)
                ground.go(job_id, 2)
                second.until("job_completed", job_id=job_id)
                shown.get_by_role("link", name="Workers", exact=True).click()
                pressed(shown, "Resume", asked=False)
                ground.go(job_id, 1)
                first.until("stale_write_blocked", job_id=job_id)

            shown.get_by_role("link", name="Refusals").click()
            shown.get_by_title(str(job_id)).first.click()
            shown.get_by_text("stale write").first.wait_for()
            assert shown.locator(".mark.refused").count() >= 1
            assert shown.locator(".bar.succeeded").count() == 1
            slider = shown.get_by_label("State at this moment")
            slider.focus()
            slider.press("Home")
            assert "not claimed yet" in shown.locator("figcaption output").inner_text()
            shown.locator(".bar.succeeded").hover()
            assert "token 2" in shown.locator("figcaption output").inner_text()

    failed = dead(stage, task="add", payload={"a": 1, "b": 2})
    with served(service(App(stage.url))) as client, page(chromium) as shown:
        shown.goto(address(client, "/jobs?state=failed"))
        shown.get_by_label("Choose add").check()
        pressed(shown, "Retry chosen")
        shown.get_by_text("1 job will be tried again now").wait_for()
        assert stage.state(failed) == "queued"
    assert stage.violations() == []


def test_saying_no_does_nothing(stage: Stage, web: Client, chromium: Browser) -> None:
    job_id = stage.enqueue()
    with page(chromium) as shown:
        shown.goto(address(web, f"/jobs/{job_id}"))
        shown.get_by_role("button", name="Cancel").click()
        shown.get_by_role("dialog").get_by_role("button", name="No").click()
        assert shown.locator("#said p").count() == 0
        pressed(shown, "Cancel")
        shown.get_by_text("1 job cancelled").wait_for()
        shown.get_by_text("cancelled", exact=True).first.wait_for()
    assert stage.state(job_id) == "cancelled"


def test_in_the_dark_and_the_button_that_changes_it(
    stage: Stage, web: Client, chromium: Browser
) -> None:
    refused(stage)

    def lightness(shown: Page) -> int:
        colour = shown.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in colour.strip("rgb()").split(","))

    with page(chromium, color_scheme="dark") as shown:
        shown.goto(address(web))
        assert lightness(shown) < 150
        shown.get_by_title("Light or dark").click()
        assert lightness(shown) > 600
        shown.reload()
        assert lightness(shown) > 600, "it is remembered"
    with page(chromium, color_scheme="light") as shown:
        shown.goto(address(web))
        assert lightness(shown) > 600


@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_is_wider_than_the_screen(
    stage: Stage, web: Client, chromium: Browser, width: int
) -> None:
    stage.verbs.beat("a-host-with-a-long-name:123456:abcdef01", ["default"], {}).run(stage.conn)
    job_id = refused(stage)
    with page(chromium, viewport={"width": width, "height": 800}) as shown:
        for path in ("", "/jobs", f"/jobs/{job_id}", "/workers", "/refusals", "/queues", "/health"):
            shown.goto(address(web, path))
            shown.locator("#live.on").wait_for()
            assert shown.evaluate("document.documentElement.scrollWidth") <= width, path


def test_without_a_mouse(stage: Stage, web: Client, chromium: Browser) -> None:
    """From the first page to a job that is tried again, with Tab and Enter."""
    job_id = dead(stage)

    def tab_to(shown: Page, name: str) -> None:
        for _ in range(60):
            shown.keyboard.press("Tab")
            focused = shown.evaluate(
                "document.activeElement.innerText || document.activeElement.ariaLabel || ''"
            )
            if focused.strip() == name:
                return
        raise AssertionError(f"{name} cannot be reached")

    with page(chromium) as shown:
        shown.goto(address(web))
        tab_to(shown, "Skip to the content")
        tab_to(shown, "Jobs")
        shown.keyboard.press("Enter")
        shown.wait_for_url("**/dashboard/jobs")
        tab_to(shown, f"Choose work {job_id}")
        shown.keyboard.press("Space")
        assert shown.get_by_label("Choose work").is_checked()
        shown.keyboard.press("Shift+Tab")
        shown.keyboard.press("Shift+Tab")
        shown.keyboard.press("Shift+Tab")
        assert "Retry" in shown.evaluate("document.activeElement.innerText")
        shown.keyboard.press("Enter")
        shown.get_by_role("dialog").wait_for()
        shown.keyboard.press("Tab")
        shown.keyboard.press("Enter")
        shown.get_by_text("1 job will be tried again now").wait_for()
    assert stage.state(job_id) == "queued"


def test_markup_in_a_job_is_text(stage: Stage, web: Client, chromium: Browser) -> None:
    stage.verbs.beat(MARKUP, [MARKUP], {"host": MARKUP}).run(stage.conn)
    job_id, token = stage.running(MARKUP, task=MARKUP, queue=MARKUP, payload={"x": MARKUP})
    stage.verbs.fail([(job_id, token)], [{"type": MARKUP, "message": MARKUP}], dead=[True]).run(
        stage.conn
    )
    with page(chromium) as shown:
        asked: list[str] = []
        shown.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
        for path in ("", "/jobs", f"/jobs/{job_id}", "/workers", "/queues"):
            shown.goto(address(web, path))
            shown.locator("#live.on").wait_for()
            assert shown.get_by_text(MARKUP[:30]).count() >= 1, path
            assert shown.locator("main img").count() == 0
        assert asked == []


def test_the_database_goes_away_and_comes_back(chromium: Browser) -> None:
    with Server.temporary() as server:
        with psycopg.connect(server.url, autocommit=True) as conn:
            migrate(conn, "faultline")
            Protocol().enqueue("work", {}).run(conn)
        with Serving(server.url) as serving, page(chromium) as shown:
            shown.goto(address(serving.client))
            shown.locator("#live.on").wait_for()
            os.kill(server.pid, signal.SIGKILL)
            shown.locator("#trouble:not([hidden])").wait_for()
            assert "Nothing can be seen" in shown.locator("#trouble").inner_text()
            server.start()
            shown.locator("#trouble").wait_for(state="hidden")
            with psycopg.connect(server.url, autocommit=True) as conn:
                Protocol().enqueue("work", {}, queue="afterwards").run(conn)
            shown.get_by_text("afterwards").first.wait_for()


def test_times_are_the_viewers(stage: Stage, web: Client, chromium: Browser) -> None:
    stage.execute("select {schema}.enqueue('work')")
    shown_in = {}
    for zone in ("Asia/Tokyo", "America/New_York"):
        with page(chromium, timezone_id=zone) as shown:
            shown.goto(address(web, "/jobs"))
            time = shown.locator("tbody time").first
            shown_in[zone] = time.inner_text()
            assert time.get_attribute("title") == time.get_attribute("datetime")
            assert str(time.get_attribute("title")).endswith("Z")
    assert len(set(shown_in.values())) == 2


def test_nothing_moves_under_a_hand(stage: Stage, web: Client, chromium: Browser) -> None:
    """A job that is ticked stays ticked, where it is, when others come."""
    from playwright.sync_api import expect

    job_id = stage.enqueue()
    with page(chromium) as shown:
        shown.goto(address(web, "/jobs"))
        shown.locator("#live.on").wait_for()
        shown.get_by_label("Choose work").check()
        for _ in range(3):
            stage.enqueue(queue="others")
        until(lambda: web.get("/api/queues").body["queues"][-1]["queued"] == 3, "they are there")
        shown.locator("#live.on").wait_for()
        expect(shown.locator("#jobs tbody tr")).to_have_count(1)
        assert shown.locator(f'input[value="{job_id}"]').is_checked()
        shown.locator(f'input[value="{job_id}"]').uncheck()
        shown.mouse.move(2, 2)
        shown.locator("h1").click()
        stage.enqueue(queue="others")
        expect(shown.locator("#jobs tbody tr")).to_have_count(5, timeout=30_000)
