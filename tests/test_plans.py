"""The plans of the hot verbs, on each server version, also when the tables were empty at plan time.

Method: auto_explain writes the plans of the statements inside the functions to the client; a
session whose first calls meet vacuumed, empty tables is the one that would cache bad plans.
"""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

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


def exercise(stage: Stage, conn: Connection[Any]) -> None:
    """Every hot verb once or more, so that the session has planned what is inside them."""
    verbs = stage.verbs
    for _ in range(7):
        leases = stage.claim("A", 10, conn)
        verbs.complete([(x.job_id, x.token) for x in leases]).run(conn)
    for verb in ("renew", "execute", "release", "fail"):
        getattr(verbs, verb)([attempt(stage, conn)]).run(conn)
    verbs.complete_one(*attempt(stage, conn)).run(conn)
    verbs.assert_fence(*attempt(stage, conn)).run(conn)
    verbs.fence(*attempt(stage, conn)).run(conn)
    verbs.progress([attempt(stage, conn)], [{}]).run(conn)
    verbs.swap([attempt(stage, conn)], None, "A", lanes(stage), max_jobs=10).run(conn)
    verbs.enqueue_many("work", [None], [{}], delay_seconds=60).run(conn)
    make_due(stage)
    stage.execute("update {schema}.lease set expires_at = clock_timestamp()")
    verbs.reconcile().run(conn)
    for lease in stage.claim("A", 1000):
        verbs.complete([(lease.job_id, lease.token)]).run(conn)


def attempt(stage: Stage, conn: Connection[Any]) -> tuple[UUID, int]:
    """One that runs."""
    stage.verbs.enqueue("work").run(conn)
    (lease,) = stage.claim("A", 1, conn)
    return lease.job_id, lease.token


def lanes(stage: Stage) -> list[int]:
    return [lane.lane for lane in stage.verbs.lanes(["default"]).run(stage.conn)]


def make_due(stage: Stage) -> None:
    stage.execute("update {schema}.scheduled set run_at = clock_timestamp() - interval '1 s'")


def grow(stage: Stage, jobs: int = 300, **options: Any) -> None:
    stage.verbs.enqueue_many("work", [None] * jobs, [{}] * jobs, **options).run(stage.conn)


def hot_session(stage: Stage, planned: str) -> Connection[Any]:
    """A session that has made its plans with other tables than these, or with these. "When one": of
    all that was in them, one row is left in each; of one row a key chooses all there is, and then
    there is no bitmap scan."""
    stage.enqueue()
    if planned == "when one":
        grow(stage, 3000)
        grow(stage, 3000, delay_seconds=3600)
        stage.execute(
            "delete from {schema}.scheduled where job_id <> (select max(job_id::text)::uuid"
            " from {schema}.scheduled)"
        )
    while leases := stage.claim("A", 500):
        stage.verbs.complete([(x.job_id, x.token) for x in leases]).run(stage.conn)
    if planned == "when one":
        grow(stage, 2)
        stage.claim("A")
    elif planned != "when empty":
        grow(stage)
        grow(stage, delay_seconds=3600)
        if planned == "when grown":
            grow(stage, 3000)
            grow(stage, 3000, delay_seconds=3600)
    stage.conn.execute("vacuum analyze")
    conn = explained(stage)
    if planned != "when grown":
        exercise(stage, conn)
        grow(stage, 300)
    return conn


@pytest.fixture(params=["when empty", "when one", "when small", "when grown"])
def warm(stage: Stage, request: pytest.FixtureRequest) -> Connection[Any]:
    return hot_session(stage, request.param)


def scans(plans: str, table: str) -> set[str]:
    return set(re.findall(rf"(\w[\w ]* Scan)(?: using \w+)? on {table}\b", plans))


def unkeyed(plans: str, *tables: str) -> list[str]:
    """The scans of these tables that are not given a key, and so read all there is."""
    nodes = re.findall(
        r"(\w[\w ]* Scan[^\n(]*?) +\(cost[^\n]*((?:\n\s+[A-Z][^\n>]*:[^\n]*)*)", plans
    )
    return [
        node.strip()
        for node, details in nodes
        if re.search(rf" on ({'|'.join(tables)})\b", node)
        and not re.search(r"(Index|TID|Recheck) Cond", details)
    ]


def test_claim_walks_the_lane_in_order_and_looks_jobs_up_by_key(
    stage: Stage, warm: Connection[Any]
) -> None:
    plans = plans_of(warm, stage.verbs.claim("A", lanes(stage), max_jobs=100))
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
    plans = plans_of(warm, stage.verbs.claim("A", lanes(stage), max_jobs=1))
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
        r"Bitmap Index Scan on a_job_has_at_most_one_lease[^\n]*\n\s+Index Cond: [^\n]*job_id = u",
        deletion,
        re.DOTALL,
    )
    assert scans(plans, "lease") == {"Bitmap Heap Scan"}
    assert "Seq Scan" not in plans
    assert "Hash Join" not in plans
    assert "JIT" not in plans


@pytest.mark.parametrize("planned", ["when empty", "when small", "when grown"])
def test_a_claim_of_one_by_itself_is_planned_likewise(stage: Stage, planned: str) -> None:
    """In a session in which no claim of many, with its own settings, has made the plans."""
    grow(stage, 1)
    stage.claim("A")
    conn, own = hot_session(stage, "when grown"), explained(stage)
    call = stage.verbs.claim_one("A", lanes(stage))
    if planned == "when grown":
        grow(stage, 10)
    else:
        stage.claim("A", 10_000, conn)
        if planned == "when small":
            grow(stage, 300)
        stage.conn.execute("vacuum analyze")
        for _ in range(7):
            call.run(own)
        grow(stage, 300)
    plans = plans_of(own, call)
    assert "Index Scan using a_place_in_a_lane_is_unique on ready" in plans
    assert scans(plans, r"job_\d+_\d+") == {"Index Scan"}
    assert "Seq Scan" not in plans
    assert "Sort Key" not in plans
    assert "JIT" not in plans


@pytest.mark.parametrize("max_jobs", [1, 100])
def test_a_session_that_knew_few_queues_reads_no_more_when_there_are_many(
    stage: Stage, max_jobs: int
) -> None:
    stage.running()
    stage.conn.execute("vacuum analyze")
    conn = explained(stage)
    call = stage.verbs.claim("A", lanes(stage), max_jobs=max_jobs)
    if max_jobs == 1:
        call = stage.verbs.claim_one("A", lanes(stage))
    for _ in range(7):
        call.run(conn)
    for place in ("queue (queue) select", "lane (queue, priority) select"):
        numbers = "'q' || g, 0" if place.startswith("lane") else "'q' || g"
        stage.execute(f"insert into {{schema}}.{place} {numbers} from generate_series(1, 2000) g")
    grow(stage)
    plans = plans_of(conn, call)
    assert scans(plans, "queue") == {"Index Only Scan"}, "of those that are paused, none"
    assert scans(plans, "lane") == set()
    assert "Seq Scan" not in plans


@pytest.mark.parametrize("verb", ["renew", "execute", "fail", "release"])
def test_the_other_lease_verbs_never_scan_the_leases(
    stage: Stage, warm: Connection[Any], verb: str
) -> None:
    attempts = [(x.job_id, x.token) for x in stage.claim("A", 200)]
    plans = plans_of(warm, getattr(stage.verbs, verb)(attempts))
    assert scans(plans, "lease") == {"Bitmap Heap Scan"}
    jobs = scans(plans, r"job_\d+_\d+")
    assert jobs <= {"Bitmap Heap Scan", "Index Only Scan"}, "of one row there is no bitmap scan"
    assert unkeyed(plans, r"job_\d+_\d+") == []


def test_the_gate_finds_its_lease_by_key(stage: Stage, warm: Connection[Any]) -> None:
    (lease, *_) = stage.claim("A", 200)
    plans = plans_of(warm, stage.verbs.assert_fence(lease.job_id, lease.token))
    assert "Index Scan using a_job_has_at_most_one_lease on lease" in plans
    assert "Index Cond" in plans
    assert "Seq Scan" not in plans


@pytest.mark.parametrize("step", ["complete_one", "fence"])
def test_a_fenced_transaction_finds_its_lease_by_key(
    stage: Stage, warm: Connection[Any], step: str
) -> None:
    (lease, *_) = stage.claim("A", 200)
    plans = plans_of(warm, getattr(stage.verbs, step)(lease.job_id, lease.token))
    assert scans(plans, "lease") == {"Bitmap Heap Scan" if step == "complete_one" else "Index Scan"}
    assert scans(plans, "fence_tx") <= {"Index Scan"}
    assert unkeyed(plans, "lease", "fence_tx", "attempt") == []


def test_a_swap_does_what_a_completion_and_a_claim_do(stage: Stage, warm: Connection[Any]) -> None:
    attempts = [(x.job_id, x.token) for x in stage.claim("A", 100)]
    call = stage.verbs.swap(attempts, None, "A", lanes(stage), max_jobs=100)
    plans = plans_of(warm, call)
    assert scans(plans, "lease") == {"Bitmap Heap Scan", "Index Only Scan"}
    assert "Index Scan using a_place_in_a_lane_is_unique on ready" in plans
    assert scans(plans, r"job_\d+_\d+") == {"Index Scan"}
    assert unkeyed(plans, "lease", "ready", r"job_\d+_\d+", r"attempt_\d+_\d+") == []
    assert not re.search("Seq Scan|Hash Join|JIT", plans)


def test_a_reclaim_reads_the_leases_once_and_all_else_by_key(
    stage: Stage, warm: Connection[Any]
) -> None:
    stage.expire(*(x.job_id for x in stage.claim("A", 100)[:5]))
    plans = plans_of(warm, stage.verbs.reclaim())
    assert unkeyed(plans, "lease") == ["Index Scan using a_job_has_at_most_one_lease on lease l"]
    assert unkeyed(plans, "ready", "quarantine", "cancel_request", r"job_\d+_\d+") == []
    assert not re.search(r"Seq Scan on (?!unnest)|Hash Join|JIT", plans)


def test_a_promotion_takes_what_is_due_in_order_and_deletes_it_by_key(
    stage: Stage, warm: Connection[Any]
) -> None:
    grow(stage, 100, delay_seconds=60)
    make_due(stage)
    plans = plans_of(warm, stage.verbs.promote())
    assert "Index Scan using the_next_to_run on scheduled s" in plans
    deletion = plans[plans.index("Delete on scheduled") :]
    assert "Index Cond: (job_id = ANY" in deletion.split("CTE Scan")[0]
    assert not re.search("Seq Scan|Hash Join|JIT", plans)


@pytest.mark.parametrize("many", [False, True])
def test_an_enqueue_scans_nothing(stage: Stage, warm: Connection[Any], many: bool) -> None:
    one = stage.verbs.enqueue("work", {"n": 1}, idempotency_key="k")
    batch = stage.verbs.enqueue_many("work", [None] * 50, [{}] * 50)
    plans = plans_of(warm, batch if many else one)
    assert "Insert on ready" in plans
    assert "Insert on job" in plans
    assert not re.search(r"Seq Scan on (?!lane|sleeper|setting)|Hash Join|JIT", plans), (
        "those are small"
    )
    assert unkeyed(plans, "idempotency", r"job_\d+_\d+") == []


def test_an_enqueue_looks_its_lane_up_by_key_once_there_are_many(stage: Stage) -> None:
    """Lanes come one by one, and an ANALYZE after fifty: it has the session plan anew."""
    stage.enqueue()
    stage.conn.execute("vacuum analyze")
    conn, call = explained(stage), stage.verbs.enqueue("work")
    for _ in range(7):
        call.run(conn)
    stage.execute(
        "insert into {schema}.lane (queue, priority)"
        " select 'q' || g, 0 from generate_series(1, 1000) g"
    )
    stage.execute("analyze {schema}.lane")
    plans = plans_of(conn, call)
    assert scans(plans, "lane l") == {"Index Scan"}
    assert unkeyed(plans, "lane") == []


@pytest.mark.parametrize("by", ["id", "key"])
def test_what_is_sent_again_is_found_by_key(stage: Stage, by: str) -> None:
    """In a session that looked for one the first time when there were hardly any."""
    job_id = stage.enqueue(idempotency_key="k")
    stage.conn.execute("vacuum analyze")
    again = {"job_id": job_id} if by == "id" else {"idempotency_key": "k"}
    conn, call = explained(stage), stage.verbs.enqueue("work", **again)
    for _ in range(7):
        assert call.run(conn) == job_id
    grow(stage, idempotency_keys=[str(number) for number in range(300)])
    plans = plans_of(conn, call)
    table = r"job_\d+_\d+" if by == "id" else "idempotency"
    assert scans(plans, table) == {"Index Scan" if by == "key" else "Index Only Scan"}
    assert unkeyed(plans, table) == []


def test_an_enqueue_looks_announcements_up_by_key(stage: Stage) -> None:
    for number in range(5):
        stage.verbs.sleep(f"w{number}", ["default"], 60.0).run(stage.conn)
    stage.enqueue()
    stage.conn.execute("vacuum analyze")
    conn, call = explained(stage), stage.verbs.enqueue("work")
    for _ in range(7):
        call.run(conn)
    stage.execute(
        "insert into {schema}.announcement"
        " select 'default', clock_timestamp() - g * interval '1 ms' from generate_series(1, 300) g"
    )
    conn.execute(f"reset faultline.{stage.schema}_quiet_queue")
    plans = plans_of(conn, call)
    assert "announcement" in plans
    assert unkeyed(plans, "announcement") == []
    assert "Seq Scan on announcement" not in plans


@pytest.mark.parametrize("verb", ["compact_if_bloated", "spare_vacuum"])
def test_what_reconcilers_ask_about_dead_rows_reads_no_table_of_ours(
    stage: Stage, warm: Connection[Any], verb: str
) -> None:
    plans = plans_of(warm, getattr(stage.verbs, verb)())
    read = set(re.findall(r"Scan[^\n]* on (\w+)", plans))
    assert verb in read <= {verb, "pg_class", "pg_options_to_table"}
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
