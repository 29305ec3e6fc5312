"""Checks of the tables: whether vacuum runs, whether it can do anything, and what it has left."""

from __future__ import annotations

from faultline.cli.display import duration
from faultline.cli.doctor.finding import Finding, Probe
from faultline.log import printable

_HOT = ("ready", "lease", "scheduled")
_DEAD_ROWS = 50_000
_DEAD_PER_LIVE = 5
_LONG_SECONDS = 300.0

_DEAD = """
select relname, n_dead_tup, n_live_tup from pg_stat_all_tables
 where schemaname = %s and relname = any (%s) and n_dead_tup > %s and n_dead_tup > %s * n_live_tup
 order by n_dead_tup desc"""

_OFF = """
select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = %s and c.relname = any (%s)
   and 'autovacuum_enabled=false' = any (c.reloptions)"""

_SEES_ALL = "select pg_has_role('pg_read_all_stats', 'usage')"

# What keeps vacuum from removing rows: sessions, prepared transactions, replication slots.
_PINS = """
select 'process ' || pid, usename, extract(epoch from clock_timestamp() - xact_start)
  from pg_stat_activity
 where datname = current_database() and pid <> pg_backend_pid()
   and backend_type = 'client backend'
   and xact_start < clock_timestamp() - make_interval(secs => %s)
union all
select 'prepared transaction ' || gid, owner, extract(epoch from clock_timestamp() - prepared)
  from pg_prepared_xacts
 where database = current_database() and prepared < clock_timestamp() - make_interval(secs => %s)
union all
select 'replication slot ' || slot_name, null, null
  from pg_replication_slots where age(xmin) > 1000000 or age(catalog_xmin) > 1000000
 order by 3 desc nulls last"""


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
    off = [str(name) for (name,) in probe.rows(_OFF, probe.schema, list(_HOT))]
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
    found = probe.rows(_DEAD, probe.schema, list(_HOT), _DEAD_ROWS, _DEAD_PER_LIVE)
    if not found:
        return Finding("dead rows", "ok", f"few in {', '.join(_HOT)}")
    table, dead, live = found[0]
    return Finding(
        "dead rows",
        "warn",
        f"{table} has {dead:,} dead rows and {live:,} live ones: claims get slower",
        f"end the transactions that pin them, then vacuum; or select {probe.schema}.compact()",
    )


def transactions(probe: Probe) -> Finding:
    """Whether something that stays open keeps vacuum from its work."""
    pins = probe.rows(_PINS, _LONG_SECONDS, _LONG_SECONDS)
    if pins:
        what, who, age = pins[0]
        owner = f" of {who}" if who else ""
        since = f" has been open for {duration(age)}" if age is not None else " holds old rows back"
        more = f", and {len(pins) - 1} more" if len(pins) > 1 else ""
        return Finding(
            "transactions",
            "warn",
            printable(f"{what}{owner}{since}{more}: vacuum can remove nothing newer"),
            "end it: select pg_terminate_backend(pid), rollback prepared, or drop the slot",
        )
    if probe.row(_SEES_ALL) != (True,):
        return Finding(
            "transactions",
            "warn",
            f"user {probe.user} sees only its own: others may keep vacuum from its work",
            f"grant pg_read_all_stats to {probe.user}, or run this as somebody who has it",
        )
    return Finding("transactions", "ok", f"none open for more than {duration(_LONG_SECONDS)}")
