"""What the server says of itself: dead rows and what pins them, standbys, how much has happened.

Catalogue and statistics only; nothing here reads a table of the installation. What a user may not
see is left out by the server, so each question comes with whether the answer is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from psycopg import Connection

HOT_TABLES = ("ready", "lease", "scheduled")

_DEAD_ROWS = """
select relname, n_dead_tup, n_live_tup from pg_stat_all_tables
 where schemaname = %s and relname = any (%s)
 order by n_dead_tup desc"""

_SIZES = """
select c.relname, pg_total_relation_size(c.oid) from pg_class c
  join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = %s and c.relname = any (%s) and c.relkind = 'r'"""

_SEES_ALL = "select pg_has_role('pg_read_all_stats', 'usage')"

# What keeps vacuum from removing rows: sessions, prepared transactions, replication slots.
_PINS = """
select 'process ' || pid, usename, extract(epoch from clock_timestamp() - xact_start)::float8
  from pg_stat_activity
 where datname = current_database() and pid <> pg_backend_pid()
   and backend_type = 'client backend'
   and xact_start < clock_timestamp() - make_interval(secs => %s)
union all
select 'prepared transaction ' || gid, owner,
       extract(epoch from clock_timestamp() - prepared)::float8
  from pg_prepared_xacts
 where database = current_database() and prepared < clock_timestamp() - make_interval(secs => %s)
union all
select 'replication slot ' || slot_name, null, null
  from pg_replication_slots where age(xmin) > 1000000 or age(catalog_xmin) > 1000000
 order by 3 desc nulls last"""

# Who may not see more than that a standby is there gets NULL for its sync_state.
_STANDBYS = """
select count(*), count(*) filter (where sync_state in ('sync', 'quorum')),
       count(*) filter (where sync_state is null),
       current_setting('synchronous_standby_names')
  from pg_stat_replication"""

# The server counts these anyway, so that asking costs the same however many jobs there are; it
# hears of a busy session's rows within a second or so.
_COUNTERS = """
select extract(epoch from clock_timestamp())::float8,
       coalesce(sum(n_tup_ins) filter (where relname ~ '^job_\\d{4}_\\d{2}$'), 0)::bigint,
       coalesce(sum(n_tup_ins) filter (where relname = 'lease'), 0)::bigint,
       coalesce(sum(n_tup_ins) filter (where relname ~ '^attempt_\\d{4}_\\d{2}$'), 0)::bigint,
       coalesce(sum(n_tup_ins) filter (where relname = 'refusal'), 0)::bigint,
       coalesce(sum(n_tup_ins) filter (where relname = 'quarantine'), 0)::bigint
  from pg_stat_all_tables where schemaname = %s"""


_TABLES = """
select relname, n_live_tup, n_dead_tup, pg_total_relation_size(relid),
       greatest(last_autovacuum, last_vacuum)
  from pg_stat_all_tables where schemaname = %s and relname = any (%s)
union all
select what, sum(n_live_tup)::bigint, sum(n_dead_tup)::bigint, sum(size)::bigint, max(vacuumed)
  from (select regexp_replace(relname, '_\\d{4}_\\d{2}$', ' (all months)') as what,
               n_live_tup, n_dead_tup, pg_total_relation_size(relid) as size,
               greatest(last_autovacuum, last_vacuum) as vacuumed
          from pg_stat_all_tables where schemaname = %s and relname ~ '_\\d{4}_\\d{2}$') months
 group by what"""

_SERVER = """
select current_setting('server_version'), pg_postmaster_start_time(),
       current_setting('synchronous_commit'), current_setting('fsync'), pg_is_in_recovery()"""


@dataclass(frozen=True, slots=True)
class Table:
    """How large a table is; of the monthly ones, all months together."""

    table: str
    live: int
    dead: int
    bytes: int
    vacuumed_at: datetime | None


@dataclass(frozen=True, slots=True)
class About:
    """The server, as it is set."""

    version: str
    started_at: datetime
    synchronous_commit: str
    fsync: str
    is_standby: bool


@dataclass(frozen=True, slots=True)
class DeadRows:
    """How many rows of a table nobody needs any more, beside those that are there."""

    table: str
    dead: int
    live: int


@dataclass(frozen=True, slots=True)
class Pin:
    """Something that stays open and keeps vacuum from its work; no age for a replication slot."""

    what: str
    user: str | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Standbys:
    """Who follows this server, and how closely."""

    count: int
    synchronous: int
    unseen: int
    names: str
    """synchronous_standby_names, as it is set."""


@dataclass(frozen=True, slots=True)
class Counters:
    """What has happened since the server's statistics began; `at` is in seconds since 1970."""

    at: float
    enqueued: int
    claimed: int
    ended: int
    refused: int
    quarantined: int


def dead_rows(conn: Connection[Any], schema: str) -> list[DeadRows]:
    """Of the small, busy tables, the worst first."""
    rows = conn.execute(_DEAD_ROWS, (schema, list(HOT_TABLES)))
    return [DeadRows(*row) for row in rows]


def sizes(conn: Connection[Any], schema: str) -> dict[str, int]:
    """Of the small, busy tables, in bytes, with their indexes."""
    return dict(conn.execute(_SIZES, (schema, list(HOT_TABLES))).fetchall())


def table_sizes(conn: Connection[Any], schema: str) -> list[Table]:
    """The busy tables, and the months; estimates of the server's own."""
    rows = conn.execute(_TABLES, (schema, [*HOT_TABLES, "refusal", "quarantine"], schema))
    return [Table(*row) for row in rows]


def server(conn: Connection[Any]) -> About:
    """What matters of its settings."""
    row = conn.execute(_SERVER).fetchone()
    assert row is not None
    return About(*row)


def pins(conn: Connection[Any], seconds: float) -> list[Pin]:
    """What has been open for so long, the oldest first."""
    return [Pin(*row) for row in conn.execute(_PINS, (seconds, seconds))]


def sees_all(conn: Connection[Any]) -> bool:
    """Whether the user sees the transactions of others."""
    return conn.execute(_SEES_ALL).fetchone() == (True,)


def takes_writes(conn: Connection[Any]) -> bool:
    """Whether this is not a standby, and no user or database is set to read only."""
    return conn.execute("select current_setting('transaction_read_only') = 'off'").fetchone() == (
        True,
    )


def standbys(conn: Connection[Any]) -> Standbys:
    """Who follows."""
    row = conn.execute(_STANDBYS).fetchone()
    assert row is not None
    return Standbys(*row)


def counters(conn: Connection[Any], schema: str) -> Counters:
    """The server's own counts of what happens in an installation."""
    row = conn.execute(_COUNTERS, (schema,)).fetchone()
    assert row is not None
    return Counters(*row)


def per_second(
    samples: Sequence[Counters], seconds: float
) -> tuple[float, dict[str, float]] | None:
    """How much happens in a second, over about so many last ones: over how many it was, and the
    rates. None, as long as there are no two samples."""
    last = samples[-1] if samples else None
    first = next((s for s in samples if last and last.at - s.at <= seconds), None)
    if first is None or last is None or last.at <= first.at:
        return None
    took = last.at - first.at
    then, now = asdict(first), asdict(last)
    # A partition that was dropped, or statistics begun anew, would count backwards.
    return took, {k: max(0.0, (now[k] - then[k]) / took) for k in then if k != "at"}
