"""`make dashboard-hour MINUTES=60`: the dashboard is left open while jobs run, and does not grow.

Opens the pages that change most in a real browser, beside workers that are busy, and asks the
browser after each collection of garbage how much memory, how many nodes and listeners there are.
The first quarter is for warming up. Exits with 1 if the last quarter has more than the second, by
more than a quarter; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console

from faultline import App
from faultline.config import Settings
from faultline.demo.actors import Cast
from faultline.demo.ground import shop
from faultline.demo.live import orders
from faultline.errors import FaultlineError
from faultline.provenance import provenance
from faultline.service import service
from faultline.service.serving import beside, listen
from proofs.race import ended_cleanly
from proofs.stopwatch import finish

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, CDPSession

PAGES = ("", "/jobs", "/workers")
NAMES = ("chromium", "chromium-browser", "google-chrome")
FIGURES = {"JSHeapUsedSize": "bytes", "Nodes": "nodes", "JSEventListeners": "listeners"}
SAMPLES = 24
MOST = 1.25


def chromium() -> str:
    """The browser, or a sentence."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        raise FaultlineError("no Chromium was found: install one (on Debian: apt install chromium)")
    return found


def measured(session: CDPSession) -> dict[str, float]:
    """What one page holds, once what it no longer needs is gone."""
    session.send("HeapProfiler.collectGarbage")
    found = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
    return {ours: found[name] for name, ours in FIGURES.items()}


def watch(context: BrowserContext, address: str, minutes: float) -> Iterator[dict[str, float]]:
    """All pages together, so many times."""
    sessions = []
    for path in PAGES:
        shown = context.new_page()
        shown.goto(f"{address}/dashboard{path}")
        session = context.new_cdp_session(shown)
        session.send("Performance.enable")
        sessions.append(session)
    for _ in range(SAMPLES):
        context.pages[0].wait_for_timeout(1000 * 60 * minutes / SAMPLES)
        each = [measured(session) for session in sessions]
        yield {name: sum(sample[name] for sample in each) for name in FIGURES.values()}


def growth(samples: list[dict[str, float]]) -> dict[str, float]:
    """The last quarter's median over the second quarter's."""
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]

    def median(some: list[dict[str, float]], name: str) -> float:
        return statistics.median(sample[name] for sample in some)

    return {name: round(median(late, name) / median(early, name), 3) for name in samples[0]}


@contextmanager
def stage(settings: Settings) -> Iterator[tuple[str, int]]:
    """The shop, a worker and the dashboard; its address, and the server's version."""
    with (
        shop(settings) as (url, schema),
        Cast("faultline.demo.shop:app", url, schema) as cast,
    ):
        cast.enter("worker")
        app = App(url, schema=schema)
        with app.connect() as conn:
            version = conn.info.server_version
        with beside(service(app), listen("127.0.0.1", 0)) as address, orders(app):
            yield address, version


def hour(settings: Settings, console: Console, minutes: float) -> int:
    """Watch, and judge."""
    from playwright.sync_api import sync_playwright

    samples: list[dict[str, float]] = []
    with stage(settings) as (address, version), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        began = time.monotonic()
        for sample in watch(browser.new_context(), address, minutes):
            samples.append(sample)
            took = (time.monotonic() - began) / 60
            said = f"{sample['bytes'] / 1e6:6.1f} MB  {sample['nodes']:7.0f} nodes"
            console.print(f"{took:5.1f} min  {said}  {sample['listeners']:5.0f} listeners")
        browser.close()
    grown = growth(samples)
    held = all(ratio <= MOST for ratio in grown.values())
    found: dict[str, Any] = {"minutes": minutes, "growth": grown, "held": held}
    finish("dashboard-hour", found | provenance("make dashboard-hour", version))
    return 0 if held else 1


def main() -> int:
    """For so many minutes."""
    parser = argparse.ArgumentParser(prog="proofs.hour", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60, help="how long (60)")
    minutes = parser.parse_args().minutes
    return ended_cleanly(lambda settings: hour(settings, Console(), minutes))


if __name__ == "__main__":
    sys.exit(main())
