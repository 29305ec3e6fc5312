"""`faultline jobs`, run as a user runs it, on jobs in every state."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.command import CommandLine
from tests.conftest import database_url
from tests.stage import Stage

UNKNOWN = str(uuid4())


@pytest.fixture
def faultline(stage: Stage, tmp_path: Path) -> CommandLine:
    return CommandLine(stage.url, tmp_path)


def dead(stage: Stage, **options: object) -> UUID:
    job_id, token = stage.running(max_attempts=1, **options)
    error = {"type": "ValueError", "message": "no such card", "traceback": "Traceback …\n  line 7"}
    stage.verbs.fail([(job_id, token)], [error]).run(stage.conn)
    return job_id


def quarantined(stage: Stage, **options: object) -> UUID:
    job_id, _ = stage.running(max_crashes=1, **options)
    stage.expire(job_id)
    stage.verbs.reclaim().run(stage.conn)
    return job_id


def one_in_each_state(stage: Stage) -> dict[str, UUID]:
    done, token = stage.running()
    stage.verbs.complete([(done, token)]).run(stage.conn)
    found = {"succeeded": done, "failed": dead(stage), "quarantined": quarantined(stage)}
    found["running"] = stage.running("host-7")[0]
    found["cancelled"] = stage.enqueue()
    stage.verbs.cancel([found["cancelled"]]).run(stage.conn)
    found["scheduled"] = stage.enqueue(delay_seconds=3600)
    found["queued"] = stage.enqueue()
    return found


# ── list ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_whose_payload_python_cannot_read_is_shown_all_the_same(
    stage: Stage, faultline: CommandLine
) -> None:
    digits = "9" * 5000
    job_id = stage.enqueue()  # an enqueue refuses it: it is from a release that did not
    stage.execute("update {schema}.job set payload = %s::jsonb", f'{{"n": {digits}}}')
    assert "unreadable" in faultline("jobs", "show", str(job_id))
    assert faultline.json("jobs", "show", str(job_id))["state"] == "queued"


def test_a_payload_too_large_to_print_is_left_out_and_its_size_shown(
    stage: Stage, faultline: CommandLine
) -> None:
    parked, by_hand = stage.undeliverable(), stage.too_large(by_hand=True)
    for job_id in (parked, by_hand):
        said = faultline("jobs", "show", str(job_id))
        assert "with its headers it has 1,087," in said
        assert " bytes of text: left out" in said
        shown = faultline.json("jobs", "show", str(job_id))
        assert shown["payload_bytes"] > 1_000_000_000
        assert "left out" in shown["payload"]["unreadable"]
    assert "parked      undeliverable" in faultline("jobs", "show", str(parked))
    assert {job["id"] for job in faultline.json("jobs", "list")} == {str(parked), str(by_hand)}
    row = stage.execute("select payload, headers from {schema}.jobs where id = %s", parked)
    assert row == [(None, None)], "psql, too, can print the row"
    faultline("jobs", "cancel", str(parked))
    assert stage.state(parked) == "cancelled"


def test_a_list_shows_exactly_the_jobs_of_the_state_that_was_asked_for(
    stage: Stage, faultline: CommandLine
) -> None:
    jobs = one_in_each_state(stage)
    for state, job_id in jobs.items():
        (found,) = faultline.json("jobs", "list", "--state", state)
        assert (found["id"], found["state"]) == (str(job_id), state)
    everything = faultline("jobs", "list").splitlines()
    assert everything[0].split() == ["id", "state", "task", "queue", "tries", "token"]
    newest_first = sorted((str(job_id) for job_id in jobs.values()), reverse=True)
    assert [line.split()[0] for line in everything[1:]] == newest_first


def test_a_list_is_narrowed_by_queue_task_and_limit(stage: Stage, faultline: CommandLine) -> None:
    stage.enqueue("mail", queue="slow")
    wanted = stage.enqueue("charge", queue="slow")
    stage.enqueue("charge")
    (found,) = faultline.json("jobs", "list", "--queue", "slow", "--task", "charge")
    assert found["id"] == str(wanted)
    assert len(faultline.json("jobs", "list", "--limit", "2")) == 2
    assert faultline.json("jobs", "list", "--queue", "no such", status=3) == []
    faultline("jobs", "list", "--task", "no such", status=3)
    assert faultline.said == "no job matches\n"


def test_a_list_never_shows_a_payload(stage: Stage, faultline: CommandLine) -> None:
    stage.enqueue(payload={"card": "4111"})
    assert "4111" not in faultline("jobs", "list") + str(faultline.json("jobs", "list"))


def test_a_terminal_of_eighty_columns_shows_whole_ids_one_job_a_line(
    stage: Stage, faultline: CommandLine
) -> None:
    hostile = stage.enqueue("evil\x1b[2J\nname", queue="q" * 60)
    status, shown = faultline.in_a_terminal("jobs", "list")
    assert status == 0
    assert str(hostile) in shown
    assert "\x1b[2J" not in shown
    assert len(shown.splitlines()) == 2
    assert all(len(plain(line)) <= 80 for line in shown.splitlines())


def plain(line: str) -> str:
    return "".join(
        part.partition("m")[2] if i else part for i, part in enumerate(line.split("\x1b"))
    )


# ── show ─────────────────────────────────────────────────────────────────────────────────────────


def test_show_tells_the_whole_story_of_a_worker_that_came_back_too_late(
    stage: Stage, faultline: CommandLine
) -> None:
    job_id, token = stage.running("A", payload={"order_id": 7})
    stage.verbs.record_step(job_id, token, "reserve", 5).run(stage.conn)
    job_id, successor = stage.take_over(job_id, "B")
    assert stage.verbs.complete([(job_id, token)]).run(stage.conn)
    stage.verbs.complete([(job_id, successor)], [{"ok": True}]).run(stage.conn)
    said = faultline("jobs", "show", str(job_id))
    told = [
        "enqueued into default by postgres",
        "#1 claimed by A",
        "#1 committed step reserve",
        "#1 lease taken away from A",
        "#2 claimed by B",
        "#1 REFUSED: complete by A; the job was at 2 (token_mismatch",
        "#2 succeeded",
    ]
    places = [said.index(words) for words in told]
    assert places == sorted(places)
    assert '{"order_id": 7}' in said
    assert '{"ok": true}' in said
    facts = faultline.json("jobs", "show", str(job_id))
    assert facts["state"] == "succeeded"
    assert [attempt["outcome"] for attempt in facts["attempts"]] == ["expired", "succeeded"]
    assert [refusal["stale_token"] for refusal in facts["refusals"]] == [1]
    assert [(step["step"], step["value"]) for step in facts["steps"]] == [("reserve", 5)]
    assert facts["lease"] is None


def stale_worker(stage: Stage) -> UUID:
    """The story of a worker that came back too late, for a job that another one has done."""
    job_id, token = stage.running("A")
    stage.verbs.record_step(job_id, token, "reserve", 5).run(stage.conn)
    # As if it had been claimed and worked at a while ago, so that all of it has its place.
    stage.execute("update {schema}.job set created_at = created_at - interval '1 minute'")
    stage.execute("update {schema}.step set at = at - interval '40 seconds'")
    stage.execute("update {schema}.lease set claimed_at = claimed_at - interval '50 seconds'")
    stage.expire(job_id)
    stage.execute("update {schema}.lease set expires_at = expires_at - interval '20 seconds'")
    assert stage.verbs.reclaim().run(stage.conn)
    ((_, successor),) = [(lease.job_id, lease.token) for lease in stage.claim("B")]
    assert stage.verbs.complete([(job_id, token)]).run(stage.conn)
    stage.verbs.complete([(job_id, successor)]).run(stage.conn)
    return job_id


def test_show_draws_the_story_of_a_stale_worker_along_a_time_axis(
    stage: Stage, faultline: CommandLine
) -> None:
    job_id = str(stale_worker(stage))
    said = faultline("jobs", "show", job_id).splitlines()
    place = next(n for n, line in enumerate(said) if line.startswith("#1 A"))
    first, second = said[place : place + 2]
    assert [c for c in first if c in "┣◆╫┓✗"] == list("┣◆╫┓✗")
    assert first.index("┓") == second.index("┗")
    assert second.split()[-2:] == ["┗✓", "succeeded"]
    assert "╷enqueued" in said[place - 1]
    assert max(len(line) for line in said[place - 1 : place + 4]) == 80
    for columns in (60, 150):
        status, shown = faultline.in_a_terminal("jobs", "show", job_id, columns=columns)
        assert status == 0
        lines = [plain(line) for line in shown.splitlines()]
        axis = next(line for line in lines if "╷enqueued" in line)
        assert len(axis) == columns - len("   succeeded")
        assert "\x1b[1;31m✗" in shown, "what was refused is red"


def test_show_draws_with_plain_letters_where_the_encoding_has_no_others(
    stage: Stage, tmp_path: Path
) -> None:
    poor = CommandLine(stage.url, tmp_path, PYTHONIOENCODING="ascii")
    status, shown = poor.in_a_terminal("jobs", "show", str(stale_worker(stage)))
    assert status == 0
    (first,) = [line for line in map(plain, shown.splitlines()) if line.startswith("#1 A")]
    assert [c for c in first.removesuffix("expired") if c in "[o|\\X"] == list("[o|\\X")


def test_show_cuts_a_long_pause_short_and_says_how_long_it_was(
    stage: Stage, faultline: CommandLine
) -> None:
    job_id, token = stage.running(max_attempts=2, backoff_seconds=0)
    stage.verbs.fail([(job_id, token)], [{"message": "no"}]).run(stage.conn)
    back = "- interval '2 hours'"
    stage.execute(f"update {{schema}}.job set created_at = created_at {back}")
    stage.execute(f"update {{schema}}.attempt set claimed_at = claimed_at {back}, at = at {back}")
    stage.verbs.retry([job_id]).run(stage.conn)
    stage.verbs.complete([(job_id, stage.claim("B")[0].token)]).run(stage.conn)
    assert "⋯ 2 h ⋯" in faultline("jobs", "show", str(job_id))


def test_show_draws_nothing_for_a_job_that_was_never_claimed(
    stage: Stage, faultline: CommandLine
) -> None:
    assert "╷" not in faultline("jobs", "show", str(stage.enqueue()))


def test_show_of_a_dead_job_ends_with_its_traceback(stage: Stage, faultline: CommandLine) -> None:
    said = faultline("jobs", "show", str(dead(stage)))
    assert "#1 failed, for good: ValueError: no such card" in said
    assert said.endswith("  Traceback …\n    line 7\n")


def test_show_can_be_asked_in_every_state(stage: Stage, faultline: CommandLine) -> None:
    for state, job_id in one_in_each_state(stage).items():
        first = faultline("jobs", "show", str(job_id)).splitlines()[0]
        assert first == f"{job_id}  work  {state}"


def test_an_id_that_is_none_and_one_that_is_nobodys_get_a_sentence(faultline: CommandLine) -> None:
    faultline("jobs", "show", "seven", status=2)
    assert "'seven' is not a job id" in faultline.said
    for command in (["show"], ["retry"], ["cancel"], ["requeue"]):
        faultline("jobs", *command, UNKNOWN, status=3)
        assert f"there is no job {UNKNOWN}" in faultline.said
        assert faultline.said.count("\n") == 1


# ── retry, cancel, requeue ───────────────────────────────────────────────────────────────────────


def test_retry_brings_a_scheduled_a_dead_and_a_quarantined_job_back_to_the_queue(
    stage: Stage, faultline: CommandLine
) -> None:
    jobs = one_in_each_state(stage)
    wanted = [jobs[state] for state in ("scheduled", "failed", "quarantined")]
    said = faultline("jobs", "retry", *map(str, wanted))
    assert said == "made 1 job due now, requeued 2 jobs\n"
    assert {stage.state(job_id) for job_id in wanted} == {"queued"}
    assert stage.violations() == []


def test_requeue_leaves_a_job_that_runs_alone_and_says_why(
    stage: Stage, faultline: CommandLine
) -> None:
    running, corpse = stage.running()[0], dead(stage)
    faultline("jobs", "requeue", str(running), status=3)
    assert f"job {running} is running: requeue is for jobs that are failed" in faultline.said
    assert faultline("jobs", "requeue", str(corpse), str(running), status=1) == "requeued 1 job\n"
    assert stage.state(running) == "running"
    assert stage.state(corpse) == "queued"


def test_cancel_ends_what_waits_asks_what_runs_and_leaves_what_has_ended(
    stage: Stage, faultline: CommandLine
) -> None:
    jobs = one_in_each_state(stage)
    ids = [
        str(jobs[state]) for state in ("queued", "scheduled", "quarantined", "running", "failed")
    ]
    said = faultline("jobs", "cancel", *ids, "--reason", "customer left")
    assert said == "cancelled 3 jobs, asked 1 job to stop, 1 job had ended already\n"
    assert stage.job(jobs["running"])["cancel_reason"] == "customer left"
    assert stage.state(jobs["failed"]) == "failed"
    assert faultline("jobs", "cancel", str(jobs["failed"]), status=3) == (
        "1 job had ended already\n"
    )


def test_a_bulk_change_touches_what_matches_and_nothing_else(
    stage: Stage, faultline: CommandLine
) -> None:
    wanted = [dead(stage, queue="billing", task="charge") for _ in range(3)]
    others = [dead(stage, queue="billing", task="mail"), dead(stage, task="charge")]
    matching = ("--state", "failed", "--queue", "billing", "--task", "charge")
    assert faultline.json("jobs", "requeue", *matching, "--dry-run") == {"matched": 3}
    assert {stage.state(job_id) for job_id in wanted} == {"failed"}, "it was only tried"
    limited = faultline.json("jobs", "requeue", *matching, "--limit", "1")
    assert limited == {"matched": 1, "requeued": 1}
    assert stage.state(min(wanted)) == "queued", "the oldest"
    assert faultline("jobs", "requeue", *matching) == "requeued 2 jobs\n"
    assert {stage.state(job_id) for job_id in wanted} == {"queued"}
    assert {stage.state(job_id) for job_id in others} == {"failed"}
    faultline("jobs", "requeue", *matching, status=3)


def test_a_bulk_change_of_more_jobs_than_fit_in_one_chunk_gets_them_all(
    stage: Stage, faultline: CommandLine
) -> None:
    ids = [
        uuid7
        for (uuid7,) in stage.execute("select {schema}.new_id() from generate_series(1, 1203)")
    ]
    stage.verbs.enqueue_many("work", ids, [{}] * len(ids)).run(stage.conn)
    counts = faultline.json("jobs", "cancel", "--queue", "default")
    assert counts == {"matched": 1203, "cancelled": 1203, "requested": 0, "finished": 0}
    assert stage.value("select count(*) from {schema}.ready") == 0
    assert stage.violations() == []


def test_a_person_is_asked_before_a_bulk_change_and_may_say_no(
    stage: Stage, faultline: CommandLine
) -> None:
    job_id = stage.enqueue()
    matching = ("jobs", "cancel", "--state", "queued")
    status, shown = faultline.in_a_terminal(*matching, answer="n\n")
    assert status == 1
    assert "cancel 1 job?" in shown
    assert stage.state(job_id) == "queued"
    assert faultline.in_a_terminal(*matching, answer="y\n")[0] == 0
    assert stage.state(job_id) == "cancelled"
    again = stage.enqueue()
    assert faultline.in_a_terminal(*matching, "--yes")[0] == 0
    assert stage.state(again) == "cancelled"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("retry",), "name jobs by id, or match them"),
        (("cancel", UNKNOWN, "--queue", "a"), "name jobs by id, or match them"),
        (("cancel", "--state", "succeeded"), "cancel is for jobs that are queued, scheduled"),
        (("requeue", "--state", "running"), "requeue is for jobs that are failed or quarantined"),
        (("list", "--state", "nonsense"), "nonsense"),
        (("list", "--limit", "0"), "--limit"),
    ],
)
def test_wrong_usage_is_said_before_anything_is_done(
    faultline: CommandLine, arguments: tuple[str, ...], said: str
) -> None:
    faultline("jobs", *arguments, status=2)
    assert said in faultline.said


def test_a_producer_cancels_its_own_job_and_cannot_see_the_others(
    stage: Stage, tmp_path: Path
) -> None:
    name = f"shop_{uuid4().hex}"
    stage.execute(f"create role {name} login password 'x' in role faultline_producer")
    try:
        theirs = stage.enqueue()
        parts = psycopg.conninfo.conninfo_to_dict(stage.url)
        url = f"postgresql://{name}:x@{parts['host']}:{parts['port']}/{parts['dbname']}"
        shop = CommandLine(url, tmp_path)
        own = shop("enqueue", "charge", "{}").strip()
        assert shop("jobs", "cancel", own) == "cancelled 1 job\n"
        shop("jobs", "cancel", str(theirs), status=3)
        assert "not yours" in shop.said
        shop("jobs", "list", status=1)
        assert shop.said.startswith("faultline: ")
        assert shop.said.count("\n") == 1
    finally:
        stage.execute(f"drop role {name}")


def test_a_database_without_an_installation_says_what_to_run(
    empty_database: str, tmp_path: Path
) -> None:
    there = CommandLine(empty_database, tmp_path)
    for command in (["jobs", "list"], ["queues", "list"], ["workers"], ["epoch", "show"]):
        there(*command, status=1)
        assert "faultline migrate" in there.said
    away = CommandLine(database_url(empty_database, "no_such"), tmp_path)
    away("jobs", "list", status=1)
    assert away.said.startswith("faultline: ")
    assert json.dumps(away.said).count("\\n") == 1
