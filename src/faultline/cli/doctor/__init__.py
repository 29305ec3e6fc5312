"""`faultline doctor`: is everything in order, and what is to be done if not?

    connection     the way to the server: versions, clocks, a pooler, LISTEN
    installation   its version, what the user may do, its months, the guarded tables
    durability     what survives a crash, and a failover
    tables         whether vacuum can do its work
    work           workers, unknown tasks, lanes, quarantine, undeliverable jobs, invariants

A check is a function of a Probe that answers with a Finding. Nothing is changed. What the connected
user may not see, or what takes too long, is said, and the next check goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from faultline.cli import options
from faultline.cli.display import plural, print_json, styled
from faultline.cli.doctor.finding import Check, Finding, Probe
from faultline.config import Settings
from faultline.database import database_url
from faultline.errors import FaultlineError
from faultline.log import printable

_CHECK_SECONDS = 10
_NAMES = {"dead_rows": "dead rows"}  # of findings that are not called as their check
_NAME_WIDTH, _LEVEL_WIDTH = 13, 7


def doctor(
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out what reads whole tables (the invariants).")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Look whether all is well, and say what to do if not.

    Versions, schema, roles, clocks, pooler, LISTEN, replication, tables, workers. Changes nothing.
    Exit status 1 if there is a problem; warnings are for you to judge.

    \b
    Example:
      faultline doctor
      faultline doctor --json | jq '.findings[] | select(.level != "ok")'
    """
    found: list[Finding] = []
    for finding in examine(Settings.from_environment(), quick=quick):
        found.append(finding)
        if not as_json:
            _print(finding)
    counts = Counter(finding.level for finding in found)
    if as_json:
        ok = counts["problem"] == 0
        print_json({"ok": ok, "findings": [asdict(finding) for finding in found]})
    else:
        told = f"{plural(counts['problem'], 'problem')}, {plural(counts['warn'], 'warning')}"
        typer.echo(f"\n{told if counts.keys() - {'ok'} else 'all is well'}")
    if counts["problem"]:
        raise typer.Exit(1)


def examine(settings: Settings, *, quick: bool = False) -> Iterator[Finding]:
    """One finding after the other, as they are made."""
    try:
        url = database_url(settings)
        from faultline.connect import connect

        conn = connect(url, schema=None)
    except FaultlineError as error:
        yield Finding("server", "problem", str(error), "faultline db start, or mend the URL")
        return
    from faultline.cli.doctor import connection, durability, installation, tables, work
    from faultline.reading import Reading

    conn.prepare_threshold = None  # a pooler may stand between
    with conn:
        probe = Probe(settings, url, conn, Reading(settings.schema))
        yield _look(probe, connection.server)
        installed = _look(probe, installation.schema)
        yield installed
        checks: list[Check] = [connection.clock, connection.pooler, connection.listen]
        checks += [durability.durability, durability.replication]
        checks += [tables.autovacuum, tables.transactions]
        if installed.level != "problem":
            checks.insert(0, installation.roles)
            checks += [installation.partitions, installation.retention, installation.guards]
            checks += [tables.dead_rows]
            checks += [work.workers, work.unknown_tasks, work.lanes]
            checks += [work.quarantine, work.undeliverable]
            checks += [] if quick else [work.invariants]
        for check in checks:
            yield _look(probe, check)


def _look(probe: Probe, check: Check) -> Finding:
    """Run the check in a transaction of its own; what keeps it from looking is a finding too."""
    import psycopg
    from psycopg import errors

    name = _NAMES.get(check.__name__, check.__name__)
    try:
        with probe.conn.transaction():
            probe.conn.execute(f"set local statement_timeout = '{_CHECK_SECONDS}s'")
            return check(probe)
    except errors.QueryCanceled:
        what = f"it took longer than {_CHECK_SECONDS} s to look"
        return Finding(name, "warn", what, "look again when there is less to do, or use --quick")
    except (psycopg.Error, FaultlineError) as error:
        if isinstance(error, errors.InsufficientPrivilege) or isinstance(
            error.__cause__, errors.InsufficientPrivilege
        ):
            what = f"user {probe.user} may not look"
            return Finding(name, "warn", what, f"grant {probe.schema}_reader to {probe.user}")
        said = str(error).strip().partition("\n")[0] or type(error).__name__
        return Finding(name, "problem", said, "mend it, then run faultline doctor again")


def _print(finding: Finding) -> None:
    level = styled(finding.level) + " " * (_LEVEL_WIDTH - len(finding.level))
    typer.echo(f"{level}  {finding.name:<{_NAME_WIDTH}}  {printable(finding.what)}")
    if finding.do is not None and finding.level != "ok":
        indent = " " * (_LEVEL_WIDTH + _NAME_WIDTH + 4)
        typer.echo(f"{indent}{styled('→ ' + printable(finding.do), 'dim')}")
