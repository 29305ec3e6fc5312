"""What each role may do, as the catalogue has it and as trying finds out.

The matrix of verbs is spelt out: a new function fails the test until somebody has decided who may
call it. Ways to get round the privileges are tried in test_bypass.py.
"""

from __future__ import annotations

import pytest
from psycopg.errors import InsufficientPrivilege, ObjectNotInPrerequisiteState

from faultline.script import ROLES
from tests.stage import Stage

pytestmark = pytest.mark.both_servers

# Who may call what: w(orker), p(roducer), o(perator), r(eader).
MAY = {
    "schema_version": "wpor",
    **dict.fromkeys(("sleeping", "shown_bytes", "backlog"), "or"),
    **dict.fromkeys(("enqueue", "enqueue_many", "new_id"), "wp"),
    **dict.fromkeys(("status", "cancel"), "wpo"),
    **dict.fromkeys(
        ("lanes", "reclaim", "reclaim_dead", "promote", "reconcile", "outcome", "outcomes",
         "create_partitions", "compact_if_bloated", "spare_vacuum", "apply_retention"), "wo"),
    **dict.fromkeys(
        ("claim", "claim_one", "execute", "renew", "adopt", "complete", "complete_one", "swap",
         "fail", "snooze", "decline", "know_tasks", "release", "release_others",
         "cancel_attempt", "busy", "progress",
         "assert_fence", "fence", "begin_step", "record_step", "same_transaction",
         "commit_status", "report_refusal", "beat", "leave", "sleep", "awake"), "w"),
    **dict.fromkeys(
        ("retry", "requeue", "pause", "epoch_bump", "rescue", "compact", "drop_partitions",
         "set_retention", "guard", "unguard", "guard_tree", "check_guard"), "o"),
}  # fmt: skip
# Steps of the verbs: nobody's, since they check nothing.
STEPS = {
    "accepted_id",
    "announce",
    "busy_lanes",
    "crash_pause",
    "deliverable",
    "lanes_in_use",
    "lanes_with_jobs",
    "numbers_of",
    "payload_bytes",
    "stored_bytes",
    "text_bytes",
    "too_large",
    "with_due",
    "backoff",
    "bound_brief_hold",
    "bound_hold",
    "bound_open_hold",
    "cancel_waiting",
    "check_attempts",
    "check_claim",
    "check_fence_at_commit",
    "check_max_jobs",
    "check_options",
    "check_worker",
    "current_token",
    "drop_months",
    "due_at",
    "end_cancelled",
    "end_lost",
    "end_released",
    "epoch_of",
    "expiries_are_worth_a_look",
    "finish",
    "floor_now",
    "forget",
    "forget_before",
    "has_ended",
    "has_something_to_drop",
    "hold_key",
    "hold_keys",
    "hold_lease",
    "holder_of",
    "id_at",
    "id_time",
    "insist_on_read_committed",
    "is_being_dumped",
    "invalid",
    "is_kept",
    "is_known",
    "is_quiet",
    "is_recent",
    "judge",
    "know_quiet",
    "lane_of",
    "make_lane",
    "may_claim",
    "options_fit",
    "own_jobs",
    "park_exhausted",
    "partition_months",
    "paused_lanes",
    "place_of",
    "pointers_between",
    "put_back",
    "put_in_quarantine",
    "put_off",
    "quarantine_unclaimable",
    "queue_up",
    "raise_stale",
    "record_endings",
    "refuse",
    "restart_leases",
    "see_epoch",
    "server_timeline",
    "take",
    "thin_out",
    "token_floor",
    "transaction_mark",
    "wake",
    "without",
    "without_paused",
    "workers_at_work",
    "vacuum_left",
}  # fmt: skip
WRITES = ("INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")


def relations(stage: Stage, *kinds: str) -> list[str]:
    rows = stage.execute(
        "select relname from pg_class where relnamespace = %s::regnamespace "
        "and relkind = any (%s) order by 1",
        stage.schema, list(kinds),
    )  # fmt: skip
    return [f"{stage.schema}.{name}" for (name,) in rows]


def holders(stage: Stage, relation: str, privilege: str) -> set[str]:
    """Which roles have it, on the whole relation or on any column."""
    columns = privilege in ("SELECT", "INSERT", "UPDATE", "REFERENCES")
    function = "has_any_column_privilege" if columns else "has_table_privilege"
    statement = f"select {function}(%s, %s, %s)"
    return {
        role
        for role in ROLES
        if stage.value(statement, f"{stage.schema}_{role}", relation, privilege)
    }


# ── tables and views ─────────────────────────────────────────────────────────────────────────────


def test_no_role_has_any_privilege_on_any_table_partition_or_sequence(stage: Stage) -> None:
    stage.verbs.create_partitions(6).run(stage.connect(role="worker"))
    tables = relations(stage, "r", "p")
    assert {f"faultline.{t}" for t in ("job", "attempt", "lease", "fence_tx")} < set(tables)
    assert len([t for t in tables if t.startswith("faultline.attempt_")]) >= 7
    for table in tables:
        for privilege in ("SELECT", *WRITES):
            assert holders(stage, table, privilege) == set(), (table, privilege)
    for sequence in relations(stage, "S"):
        for role in ROLES:
            for privilege in ("USAGE", "SELECT", "UPDATE"):
                held = "select has_sequence_privilege(%s, %s, %s)"
                assert not stage.value(held, f"faultline_{role}", sequence, privilege)


@pytest.mark.parametrize("role", ROLES)
def test_no_role_can_touch_a_lease_or_an_attempt_except_through_the_verbs(
    stage: Stage, role: str
) -> None:
    job_id, _ = stage.running()
    partition = next(t for t in relations(stage, "r") if t.startswith("faultline.attempt_"))
    before = stage.execute("select * from {schema}.lease")
    conn = stage.connect(role=role)
    for statement in (
        "update faultline.lease set fencing_token = fencing_token + 1",
        "update faultline.lease set expires_at = 'infinity'",
        "delete from faultline.lease",
        "select * from faultline.lease",
        "select 1 from faultline.lease for update",
        "do $$ begin lock table faultline.lease in access share mode; end $$",
        "truncate faultline.lease",
        "update faultline.attempt set outcome = 'succeeded'",
        f"update {partition} set outcome = 'succeeded'",
        f"delete from {partition}",
        f"insert into {partition} (job_id) values ('{job_id}')",
        "insert into faultline.fence_tx (job_id, fencing_token) values (gen_random_uuid(), 1)",
        "copy faultline.job to stdout",
        "select nextval('faultline.ready_seq_seq')",
        "update faultline.setting set payload_limit_bytes = 2000000000",
    ):
        with pytest.raises(InsufficientPrivilege):
            conn.execute(statement)
    assert stage.execute("select * from {schema}.lease") == before


def test_the_views_are_readable_by_readers_and_operators_and_nobody_else(stage: Stage) -> None:
    views = relations(stage, "v")
    assert {"faultline.jobs", "faultline.ledger", "faultline.violations"} < set(views)
    conns = {role: stage.connect(role=role) for role in ROLES}
    for view in views:
        assert holders(stage, view, "SELECT") == {"reader", "operator"}, view
        for role in ("reader", "operator"):
            conns[role].execute(f"select * from {view}")
        for role in ("worker", "producer"):
            with pytest.raises(InsufficientPrivilege):
                conns[role].execute(f"select * from {view}")


@pytest.mark.parametrize("role", ROLES)
def test_no_role_can_write_or_lock_a_table_through_a_view_that_is_updatable(
    stage: Stage, role: str
) -> None:
    stage.running()
    conn = stage.connect(role=role)
    updatable = {
        f"faultline.{name}"
        for (name,) in stage.execute(
            "select table_name from information_schema.views "
            "where table_schema = %s and is_updatable = 'YES'",
            stage.schema,
        )
    }
    assert "faultline.ledger" in updatable
    for view in relations(stage, "v"):
        for privilege in WRITES:
            assert holders(stage, view, privilege) == set(), (view, privilege)
        column = stage.value(
            "select attname from pg_attribute where attrelid = %s::regclass and attnum = 2", view
        )
        refused = InsufficientPrivilege if view in updatable else ObjectNotInPrerequisiteState
        for statement in (
            f"insert into {view} default values",
            f"update {view} set {column} = {column}",
            f"delete from {view}",
        ):
            with pytest.raises(refused):
                conn.execute(statement)
        with pytest.raises(InsufficientPrivilege):
            conn.execute(f"do $$ begin lock table {view} in access exclusive mode; end $$")
    with pytest.raises(InsufficientPrivilege):
        conn.execute("select * from faultline.ledger for update")


# ── functions ────────────────────────────────────────────────────────────────────────────────────


def functions(stage: Stage) -> list[tuple[str, str, bool, list[str], str]]:
    """Name, signature, security definer, settings, and a call with NULLs.

    The NULLs come from a subquery: a strict function of constant NULLs is never called at all.
    """
    return stage.execute(
        "select p.proname, p.oid::regprocedure::text, p.prosecdef, coalesce(p.proconfig, '{}'), "
        "format('select %%s(%%s) from (select %%s offset 0) a', p.oid::regproc, a.names, a.nulls) "
        "from pg_proc p, lateral (select string_agg('a' || n, ', ' order by n), "
        "string_agg(format('null::%%s as a%%s', format_type(t, null), n), ', ' order by n) "
        "from unnest(p.proargtypes) with ordinality u(t, n)) a (names, nulls) "
        "where pronamespace = %s::regnamespace order by 1",
        stage.schema,
    )


def test_every_function_has_been_decided_on_and_is_callable_by_just_those_roles(
    stage: Stage,
) -> None:
    found = {
        signature: "".join(
            role[0]
            for role in ROLES
            if stage.value(
                "select has_function_privilege(%s, %s, 'execute')", f"faultline_{role}", signature
            )
        )
        for _, signature, *_ in functions(stage)
    }
    assert {signature.split("(")[0].split(".")[1]: who for signature, who in found.items()} == {
        **MAY,
        **dict.fromkeys(STEPS, ""),
    }
    assert len(found) == len(MAY) + len(STEPS), "an overloaded function needs a decision of its own"


def test_a_function_that_is_not_granted_really_cannot_be_called(stage: Stage) -> None:
    conns = {role: stage.connect(role=role) for role in ROLES}
    for name, _, _, _, call in functions(stage):
        for role, conn in conns.items():
            if role[0] not in MAY.get(name, ""):
                with pytest.raises(InsufficientPrivilege):
                    conn.execute(call)


def test_everything_belongs_to_an_owner_who_is_no_superuser_and_cannot_log_in(
    stage: Stage,
) -> None:
    owners = stage.execute(
        "select relowner::regrole::text from pg_class where relnamespace = %s::regnamespace "
        "union select proowner::regrole::text from pg_proc where pronamespace = %s::regnamespace "
        "union select nspowner::regrole::text from pg_namespace where nspname = %s",
        *[stage.schema] * 3,
    )
    assert owners == [("faultline_owner",)]
    for role in ("owner", *ROLES):
        assert stage.execute(
            "select rolsuper, rolcanlogin, rolcreaterole, rolcreatedb, rolreplication, "
            "rolbypassrls from pg_roles where rolname = %s",
            f"faultline_{role}",
        ) == [(False,) * 6]


def test_functions_with_the_owners_rights_look_nowhere_but_in_our_schema_first(
    stage: Stage,
) -> None:
    definers = {name for name, _, definer, *_ in functions(stage) if definer}
    # Two need no rights: they read no table, and their names were resolved when they were made.
    # Three are about the caller's own tables, and look first in our schema all the same.
    callers = {"guard", "unguard", "guard_tree"}
    others = {"schema_version", "new_id"} | callers
    assert definers == MAY.keys() - others | {"check_fence_at_commit"}
    for name, _, definer, settings, _ in functions(stage):
        if definer or name in callers:
            assert "search_path=faultline, pg_catalog, pg_temp" in settings, name
