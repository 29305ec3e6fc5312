"""Attempts to get round the roles, really made: shadowing, impersonation, forging, peeping.

Members of the roles play the intruders, on sessions of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import Connection
from psycopg.errors import InsufficientPrivilege

from faultline.errors import StaleLease
from faultline.migrate import migrate
from faultline.script import ROLES
from tests.stage import Stage
from tests.test_roles import functions, relations

pytestmark = pytest.mark.both_servers
Login = Callable[[str | None], Connection[Any]]


@pytest.fixture
def login(stage: Stage) -> Iterator[Login]:
    """Real logins, members of a role or of none. They belong to the server: dropped in the end."""
    names: list[str] = []

    def make(role: str | None) -> Connection[Any]:
        names.append(f"u_{uuid4().hex}")
        member = f" in role {stage.schema}_{role}" if role else ""
        stage.execute(f"create role {names[-1]} login password 'secret'{member}")
        conn = psycopg.connect(stage.url, user=names[-1], password="secret", autocommit=True)
        stage.connections.append(conn)
        return conn

    yield make
    for name in names:
        stage.execute(f"drop role {name}")


def test_whoever_is_in_no_role_can_do_nothing_at_all(stage: Stage, login: Login) -> None:
    public = login(None)
    user = public.info.user
    assert not stage.value("select has_schema_privilege(%s, 'faultline', 'usage')", user)
    for _, signature, _, _, call in functions(stage):
        assert not stage.value("select has_function_privilege(%s, %s, 'execute')", user, signature)
        with pytest.raises(InsufficientPrivilege):
            public.execute(call)
    for relation in relations(stage, "r", "p", "v"):
        with pytest.raises(InsufficientPrivilege):
            public.execute(f"select * from {relation}")


def test_a_worker_cannot_shadow_the_tables_types_functions_or_operators_that_verbs_use(
    stage: Stage,
) -> None:
    job_id = stage.enqueue()
    conn = stage.connect(role="worker")
    for table in ("lease", "attempt", "ready", "queue", "lane", "epoch", "refusal", "job"):
        columns = stage.value(
            "select string_agg(format('%%I %%s', attname, format_type(atttypid, null)), ', ') "
            "from pg_attribute where attrelid = %s::regclass and attnum > 0",
            f"faultline.{table}",
        )
        conn.execute(f"create temp table {table} ({columns})")
    conn.execute(
        "create function pg_temp.clock_timestamp() returns timestamptz language sql "
        "return timestamptz '1999-01-01';"
        "create function pg_temp.later(timestamptz, timestamptz) returns bool language sql "
        "return true;"
        "create operator pg_temp.> (leftarg = timestamptz, rightarg = timestamptz, "
        "function = pg_temp.later);"
        "create function pg_temp.judge(uuid, bigint) returns void language sql return null;"
        "set search_path = pg_temp, faultline, pg_catalog"
    )
    lanes = [lane.lane for lane in stage.verbs.lanes(["default"]).run(conn)]
    (lease,) = stage.verbs.claim("A", lanes).run(conn)
    assert (lease.job_id, stage.state(job_id)) == (job_id, "running")
    stage.expire(job_id)
    stale = stage.verbs.complete([(job_id, lease.token)]).run(conn)
    assert [s.reason for s in stale] == ["lease_expired"]
    with pytest.raises(StaleLease):
        stage.verbs.complete_one(job_id, lease.token).run(conn)
    assert stage.outcomes(job_id) == []
    for table in ("lease", "attempt", "ready", "refusal"):
        assert conn.execute(f"select count(*) from pg_temp.{table}").fetchone() == (0,)


@pytest.mark.parametrize("role", ROLES)
def test_no_role_can_become_the_owner_or_another_role(
    stage: Stage, login: Login, role: str
) -> None:
    conn = login(role)
    for other in {"owner", *ROLES} - {role}:
        assert not stage.value("select pg_has_role(%s, %s, 'member')", conn.info.user,
                               f"faultline_{other}")  # fmt: skip
        for statement in ("set role", "set session authorization"):
            with pytest.raises(InsufficientPrivilege):
                conn.execute(f"{statement} faultline_{other}")
        with pytest.raises(InsufficientPrivilege):
            conn.execute(f"grant faultline_{other} to {conn.info.user}")


@pytest.mark.parametrize("role", ROLES)
def test_no_role_can_disarm_the_fence_or_add_something_to_the_schema(
    stage: Stage, login: Login, role: str
) -> None:
    conn = login(role)
    for statement in (
        "alter table faultline.fence_tx disable trigger a_fence_is_checked_at_commit",
        "alter table faultline.fence_tx disable trigger all",
        "drop trigger a_fence_is_checked_at_commit on faultline.fence_tx",
        "alter table faultline.attempt drop constraint an_attempt_ends_once",
        "drop index faultline.a_job_succeeds_at_most_once",
        "set session_replication_role = replica",
        "create table faultline.mine (x int)",
        "create function faultline.mine() returns int language sql return 1",
        "create trigger mine before insert on faultline.lease for each row "
        "execute function suppress_redundant_updates_trigger()",
        "create rule mine as on delete to faultline.lease do instead nothing",
        "alter function faultline.schema_version security definer",
        "alter function faultline.claim reset all",
        "drop function faultline.assert_fence",
        "drop view faultline.violations",
        "grant all on all tables in schema faultline to public",
    ):
        with pytest.raises(InsufficientPrivilege):
            conn.execute(statement)


VERBS: dict[str, Callable[[Stage, UUID, int], Any]] = {
    "execute": lambda stage, *attempt: stage.verbs.execute([attempt]),
    "complete": lambda stage, *attempt: stage.verbs.complete([attempt]),
    "fail": lambda stage, *attempt: stage.verbs.fail([attempt]),
    "snooze": lambda stage, *attempt: stage.verbs.snooze([attempt], [0]),
    "release": lambda stage, *attempt: stage.verbs.release([attempt]),
    "cancel": lambda stage, *attempt: stage.verbs.cancel_attempt([attempt]),
    "renew": lambda stage, *attempt: stage.verbs.renew([attempt]),
    "complete_one": lambda stage, *attempt: stage.verbs.complete_one(*attempt),
    "assert_fence": lambda stage, *attempt: stage.verbs.assert_fence(*attempt),
    "fence": lambda stage, *attempt: stage.verbs.fence(*attempt),
    "begin_step": lambda stage, *attempt: stage.verbs.begin_step(*attempt, "step"),
    "record_step": lambda stage, *attempt: stage.verbs.record_step(*attempt, "step"),
}


def refused(call: Any, conn: Connection[Any]) -> bool:
    """Whether the verb says that the attempt is stale, in whichever way it says so."""
    try:
        answer = call.run(conn)
    except StaleLease as stale:
        return stale.reason == "token_mismatch"
    return len(answer) == 1 and (
        getattr(answer[0], "reason", "") == "token_mismatch"
        or getattr(answer[0], "verdict", "") == "lost"
    )


def test_a_forged_token_is_refused_by_every_verb_however_high_it_is(stage: Stage) -> None:
    job_id, token = stage.running("A")
    intruder = stage.connect(role="worker")
    before = stage.execute("select * from {schema}.lease")
    for forged in (token + 1, token + 1000, 16 << 40, 2**53 - 1, 2**63 - 1, 0, -1):
        for name, verb in VERBS.items():
            assert refused(verb(stage, job_id, forged), intruder), (name, forged)
    assert stage.execute("select * from {schema}.lease") == before
    assert stage.outcomes(job_id) == []
    assert stage.verbs.complete([(job_id, token)]).run(stage.conn) == []


def test_a_job_that_the_worker_never_claimed_cannot_be_settled_by_guessing(stage: Stage) -> None:
    queued, later = stage.enqueue(), stage.enqueue(delay_seconds=3600)
    intruder = stage.connect(role="worker")
    for job_id in (queued, later, uuid4()):
        for guess in (0, 1, 2):
            for name, verb in VERBS.items():
                assert refused(verb(stage, job_id, guess), intruder), (name, guess)
    assert (stage.state(queued), stage.state(later)) == ("queued", "scheduled")
    assert stage.violations() == []


# ── producers among themselves ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("role", ["producer", "worker"])
def test_a_producer_sees_and_cancels_its_own_jobs_and_nobody_elses(
    stage: Stage, login: Login, role: str
) -> None:
    alice, bob = login("producer"), login(role)
    hers = stage.verbs.enqueue("work").run(alice)
    his = stage.verbs.enqueue_many("work", [uuid4()], [{}]).run(bob)[0]
    assert stage.verbs.status(hers).run(alice).state == "queued"
    assert stage.verbs.status(his).run(bob).state == "queued"
    assert stage.verbs.status(hers).run(bob) is None
    assert stage.verbs.status(his).run(alice) is None
    assert [x.job_id for x in stage.verbs.cancel([hers, his]).run(bob)] == [his]
    assert (stage.state(hers), stage.state(his)) == ("queued", "cancelled")


def test_a_producer_cannot_pass_for_another_by_taking_a_group_role(
    stage: Stage, login: Login
) -> None:
    """Who enqueued is the session's user, whatever role is set just then."""
    alice, bob = login("producer"), login("producer")
    alice.execute("set role faultline_producer")
    hers = stage.verbs.enqueue("work").run(alice)
    bob.execute("set role faultline_producer")
    assert stage.verbs.status(hers).run(bob) is None
    assert stage.verbs.cancel([hers]).run(bob) == []
    assert stage.job(hers)["producer"] == alice.info.user
    assert stage.verbs.status(hers).run(alice) is not None


def test_an_operator_sees_and_cancels_everybodys_jobs(stage: Stage, login: Login) -> None:
    alice, operator = login("producer"), login("operator")
    running, _ = stage.running()
    queued = stage.verbs.enqueue("work").run(alice)
    assert stage.verbs.status(queued).run(operator) is not None
    verdicts = {c.job_id: c.verdict for c in stage.verbs.cancel([queued, running]).run(operator)}
    assert verdicts == {queued: "cancelled", running: "requested"}
    assert stage.state(running) == "running"


# ── two installations in one database ────────────────────────────────────────────────────────────


@pytest.fixture
def neighbour(stage: Stage) -> Iterator[Stage]:
    """Another installation beside the first. Its roles belong to the server: dropped in the end."""
    schema = f"n_{uuid4().hex[:12]}"
    migrate(stage.conn, schema)
    with Stage(stage.url, schema) as neighbour:
        yield neighbour
    stage.execute(f"drop schema {schema} cascade")
    for role in ("owner", *ROLES):
        stage.execute(f"drop role {schema}_{role}")


def test_two_installations_in_one_database_share_no_jobs_tokens_or_keys(
    stage: Stage, neighbour: Stage
) -> None:
    same = stage.enqueue(idempotency_key="k")
    assert neighbour.enqueue(job_id=same, payload={"other": 1}, idempotency_key="k") == same
    (lease,) = stage.claim("A")
    assert neighbour.state(same) == "queued"
    assert len(neighbour.verbs.complete([(same, lease.token)]).run(neighbour.conn)) == 1
    assert stage.verbs.complete([(same, lease.token)]).run(stage.conn) == []
    assert (stage.state(same), neighbour.state(same)) == ("succeeded", "queued")
    assert stage.refusals(same) == []
    neighbour.verbs.epoch_bump().run(neighbour.conn)
    assert stage.reading.current_epoch(stage.conn)["epoch"] == 0
    assert stage.violations() == neighbour.violations() == []


@pytest.mark.parametrize("role", ROLES)
def test_the_roles_of_one_installation_are_nobody_in_the_other(
    stage: Stage, neighbour: Stage, role: str
) -> None:
    conn = stage.connect(role=role)
    assert conn.execute("select * from faultline.schema_version()").fetchone() is not None
    for _, _, _, _, call in functions(neighbour):
        with pytest.raises(InsufficientPrivilege):
            conn.execute(call)
    for relation in relations(neighbour, "v"):
        with pytest.raises(InsufficientPrivilege):
            conn.execute(f"select * from {relation}")
