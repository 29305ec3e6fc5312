"""Checks of the tables: whether vacuum runs, whether it can do anything, and what it has left."""

from __future__ import annotations

from faultline import conditions
from faultline.cli.doctor.finding import Finding, Probe
from faultline.conditions import HOT_TABLES
from faultline.log import duration, printable

_DEAD_ROWS = 50_000
_DEAD_PER_LIVE = 5
_LONG_SECONDS = 300.0

_OFF = """
select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = %s and c.relname = any (%s)
   and 'autovacuum_enabled=false' = any (c.reloptions)"""


def autovacuum(probe: Probe) -> Finding:
    """Whether dead rows are removed at all."""
    on, counts = probe.row(
        "select current_setting('autovacuum') = 'on', current_setting('track_counts') = 'on'"
    )
    if not (on and counts):
        setting = "track_counts" if on else "autovacuum"
        return Finding(
            "autovacuum",
            "problem",
            f"{setting} is off: dead rows are never removed, and every claim walks over them",
            f"turn {setting} on in postgresql.conf, and reload",
        )
    off = [str(name) for (name,) in probe.rows(_OFF, probe.schema, list(HOT_TABLES))]
    if off:
        return Finding(
            "autovacuum",
            "problem",
            f"it is turned off for {', '.join(off)}",
            f"alter table {probe.schema}.{off[0]} reset (autovacuum_enabled)",
        )
    return Finding("autovacuum", "ok", "on")


def dead_rows(probe: Probe) -> Finding:
    """Whether the small, busy tables are full of what nobody needs any more."""
    found = conditions.dead_rows(probe.conn, probe.schema)
    worst = next((t for t in found if t.dead > max(_DEAD_ROWS, _DEAD_PER_LIVE * t.live)), None)
    if worst is None:
        return Finding("dead rows", "ok", f"few in {', '.join(HOT_TABLES)}")
    return Finding(
        "dead rows",
        "warn",
        f"{worst.table} has {worst.dead:,} dead rows and {worst.live:,} live ones: claims get "
        "slower",
        f"end the transactions that pin them, then vacuum; or select {probe.schema}.compact()",
    )


def transactions(probe: Probe) -> Finding:
    """Whether something that stays open keeps vacuum from its work."""
    pins = conditions.pins(probe.conn, _LONG_SECONDS)
    if pins:
        oldest, age = pins[0], pins[0].seconds
        owner = f" of {oldest.user}" if oldest.user else ""
        since = f" has been open for {duration(age)}" if age is not None else " holds old rows back"
        more = f", and {len(pins) - 1} more" if len(pins) > 1 else ""
        return Finding(
            "transactions",
            "warn",
            printable(f"{oldest.what}{owner}{since}{more}: vacuum can remove nothing newer"),
            "end it: select pg_terminate_backend(pid), rollback prepared, or drop the slot",
        )
    if not conditions.sees_all(probe.conn):
        return Finding(
            "transactions",
            "warn",
            f"user {probe.user} sees only its own: others may keep vacuum from its work",
            f"grant pg_read_all_stats to {probe.user}, or run this as somebody who has it",
        )
    return Finding("transactions", "ok", f"none open for more than {duration(_LONG_SECONDS)}")
