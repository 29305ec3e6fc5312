"""Checks of the installation: its version, what the connected user may do there, its partitions and
their retention, and the guards on the users' own tables."""

from __future__ import annotations

from psycopg import errors

from faultline.cli.display import plural
from faultline.cli.doctor.finding import Finding, Probe
from faultline.connect import require_schema, schema_missing
from faultline.errors import SchemaMismatch
from faultline.migrate import is_current
from faultline.script import ROLES, SCHEMA_VERSION

# One function, or view, that only this role needs. Asked like this it also holds with --no-roles.
_TELLING = {"worker": "claim", "producer": "enqueue", "operator": "requeue", "reader": "jobs"}

_MAY = """
select exists (select from pg_proc where pronamespace = n.oid and proname = %s
                and has_function_privilege(oid, 'execute'))
       or exists (select from pg_class where relnamespace = n.oid and relname = %s
                   and relkind = 'v' and has_table_privilege(oid, 'select'))
  from pg_namespace n
 where n.nspname = %s and has_schema_privilege(n.oid, 'usage')"""

_MONTHS = """
select to_char(m, 'YYYY-MM'),
       (select count(*) = 2 from pg_class c join pg_namespace n on n.oid = c.relnamespace
         where n.nspname = %s
           and c.relname in ('job_' || to_char(m, 'YYYY_MM'), 'attempt_' || to_char(m, 'YYYY_MM')))
  from (select clock_timestamp() at time zone 'UTC' as now) c,
       generate_series(date_trunc('month', now), now + interval '1 month', interval '1 month') m"""

# Months that ended so many days ago and still take so much room; a few stragglers may stay.
_RETENTION_LATE_DAYS = 2
_STRAGGLERS_BYTES = 64 << 20
_LATE = """
select replace(right(c.relname, 7), '_', '-') as month
  from pg_inherits i join pg_class c on c.oid = i.inhrelid
  join pg_class p on p.oid = i.inhparent join pg_namespace n on n.oid = p.relnamespace
 where n.nspname = %s and p.relname in ('job', 'attempt')
   and to_date(right(c.relname, 7), 'YYYY_MM') + interval '1 month'
       < (clock_timestamp() at time zone 'UTC') - make_interval(days => %s)
 group by month having sum(pg_total_relation_size(c.oid)) > %s
 order by month"""


def schema(probe: Probe) -> Finding:
    """Whether there is an installation, and of which version."""
    name = probe.schema
    if probe.row("select to_regnamespace(%s) is null", name) == (True,):
        return Finding("schema", "problem", str(schema_missing(name)), "faultline migrate")
    try:
        with probe.conn.transaction():
            installed = probe.row(f"select version, oldest_client from {name}.schema_version()")
        require_schema(name, (installed[0], installed[1]))
    except (errors.UndefinedFunction, errors.UndefinedColumn):
        return Finding("schema", "problem", str(schema_missing(name)), "faultline migrate")
    except SchemaMismatch as error:
        return Finding("schema", "problem", str(error), "faultline migrate, or upgrade the client")
    except errors.InsufficientPrivilege:
        return Finding(
            "schema",
            "problem",
            f"user {probe.user} may not use schema {name}",
            f"grant {name}_reader to {probe.user}, or the role it needs for its work",
        )
    if not is_current(probe.conn, name):
        return Finding(
            "schema",
            "warn",
            f"{name} works with this client (version {installed[0]}), but its functions are of "
            "another build",
            "faultline migrate, from the newest of your clients",
        )
    return Finding("schema", "ok", f"{name} at version {SCHEMA_VERSION}")


def roles(probe: Probe) -> Finding:
    """What the connected user may do, and whether it may do too much."""
    may = [role for role in ROLES if _may(probe, _TELLING[role])]
    (superuser,) = probe.row("select current_setting('is_superuser') = 'on'")
    if superuser and probe.settings.database_url is not None:
        return Finding(
            "roles",
            "warn",
            f"user {probe.user} is a superuser: whoever has this URL can do anything",
            f"give each program its own: create role … login in role {probe.schema}_worker",
        )
    if not may:
        return Finding(
            "roles",
            "problem",
            f"user {probe.user} has none of the roles {', '.join(_names(probe, ROLES))}",
            f"grant {probe.schema}_worker to {probe.user}; or _producer, _operator, _reader",
        )
    lacks = [role for role in ROLES if role not in may]
    rest = f"; not {', '.join(lacks)}" if lacks else ""
    return Finding("roles", "ok", f"user {probe.user} is enough for {', '.join(may)}{rest}")


def partitions(probe: Probe) -> Finding:
    """Whether jobs enqueued now and next month have a place."""
    months = probe.rows(_MONTHS, probe.schema)
    missing = [month for month, there in months if not there]
    do = f"select {probe.schema}.create_partitions(); a running worker does it every hour"
    if not missing:
        return Finding("partitions", "ok", f"ready until the end of {months[-1][0]}")
    if months[0][0] in missing:
        what = f"this month's ({missing[0]}) are missing: nothing can be enqueued"
        return Finding("partitions", "problem", what, do)
    return Finding("partitions", "warn", f"next month's ({missing[0]}) are not made yet", do)


def retention(probe: Probe) -> Finding:
    """Whether what ended long ago is forgotten as it should be."""
    days = probe.reading.settings(probe.conn)["retention_days"]
    if days is None:
        return Finding("retention", "ok", "what has ended is kept for ever")
    late = probe.rows(_LATE, probe.schema, days + _RETENTION_LATE_DAYS, _STRAGGLERS_BYTES)
    if not late:
        return Finding("retention", "ok", f"what has ended is kept for {plural(days, 'day')}")
    months = ", ".join(month for (month,) in late)
    return Finding(
        "retention",
        "warn",
        f"kept for {plural(days, 'day')}, but {months} should be gone: no worker runs, somebody "
        "reads job or attempt without end, or more than 10,000 jobs of it are still kept",
        f"select {probe.schema}.drop_partitions('{days} days') says what is in the way",
    )


def guards(probe: Probe) -> Finding:
    """Whether a guarded table can be written past its guard."""
    found = probe.reading.guards(probe.conn)
    gaps = [guard["target"] for guard in found if not guard["complete"]]
    if gaps:
        what = f"there are gaps in the guard of {', '.join(gaps)}"
        revoke = [f"{guard['revoke']};" for guard in found if guard["revoke"]]
        do = " ".join([*revoke, "faultline guard list", "says more" if revoke else "says which"])
        return Finding("guards", "warn", what, do)
    names = ", ".join(guard["target"] for guard in found)
    return Finding("guards", "ok", f"complete on {names}" if names else "no table is guarded")


def _may(probe: Probe, name: str) -> bool:
    return probe.rows(_MAY, name, name, probe.schema) == [(True,)]


def _names(probe: Probe, roles: tuple[str, ...]) -> list[str]:
    return [f"{probe.schema}_{role}" for role in roles]
