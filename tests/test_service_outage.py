"""The database is killed under HTTP load, and nothing that was acknowledged is lost or twice there.

`make http-outage` does so for longer.
"""

from __future__ import annotations

import psycopg

from faultline.launcher import Server
from faultline.migrate import migrate
from proofs.outage import KINDS, Client, Outcome, compare, play
from proofs.serving import Caller
from tests.conftest import OPTIONS
from tests.stage import Stage


def test_what_was_acknowledged_outlives_the_database_and_none_of_it_is_twice_there() -> None:
    with Server.temporary(options=OPTIONS) as server:
        with psycopg.connect(server.url, autocommit=True) as conn:
            migrate(conn, "faultline")
        outcome = play(server, len(KINDS))
    assert outcome.held, outcome
    assert outcome.acknowledged > 100
    assert outcome.repeated > 0
    assert outcome.reasons == ["faultline:database_unavailable"]


def test_the_comparison_finds_a_job_that_is_lost_and_one_that_is_there_twice(stage: Stage) -> None:
    client = Client("c", Caller(1, ""), keyed=False, size=1)
    there, again, _ = (stage.enqueue(payload={"n": n}) for n in ("there", "again", "again"))
    client.acknowledged = {"there": str(there), "again": str(again), "gone": str(there)}
    outcome = Outcome(1)
    compare(stage.conn, [client], outcome)
    assert (outcome.lost, outcome.twice, outcome.held) == (["gone"], ["again"], False)
