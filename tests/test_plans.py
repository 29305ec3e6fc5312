"""The plans of the hot verbs, on each server version, also when the tables were empty at plan time.

Method: auto_explain writes the plans of the statements inside the functions to the client; a
session whose first calls meet vacuumed, empty tables is the one that would cache bad plans.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from psycopg import Connection

from faultline.protocol import Call
from tests.stage import Stage

pytestmark = pytest.mark.both_servers


def plans_of(conn: Connection[Any], call: Call[Any]) -> str:
    """The plans of every statement that ran inside the call."""
    said: list[str] = []
    listen = said.append
    conn.add_notice_handler(lambda notice: listen(notice.message_primary or ""))
    call.run(conn)
    return "\n".join(said)


def explained(stage: Stage) -> Connection[Any]:
    conn = stage.connect()
    conn.execute("load 'auto_explain'")
    conn.execute("set auto_explain.log_min_duration = 0")
    conn.execute("set auto_explain.log_nested_statements = on")
    conn.execute("set auto_explain.log_level = 'notice'")
    return conn


def hot_session(stage: Stage) -> Connection[Any]:
    """A session that has met empty, vacuumed tables, and then tables that have grown."""
    stage.enqueue()
    stage.verbs.complete([(x.job_id, x.token) for x in stage.claim("A")]).run(stage.conn)
    stage.conn.execute("vacuum analyze")
    conn = explained(stage)
    for _ in range(7):
        leases = stage.claim("A", 10, conn)
        stage.verbs.complete([(x.job_id, x.token) for x in leases]).run(conn)
    ids = [stage.value("select {schema}.new_id()") for _ in range(300)]
    stage.verbs.enqueue_many("work", ids, [{} for _ in ids]).run(stage.conn)
    return conn


@pytest.fixture
def warm(stage: Stage) -> Connection[Any]:
    return hot_session(stage)


def scans(plans: str, table: str) -> set[str]:
    return set(re.findall(rf"(\w[\w ]* Scan)(?: using \w+)? on {table}\b", plans))


def test_claim_walks_the_lane_in_order_and_looks_jobs_up_by_key(
    stage: Stage, warm: Connection[Any]
) -> None:
    lanes = [lane.lane for lane in stage.verbs.lanes(["default"]).run(stage.conn)]
    plans = plans_of(warm, stage.verbs.claim("A", lanes, max_jobs=100))
    assert "Index Scan using a_place_in_a_lane_is_unique on ready" in plans
    assert "Tid Scan on ready" in plans
    assert "Sort Key" not in plans.split("Tid Scan")[0]
    jobs = scans(plans, r"job_\d+_\d+")
    assert jobs <= {"Index Scan"}
    assert jobs
    assert "Seq Scan" not in plans
    assert "Hash Join" not in plans
    assert "JIT" not in plans


def test_a_claim_of_one_walks_the_lane_in_order_and_looks_its_job_up_by_key(
    stage: Stage, warm: Connection[Any]
) -> None:
    lanes = [lane.lane for lane in stage.verbs.lanes(["default"]).run(stage.conn)]
    plans = plans_of(warm, stage.verbs.claim("A", lanes, max_jobs=1))
    assert "Index Scan using a_place_in_a_lane_is_unique on ready" in plans
    assert scans(plans, r"job_\d+_\d+") == {"Index Scan"}
    assert "Seq Scan" not in plans
    assert "Sort Key" not in plans


def test_complete_probes_each_lease_by_its_key_in_the_order_of_the_ids(
    stage: Stage, warm: Connection[Any]
) -> None:
    attempts = [(x.job_id, x.token) for x in stage.claim("A", 200)]
    plans = plans_of(warm, stage.verbs.complete(attempts))
    deletion = plans[plans.index("Delete on lease") :]
    assert re.search(
        r"Nested Loop.*Subquery Scan on u.*Sort Key.*Bitmap Heap Scan on lease.*"
        r"Bitmap Index Scan on a_job_has_at_most_one_lease[^\n]*\n\s+Index Cond: \(job_id = u",
        deletion,
        re.DOTALL,
    )
    assert scans(plans, "lease") == {"Bitmap Heap Scan"}
    assert "Seq Scan" not in plans
    assert "Hash Join" not in plans
    assert "JIT" not in plans


@pytest.mark.parametrize("verb", ["renew", "execute", "fail", "release"])
def test_the_other_lease_verbs_never_scan_the_leases(
    stage: Stage, warm: Connection[Any], verb: str
) -> None:
    attempts = [(x.job_id, x.token) for x in stage.claim("A", 200)]
    plans = plans_of(warm, getattr(stage.verbs, verb)(attempts))
    assert scans(plans, "lease") == {"Bitmap Heap Scan"}
    assert scans(plans, r"job_\d+_\d+") <= {"Bitmap Heap Scan"}


def test_the_gate_finds_its_lease_by_key(stage: Stage, warm: Connection[Any]) -> None:
    (lease, *_) = stage.claim("A", 200)
    plans = plans_of(warm, stage.verbs.assert_fence(lease.job_id, lease.token))
    assert "Index Scan using a_job_has_at_most_one_lease on lease" in plans
    assert "Index Cond" in plans
    assert "Seq Scan" not in plans


def test_a_single_enqueue_scans_nothing(stage: Stage) -> None:
    stage.enqueue()
    stage.conn.execute("vacuum analyze")
    plans = plans_of(explained(stage), stage.verbs.enqueue("work", {"n": 1}))
    assert "Insert on ready" in plans
    assert "Seq Scan" not in plans


def test_a_reconcile_with_nothing_to_do_compares_no_two_tables_and_writes_nothing(
    stage: Stage,
) -> None:
    """Every worker asks every second, and mostly there is nothing.

    A session that met empty tables would compare every report with every lease for ever.
    """
    stage.enqueue(delay_seconds=3600)
    stage.conn.execute("vacuum analyze")
    conn = explained(stage)
    for _ in range(7):
        stage.verbs.reconcile().run(conn)
    ids = [stage.value("select {schema}.new_id()") for _ in range(300)]
    stage.verbs.enqueue_many("work", ids, [{} for _ in ids]).run(stage.conn)
    attempts = [(x.job_id, x.token) for x in stage.claim("A", 300)]
    stage.verbs.progress(attempts, [{}] * 300).run(stage.conn)
    stage.execute("update {schema}.progress set at = at - interval '2 minutes'")
    plans = plans_of(conn, stage.verbs.reconcile())
    reports = plans[plans.index("on progress p") :]
    assert re.search(r"Index Scan using a_job_has_at_most_one_lease on lease l", reports)
    assert "Index Cond: (job_id = p.job_id)" in reports
    assert not re.search("Join|Nested Loop", plans)
    assert "the_next_to_run on scheduled" in plans
    assert "JIT" not in plans
    writers = re.findall(r"\b(?:Insert|Update|Delete) on \w+", plans)
    assert writers == ["Delete on ready"]  # of tokens at the top, by an index that is empty


def test_the_reports_of_a_worker_find_their_leases_by_key(
    stage: Stage, warm: Connection[Any]
) -> None:
    attempts = [(x.job_id, x.token) for x in stage.claim("A", 200)]
    plans = plans_of(warm, stage.verbs.progress(attempts, [{}] * 200))
    assert scans(plans, "lease") == {"Bitmap Heap Scan"}
    assert "Index Cond: (job_id = u.job_id)" in plans
