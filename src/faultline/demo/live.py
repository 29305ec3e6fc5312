"""`faultline demo --serve`: a shop that goes on selling, two workers, and the dashboard.

Stall a worker from its page (SIGSTOP): its leases run out, the other one takes over, and when it is
resumed the database refuses what it writes. Ctrl-C ends everything.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from socket import socket

from rich.console import Console

from faultline.app import App
from faultline.config import Settings
from faultline.demo.actors import Cast
from faultline.demo.ground import shop
from faultline.demo.shop import LEASE_SECONDS, QUEUE
from faultline.service import service
from faultline.service.dashboard.stalling import Stalling
from faultline.service.serving import beside

ORDER_SECONDS = 0.5  # between two orders
WORKERS = 2


def live(settings: Settings, console: Console, listening: socket) -> None:
    """Until Ctrl-C."""
    with (
        shop(settings) as (url, schema),
        Cast("faultline.demo.shop:app", url, schema) as cast,
    ):
        workers = [cast.enter(f"worker-{n}", "--concurrency", "4") for n in range(WORKERS)]
        app = App(url, schema=schema)
        stalling = Stalling(lambda: [worker.pid for worker in workers if worker.poll() is None])
        with beside(service(app, stalling=stalling), listening) as address, orders(app):
            console.print(f"\nThe dashboard: [bold]{address}/dashboard[/bold]", soft_wrap=True)
            console.print(
                f"Stall a worker there: [bold]{address}/dashboard/workers[/bold]. Its leases last "
                f"{LEASE_SECONDS:g} s. Ctrl-C ends everything.",
                soft_wrap=True,
            )
            threading.Event().wait()


@contextmanager
def orders(app: App) -> Iterator[None]:
    """Customers, one after the other."""
    closed = threading.Event()

    def sell() -> None:
        for number in count(100):
            if closed.wait(ORDER_SECONDS):
                return
            app.enqueue("charge", {"order_id": number}, queue=QUEUE, lease_seconds=LEASE_SECONDS)

    selling = threading.Thread(target=sell, name="customers", daemon=True)
    selling.start()
    try:
        yield
    finally:
        closed.set()
        selling.join(5)
        app.close()
