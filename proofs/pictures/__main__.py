"""`make screenshots`: the pictures of the documents, from a real run in a real browser.

A shop with two workers; one is stalled from the dashboard, the other takes over, the first one is
resumed and refused; a Prometheus scrapes all of it. Writes docs/screenshots/*.png and
docs/gifs/stale_worker.gif, whose frames are screens of that run with a sentence below each. Needs
Chromium and Prometheus, and the extras browser and report; and what `make comparison` has left.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from faultline import App
from faultline.config import Settings
from faultline.demo.actors import Cast
from faultline.demo.ground import shop
from faultline.demo.live import orders
from faultline.service import service
from faultline.service.dashboard.stalling import Stalling
from faultline.service.serving import beside, listen
from proofs.hour import chromium
from proofs.pictures.album import Album
from proofs.pictures.comparison import picture_comparison
from proofs.pictures.prometheus import free_port, prometheus
from proofs.race import ended_cleanly

if TYPE_CHECKING:
    from playwright.sync_api import Page, ViewportSize

SCREEN: ViewportSize = {"width": 1120, "height": 700}
TALL: ViewportSize = {"width": 1120, "height": 1360}


def tell(album: Album, address: str) -> None:
    """The story of a stalled worker, page by page."""
    shown = album.shown
    shown.goto(f"{address}/workers")
    shown.locator("#live.on").wait_for()
    stalled = shown.locator("section.worker", has=shown.locator("tbody tr")).first
    stalled.wait_for()
    name = stalled.locator("h2").inner_text().split()[0]
    album.frame(f"1. Two workers charge customers. {name} holds leases.")
    stalled.get_by_role("button", name="Stall this worker").click()
    shown.get_by_text("stalled by you").wait_for()
    album.frame("2. It is stopped in the middle of its work (SIGSTOP). Its leases run out.")
    held = shown.locator("section.worker", has=shown.get_by_text("stalled by you"))
    link = str(held.locator("tbody a").first.get_attribute("href"))
    job = f"{address}/jobs/{link.rpartition('/')[2]}"
    shown.goto(job)
    shown.locator(".bar.expired").wait_for()
    album.frame("3. Nobody renews the lease of this job: it expires, and the job is taken away.")
    shown.locator(".state.succeeded").first.wait_for()
    album.frame("4. The other worker has taken the job over, under token 2, and finished it.")
    shown.goto(f"{address}/workers")
    shown.get_by_role("button", name="Resume").click()
    shown.goto(job)
    shown.locator(".mark.refused").nth(1).wait_for()
    shown.locator(".moment").focus()
    shown.keyboard.press("End")
    album.frame(
        "5. The first one wakes up and writes. The database refuses it: token 1 is stale.", 2
    )
    album.keep("timeline", whole=True)
    shown.goto(f"{address}/refusals")
    shown.locator("tbody tr").first.wait_for()
    album.frame("6. Every refusal is kept as evidence. The customer was charged once.", 2)
    album.keep("refusals")
    shown.goto(address)
    shown.wait_for_timeout(20_000)  # for the chart to have something to show
    album.keep("overview", whole=True)


def endanger(album: Album, address: str) -> None:
    """Both workers are stalled: nobody is left to take over."""
    shown = album.shown
    shown.goto(f"{address}/workers")
    for left in (2, 1):
        buttons = shown.get_by_role("button", name="Stall this worker")
        expect_count(shown, left)
        buttons.first.click()
    expect_count(shown, 0)
    shown.goto(address)
    shown.locator("#risk.high").wait_for()
    shown.get_by_text("expired leases").wait_for()
    album.keep("lease_risk")


def expect_count(shown: Page, count: int) -> None:
    """So many workers can still be stalled."""
    from playwright.sync_api import expect

    expect(shown.get_by_role("button", name="Stall this worker")).to_have_count(count)


def take(settings: Settings, folder: Path) -> int:
    """All pictures."""
    from playwright.sync_api import sync_playwright

    path = chromium()
    for name in ("screenshots", "gifs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    with (
        shop(settings) as (url, schema),
        Cast("faultline.demo.shop:app", url, schema) as cast,
    ):
        ports = [free_port(), free_port()]
        workers = [
            cast.enter(f"worker-{n}", "--concurrency", "4", "--metrics-port", str(port))
            for n, port in enumerate(ports)
        ]
        app = App(url, schema=schema)
        stalling = Stalling(lambda: [worker.pid for worker in workers if worker.poll() is None])
        web = service(app, stalling=stalling)
        with (
            beside(web, listen("127.0.0.1", 0)) as address,
            orders(app),
            prometheus([*ports, int(address.rpartition(":")[2])]) as graphs,
            sync_playwright() as playwright,
        ):
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
            options: dict[str, Any] = {"viewport": SCREEN, "color_scheme": "light"}
            album = Album(folder, browser.new_context(**options).new_page())
            tell(album, f"{address}/dashboard")
            album.shown.goto(graphs)
            album.shown.set_viewport_size(TALL)
            album.shown.locator(".rickshaw_graph svg").nth(1).wait_for()
            album.shown.wait_for_timeout(2000)  # it draws without saying when it is done
            album.keep("prometheus")
            album.shown.set_viewport_size(SCREEN)
            picture_comparison(album)
            endanger(album, f"{address}/dashboard")
            album.animate()
            browser.close()
    Console().print(f"pictures are in {folder}/screenshots and {folder}/gifs")
    return 0


def main() -> int:
    """Into docs, or elsewhere."""
    parser = argparse.ArgumentParser(prog="proofs.pictures", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs"), help="where to (docs)")
    folder = parser.parse_args().out
    return ended_cleanly(lambda settings: take(settings, folder))


if __name__ == "__main__":
    sys.exit(main())
