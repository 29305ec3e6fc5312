"""The tables of a drill: effects, which no queue owns, and a way to hold a COMMIT in the server.

`effect` has no key, so a second row of a job stays and is counted. `guarded_effect` is the same,
behind a guard; whoever reads effects reads both. A row of `effect` that is `held` waits, in the
middle of its COMMIT, for whoever holds the advisory lock of its job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from psycopg import Connection

SCHEMA = "faultline_drill"
_VALUES = "(job_id, token, effect, held) values (%s, %s, %s, %s)"
INSERT = f"insert into {SCHEMA}.effect {_VALUES}"
INSERT_GUARDED = f"insert into {SCHEMA}.guarded_effect {_VALUES}"
WRITTEN = f"select effect from {SCHEMA}.effects where job_id = %s"
SETUP = f"""
drop schema if exists {SCHEMA} cascade;
create schema {SCHEMA};
create table {SCHEMA}.effect (
    job_id uuid not null, token bigint not null, effect text not null, held boolean not null,
    pid int not null default pg_backend_pid(), at timestamptz not null default clock_timestamp());
create index on {SCHEMA}.effect (job_id);
create function {SCHEMA}.wait_in_commit() returns trigger language plpgsql as $$
begin
    perform pg_advisory_xact_lock_shared({{key}});
    return null;
end $$;
create constraint trigger held after insert on {SCHEMA}.effect
    deferrable initially deferred for each row when (new.held)
    execute function {SCHEMA}.wait_in_commit();
create table {SCHEMA}.guarded_effect (like {SCHEMA}.effect including all);
create view {SCHEMA}.effects as
    select * from {SCHEMA}.effect union all select * from {SCHEMA}.guarded_effect;
grant usage on schema {SCHEMA} to public;
grant select, insert on {SCHEMA}.effect, {SCHEMA}.guarded_effect to public;
grant select on {SCHEMA}.effects to public;
""".replace("{key}", "hashtextextended(new.job_id::text, 0)")


def rows(conn: Connection[Any], jobs: Sequence[UUID]) -> dict[str, list[tuple[int, str]]]:
    """What each of these jobs has written: token and effect, in the order of the writes."""
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    asked = f"select job_id, token, effect from {SCHEMA}.effects where job_id = any(%s) order by at"
    for job_id, token, effect in conn.execute(asked, (list(jobs),)).fetchall():
        found[str(job_id)].append((token, effect))
    return dict(found)


def hold_commit(conn: Connection[Any], job_id: UUID) -> None:
    """From now on a held row of this job waits in its COMMIT."""
    conn.execute("select pg_advisory_lock(hashtextextended(%s, 0))", (str(job_id),))


def release_commit(conn: Connection[Any], job_id: UUID) -> None:
    """And now it does not."""
    conn.execute("select pg_advisory_unlock(hashtextextended(%s, 0))", (str(job_id),))


def is_held(conn: Connection[Any], job_id: UUID) -> bool:
    """Whether a COMMIT waits there now."""
    asked = conn.execute(
        "select exists (select from pg_locks where locktype = 'advisory' and not granted "
        "and objsubid = 1 and ((classid::bigint << 32) | objid::bigint) "
        "= hashtextextended(%s, 0))",
        (str(job_id),),
    ).fetchone()
    return asked == (True,)
