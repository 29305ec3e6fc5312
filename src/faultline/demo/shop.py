"""The app of the demo: a shop that charges its customers, and records it in a table of its own."""

from __future__ import annotations

import time

from faultline.app import App
from faultline.context import Context

QUEUE = "shop"
LEASE_SECONDS = 2.0
SETUP = """
create schema {schema}_shop;
create table {schema}_shop.charge (order_id int, job_id uuid, token bigint);
"""

app = App()


@app.task(queue=QUEUE, lease_seconds=LEASE_SECONDS)
def charge(ctx: Context, order_id: int) -> dict[str, int]:
    """Takes its time, never looks at ctx.cancelled, and writes on a connection of its own."""
    time.sleep(1.0)  # the payment provider thinks: long enough to be stopped meanwhile
    with app.connect(autocommit=False) as conn:
        conn.execute(
            f"insert into {app.schema}_shop.charge values (%s, %s, %s)",
            (order_id, ctx.job_id, ctx.token),
        )
        ctx.assert_fence(conn)  # last, then the commit
    return {"charged": order_id}
