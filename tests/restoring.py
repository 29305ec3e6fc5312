"""The app of the restored shops: charges that are one commit with their job, and one that waits."""

from __future__ import annotations

from faultline import App, Context
from tests.playground import hold

TABLES = """
create table charge (order_id int, token bigint);
create table mark (job_id uuid, token bigint, note text, at timestamptz default clock_timestamp());
create table go (job_id uuid, token bigint);
"""

app = App()


@app.task(transactional=True, lease_seconds=3)
def charge(ctx: Context, order_id: int) -> int:
    """The row and the job's success are one commit: a dump has both or neither."""
    ctx.tx.execute("insert into charge values (%s, %s)", (order_id, ctx.token))
    return order_id


@app.task
def held(ctx: Context) -> str:
    """Ends when the test says so."""
    hold(ctx)
    return f"token {ctx.token}"
