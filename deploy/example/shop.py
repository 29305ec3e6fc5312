"""The application of the example: what a worker runs. Yours takes its place."""

from __future__ import annotations

import asyncio

from faultline import App, Context

app = App()


@app.task(lease_seconds=10)
async def charge(ctx: Context, order_id: int, takes_seconds: float = 0.0) -> None:
    """Charge an order: the row and the job's success are one commit, or none."""
    await asyncio.sleep(takes_seconds)  # the payment provider thinks
    async with ctx.transaction() as tx:
        await tx.execute("insert into charge (order_id) values (%s)", (order_id,))
        tx.complete({"charged": order_id, "attempt": ctx.attempt})
