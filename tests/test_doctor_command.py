"""`faultline doctor`: each thing that can be wrong is made wrong, and has to be found."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psycopg
import pytest

from faultline.cli import doctor
from faultline.cli.doctor import examine, tables
from faultline.cli.doctor.finding import Finding
from faultline.config import Settings
from faultline.launcher import Server
from faultline.migrate import migrate
from tests.clocks import needs_a_wrong_clock, off_by
from tests.command import CommandLine
from tests.conftest import database_url
from tests.pooler import needs_pgbouncer, pgbouncer
from tests.stage import Stage, until
from tests.test_partitions import age, finished

NAMES = [
    *("server", "schema", "roles", "clock", "pooler", "listen", "durability", "replication"),
    *("autovacuum", "transactions", "partitions", "retention", "guards", "dead_rows"),
    *("workers", "unknown_tasks", "lanes", "quarantine", "undeliverable", "invariants"),
]


def findings(url: str, **settings: Any) -> dict[str, Finding]:
    """As the command makes them, by name."""
    options = {"schema": "faultline", "home": Path("/nowhere"), "binaries": None, **settings}
    return {f.name.replace(" ", "_"): f for f in examine(Settings(database_url=url, **options))}


def levels(found: dict[str, Finding]) -> dict[str, str]:
    return {name: finding.level for name, finding in found.items() if finding.level != "ok"}


def test_a_fresh_embedded_server_is_well(tmp_path: Path) -> None:
    faultline = CommandLine("", tmp_path)
    try:
        faultline("db", "start", "--ephemeral")
        faultline("migrate")
        said = faultline("doctor")
        assert said.endswith("\nall is well\n")
        assert [line[9:23].strip().replace(" ", "_") for line in said.splitlines()[:-2]] == NAMES
        facts = faultline.json("doctor", "--quick")
        assert facts["ok"] is True
        assert [f["name"].replace(" ", "_") for f in facts["findings"]] == NAMES[:-1]
    finally:
        faultline("db", "stop")


def test_a_problem_has_its_exit_status_and_what_to_do(stage: Stage, tmp_path: Path) -> None:
    """The tests' server has neither fsync nor autovacuum, and we are its superuser."""
    faultline = CommandLine(stage.url, tmp_path)
    said = faultline("doctor", status=1)
    assert "problem  durability     fsync is off" in said
    assert "→ turn it on in postgresql.conf" in said
    assert said.endswith("\n2 problems, 1 warning\n")
    facts = faultline.json("doctor", status=1)
    assert facts["ok"] is False
    wrong = {finding["name"]: finding for finding in facts["findings"] if finding["level"] != "ok"}
    assert wrong.keys() == {"durability", "autovacuum", "roles"}
    assert all(finding["do"] for finding in wrong.values())
    _, shown = faultline.in_a_terminal("doctor")
    assert "\x1b[1;31mproblem" in shown


def test_a_server_that_does_not_answer_is_one_finding(tmp_path: Path) -> None:
    nobody = "postgresql://postgres@127.0.0.1:1/postgres"
    (finding,) = findings(nobody).values()
    assert (finding.name, finding.level) == ("server", "problem")
    CommandLine(nobody, tmp_path)("doctor", status=1)
    CommandLine("", tmp_path)("doctor", status=1)


def test_a_database_without_an_installation_is_told_to_migrate(empty_database: str) -> None:
    found = findings(empty_database)
    assert found["schema"].level == "problem"
    assert found["schema"].do == "faultline migrate"
    assert "listen" in found, "what needs no installation is looked at"
    assert "workers" not in found


def test_functions_of_another_build_are_noticed(stage: Stage) -> None:
    stage.execute("comment on schema {schema} is 'faultline-queue 0.0.1, schema 2, abc'")
    assert findings(stage.url)["schema"].level == "warn"


@pytest.mark.parametrize("role", ["worker", "producer", "operator", "reader"])
def test_each_role_is_told_what_it_is_enough_for_and_what_it_cannot_see(
    stage: Stage, role: str
) -> None:
    with stage.login(role) as url:
        found = findings(url)
    assert found["roles"].level == "ok"
    enough, _, lacks = found["roles"].what.partition("; not ")
    assert role in enough
    assert role not in lacks
    assert found["transactions"].level == "warn", "pg_read_all_stats is not theirs"
    sees = role in ("operator", "reader")
    for name in ("workers", "quarantine", "invariants"):
        assert found[name].level == ("ok" if sees else "warn")
        assert sees or found[name].do.startswith("grant faultline_reader to ")


def test_a_user_without_any_role_is_told_which_to_ask_for(stage: Stage) -> None:
    with stage.login("reader") as url:
        name = urlsplit(url).username
        stage.execute(f"revoke faultline_reader from {name}")
        found = findings(url)
    assert found["schema"].level == "problem"
    assert "may not use schema faultline" in found["schema"].what
    assert found["schema"].do.startswith("grant faultline_")


@needs_a_wrong_clock
@pytest.mark.parametrize(
    ("shift", "level"), [("+10m", "warn"), ("-10m", "warn"), ("+2h", "problem"), ("-2d", "problem")]
)
def test_a_clock_that_is_off_is_noticed(
    stage: Stage, tmp_path: Path, shift: str, level: str
) -> None:
    class Shifted(CommandLine):
        def command(self, *arguments: str) -> list[str]:
            return [*off_by(shift), *super().command(*arguments)]

    facts = Shifted(stage.url, tmp_path).json("doctor", "--quick", status=1)
    (clock,) = (finding for finding in facts["findings"] if finding["name"] == "clock")
    assert clock["level"] == level
    assert ("ahead of" if shift[0] == "+" else "behind") in clock["what"]


@needs_pgbouncer
def test_a_pooler_is_noticed_and_a_direct_url_for_listen_mends_it(stage: Stage) -> None:
    with stage.login("worker", "reader") as url, pgbouncer(url) as through:
        found = findings(through)
        assert "there is one" in found["pooler"].what
        assert found["listen"].level == "warn"
        assert "FAULTLINE_LISTEN_URL" in found["listen"].do
        found = findings(through, listen_url=url)
        assert found["listen"].level == "ok"


def test_a_listen_url_that_leads_elsewhere_is_a_problem(stage: Stage) -> None:
    elsewhere = database_url(stage.url, "postgres")
    found = findings(stage.url, listen_url=elsewhere)
    assert found["listen"].level == "problem"
    assert findings(stage.url, listen_url="postgresql://127.0.0.1:1/x")["listen"].level == "problem"


def test_what_a_failover_may_lose_is_said_and_a_standby_is_no_place_to_work() -> None:
    with (
        Server.temporary(options={"max_wal_senders": "5"}) as primary,
        psycopg.connect(primary.url, autocommit=True) as conn,
    ):
        migrate(conn, "faultline")
        assert "only copy" in findings(primary.url)["replication"].what
        with primary.standby() as standby:
            standby.start()
            until_standbys_are(conn, "async")
            found = findings(primary.url)["replication"]
            assert found.level == "warn"
            assert "1 standby server, asynchronous" in found.what
            found = findings(standby.url)["replication"]
            assert found.level == "problem"
            assert "target_session_attrs" in found.do
            set_on(conn, "synchronous_standby_names", "*")
            until_standbys_are(conn, "sync")
            assert findings(primary.url)["replication"].level == "ok"
            set_on(conn, "synchronous_commit", "local")
            assert findings(primary.url)["replication"].level == "warn"
            set_on(conn, "synchronous_commit", "off")
            assert findings(primary.url)["durability"].level == "problem"
            set_on(conn, "synchronous_commit", "on")
        until_standbys_are(conn)
        found = findings(primary.url)["replication"]
        assert found.level == "problem"
        assert "commits wait" in found.what


def until_standbys_are(conn: psycopg.Connection[Any], *states: str) -> None:
    """The sender of each looks after itself: when it is there, and as what, and when it is gone."""
    asked = "select sync_state from pg_stat_replication where state = 'streaming'"
    until(lambda: [row[0] for row in conn.execute(asked)] == list(states), f"they are {states}")


def set_on(conn: psycopg.Connection[Any], name: str, value: str) -> None:
    conn.execute(f"alter system set {name} = '{value}'")
    conn.execute("select pg_reload_conf()")
    with psycopg.connect(conn.info.dsn, password=conn.info.password, autocommit=True) as other:
        while other.execute(f"show {name}").fetchone() != (value,):
            other.execute("select pg_sleep(0.01)")


def test_dead_rows_in_a_hot_table_are_noticed(stage: Stage) -> None:
    stage.enqueue()
    assert findings(stage.url)["dead_rows"].level == "ok"
    stage.execute(
        "insert into {schema}.ready (lane, job_id, lease_seconds) "
        "select 1, gen_random_uuid(), 30 from generate_series(1, 60000)"
    )
    stage.execute("delete from {schema}.ready where job_id not in (select id from {schema}.job)")
    stage.execute("select pg_stat_force_next_flush()")
    found = findings(stage.url)["dead_rows"]
    assert found.level == "warn"
    assert found.what.startswith("ready has 60,000 dead rows and 1 live ones")
    assert "compact()" in found.do


def test_a_transaction_that_stays_open_is_noticed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert findings(stage.url)["transactions"].level == "ok"
    other = stage.connect(isolation="read committed")
    other.execute("select 1")
    monkeypatch.setattr(tables, "_LONG_SECONDS", 0.0)
    found = findings(stage.url)["transactions"]
    assert found.level == "warn"
    assert f"process {other.info.backend_pid} of postgres has been open for" in found.what


def test_a_table_that_autovacuum_must_not_touch_is_noticed(stage: Stage) -> None:
    with Server.temporary() as server, psycopg.connect(server.url, autocommit=True) as conn:
        migrate(conn, "faultline")
        assert findings(server.url)["autovacuum"].level == "ok"
        conn.execute("alter table faultline.lease set (autovacuum_enabled = false)")
        found = findings(server.url)["autovacuum"]
        assert (found.level, found.what) == ("problem", "it is turned off for lease")
        conn.execute(found.do)
        assert findings(server.url)["autovacuum"].level == "ok"


def test_missing_partitions_are_noticed_before_and_after_it_is_too_late(stage: Stage) -> None:
    months = "select to_char(clock_timestamp() at time zone 'UTC' + %s::interval, 'YYYY_MM')"
    for distance, level in (("1 month", "warn"), ("0", "problem")):
        month = stage.value(months, distance)
        stage.execute(f"alter table {{schema}}.attempt_{month} rename to old_{month}")
        found = findings(stage.url)["partitions"]
        assert found.level == level
        assert month.replace("_", "-") in found.what
        assert "create_partitions()" in found.do


def test_a_month_that_should_be_gone_and_takes_room_is_noticed(stage: Stage) -> None:
    old = age(stage, finished(stage))
    assert findings(stage.url)["retention"].what == "what has ended is kept for 30 days"
    stage.execute(
        "insert into {schema}.job select "
        "overlay(j.id::text placing lpad(to_hex(n), 12, '0') from 25)::uuid, created_at, lane, "
        "max_attempts, max_crashes, lease_seconds, backoff_seconds, backoff_cap_seconds, task, "
        "producer, to_jsonb(big), headers from {schema}.job j, generate_series(1, 18) n, "
        "(select string_agg(md5(random()::text), '') as big from generate_series(1, 131072)) b "
        "where id = %s", old)  # fmt: skip
    found = findings(stage.url)["retention"]
    assert found.level == "warn"
    assert "2020-01 should be gone" in found.what
    stage.execute(found.do.partition(" says")[0])
    assert findings(stage.url)["retention"].level == "ok"
    stage.verbs.set_retention(None).run(stage.conn)
    assert findings(stage.url)["retention"].what == "what has ended is kept for ever"


def test_gaps_in_a_guard_are_noticed(stage: Stage) -> None:
    stage.execute("create table sale (n int) partition by list (n)")
    stage.verbs.guard("sale").run(stage.conn)
    assert findings(stage.url)["guards"].what == "complete on sale"
    stage.execute("create table sale_1 partition of sale for values in (1)")
    assert findings(stage.url)["guards"].level == "warn"
    assert "gaps in the guard of sale" in findings(stage.url)["guards"].what
    assert findings(stage.url)["guards"].do == "faultline guard list says which"
    stage.execute("grant all on sale_1 to public")
    do = "REVOKE TRIGGER ON sale_1 FROM public; faultline guard list says more"
    assert findings(stage.url)["guards"].do == do


def test_silent_workers_and_waiting_jobs_without_a_worker_are_noticed(stage: Stage) -> None:
    assert findings(stage.url)["workers"].what == "none, and nothing waits"
    stage.enqueue()
    assert findings(stage.url)["workers"].what == "nobody works, and 1 job waits"
    for worker in ("alive", "gone"):
        stage.verbs.beat(worker, ["default"]).run(stage.conn)
    assert findings(stage.url)["workers"].what == "2 at work"
    stage.claim("gone")
    stage.execute("update {schema}.worker set seen_at = 'yesterday' where worker = 'gone'")
    found = findings(stage.url)["workers"]
    assert found.level == "warn"
    assert found.what == "1 at work, 1 silent, holding 1 job: gone"


def test_the_clock_of_a_worker_is_noticed(stage: Stage) -> None:
    stage.verbs.beat("early", ["default"]).run(stage.conn)
    stage.execute("update {schema}.worker set clock_difference_seconds = -3600")
    assert "the clock of early is off by 1 h" in findings(stage.url)["workers"].what


def test_quarantined_jobs_are_noticed(stage: Stage) -> None:
    job_id, _ = stage.running(max_crashes=1)
    stage.expire(job_id)
    stage.verbs.reclaim().run(stage.conn)
    found = findings(stage.url)["quarantine"]
    assert found.level == "warn"
    assert "faultline jobs list --state quarantined" in found.do


def test_a_broken_invariant_is_a_problem(stage: Stage) -> None:
    stage.enqueue()
    stage.execute("delete from {schema}.ready")
    found = findings(stage.url)["invariants"]
    assert found.level == "problem"
    assert "7_nothing_is_lost" in found.what
    assert "invariants" not in {f.name for f in examine(settings(stage.url), quick=True)}


def settings(url: str) -> Settings:
    return Settings(url, "faultline", Path("/nowhere"), None)


def test_a_check_that_cannot_go_on_does_not_keep_the_others_from_looking(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_CHECK_SECONDS", 1)
    blocker = stage.connect(isolation="read committed")
    blocker.execute("lock table faultline.ready in access exclusive mode")
    found = findings(stage.url)
    assert found["workers"].level == found["invariants"].level == "warn"
    assert "longer than 1 s" in found["workers"].what
    assert found["partitions"].level == "ok"


def test_doctor_changes_nothing(stage: Stage) -> None:
    count = "select sum(n_tup_ins + n_tup_upd + n_tup_del) from pg_stat_all_tables"
    stage.enqueue()
    stage.execute("select pg_stat_force_next_flush()")
    before = stage.value(f"{count} where schemaname = 'faultline'")
    findings(stage.url)
    stage.execute("select pg_stat_force_next_flush()")
    assert stage.value(f"{count} where schemaname = 'faultline'") == before


def test_no_password_is_ever_shown(stage: Stage, tmp_path: Path) -> None:
    secret = uuid4().hex
    parts = urlsplit(stage.url)
    address = f"{parts.username}:{secret}@{parts.hostname}:{parts.port}"
    wrong = CommandLine(urlunsplit(parts._replace(netloc=address)), tmp_path)
    assert secret not in wrong("doctor", status=1) + wrong.said
    assert parts.password not in CommandLine(stage.url, tmp_path)("doctor", status=1)


def test_a_queue_with_jobs_that_no_worker_serves_is_noticed(stage: Stage) -> None:
    stage.verbs.beat("A", ["default"]).run(stage.conn)
    stage.enqueue(queue="bililng")
    found = findings(stage.url)["workers"]
    assert (found.level, "bililng" in found.what) == ("warn", True)
    stage.verbs.beat("B", ["bililng"]).run(stage.conn)
    assert findings(stage.url)["workers"].level == "ok"
