"""The race of the mission, on real processes: A stalls past its lease, B succeeds, A is refused.

Two OS processes drive the verbs (proofs/racer.py); the harness stops A with SIGSTOP and orders the
story by barriers in the database (proofs/race.py). `make lease-race RUNS=500` runs it 500 times.
"""

from __future__ import annotations

import pytest

from faultline.reading import Reading
from proofs.race import STORY, Race, play, prepare
from tests.stage import Stage


@pytest.fixture
def race(database: str) -> Race:
    prepare(database, "faultline")
    return play(database, "faultline", lease_seconds=2.0, stall_seconds=3.5)


@pytest.mark.both_servers
def test_a_worker_that_outlives_its_lease_is_refused_and_its_successor_is_the_only_winner(
    race: Race, database: str
) -> None:
    assert race.faults == []
    with Stage(database) as stage:
        ledger = Reading().ledger(stage.conn, race.job_id)
        tokens = [entry["fencing_token"] for entry in ledger]
        (stale,) = [line for line in race.lines if line["event"] == "stale_write_blocked"]
        assert len(ledger) == 1
        assert min(tokens) == max(tokens)
        assert tokens == [2]
        assert (stale["stale_token"], stale["current_token"]) == (1, 2)
        assert stale["reason"] == "token_mismatch"
        assert stage.outcomes(race.job_id) == [(1, "expired"), (2, "succeeded")]
        assert stage.state(race.job_id) == "succeeded"
        assert stage.refusals(race.job_id) == [("complete_one", 1, 2, "token_mismatch")]
        assert race.charges == [(2, "B")]
        assert stage.violations() == []


def test_the_trace_of_the_race_has_the_names_the_fields_and_the_order_of_the_contract(
    race: Race,
) -> None:
    story = race.story()
    assert [(line["worker"], line["event"]) for line in story] == list(STORY)
    acquired = [line for line in story if line["event"] == "lease_acquired"]
    assert [line["token"] for line in acquired] == [1, 2]
    assert all(line["forced"] is True for line in acquired)
    assert {line["job_id"] for line in story if "job_id" in line} == {str(race.job_id)}
    assert [x["reason"] for x in story if x["event"] == "worker_exit"] == ["stale", "success"]
