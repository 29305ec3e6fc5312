"""Each kind of fault is played once for real, and the proxy that some of them need is tried alone.

Method: one arena for each ground, on which all kinds that are at home there are played in turn.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from faultline.drills.kinds import KINDS, guests
from faultline.drills.lane import Orders, arena, play
from faultline.drills.proxy import Proxy
from faultline.drills.run import what_is_missing
from faultline.drills.scenario import Scenario
from tests.stage import Stage, until

OTHERS = [name for name, kind in KINDS.items() if kind.full == 20]  # than the first six
GROUNDS = sorted({KINDS[name].ground for name in OTHERS})


@pytest.mark.parametrize("ground", GROUNDS)
def test_each_kind_of_fault_happens_and_costs_nothing(ground: str, newest_server_url: str) -> None:
    here = [name for name in OTHERS if KINDS[name].ground == ground and not KINDS[name].needs()]
    assert here
    orders = Orders(newest_server_url, f"drill_{uuid.uuid4().hex[:12]}", ground)
    with arena(orders) as where:
        for name in here:
            result = play(where, Scenario(name, 1))
            assert result.is_good, (result.violations, result.vacuous, result.timeline)
            assert result.faults
            assert (result.duplicates, result.lost) == (0, 0)


def test_there_are_twelve_kinds_beside_the_first_six_and_each_has_a_sentence() -> None:
    assert (len(KINDS), len(OTHERS)) == (18, 12)
    assert all(kind.sentence and kind.quick in (1, 2) for kind in map(KINDS.get, OTHERS) if kind)


def test_a_library_that_changes_no_clock_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one built for another machine: the drill would pass with every clock right."""
    library = tmp_path / "libfaketime.so.1"
    library.write_bytes(b"\x7fELF")
    assert not guests._works(library)
    monkeypatch.setattr(guests, "_fake_clock", lambda: None)
    assert "pip install libfaketime" in what_is_missing(["clock", "crash"])["clock"]


# ── the proxy ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def proxy(stage: Stage) -> Iterator[Proxy]:
    with stage.login("worker", "producer") as url, Proxy(url) as proxy:
        yield proxy


class Question(threading.Thread):
    """A statement that waits for its answer in a thread of its own."""

    def __init__(self, conn: psycopg.Connection) -> None:
        super().__init__(daemon=True)
        self._conn = conn
        self.answer: object = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self._conn.execute("select 42").fetchone()
        except psycopg.Error as error:
            self.answer = error


@pytest.mark.parametrize("ways", [[], ["requests"], ["answers"]])
def test_what_is_sent_into_a_silence_arrives_after_it(proxy: Proxy, ways: list[str]) -> None:
    with psycopg.connect(proxy.url, autocommit=True) as conn:
        proxy.partition(*(getattr(proxy, way) for way in ways))
        question = Question(conn)
        for way in ways or ["requests"]:
            assert getattr(proxy, way).kept.wait(60)
        question.join(0.1)
        assert question.is_alive()
        proxy.heal()
        question.join(60)
        assert question.answer == (42,)


def test_nobody_connects_through_a_silence(proxy: Proxy) -> None:
    proxy.partition(proxy.requests)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(proxy.url, connect_timeout=2)
    proxy.heal()
    psycopg.connect(proxy.url).close()


def test_a_reset_ends_every_connection_at_both_ends(proxy: Proxy, stage: Stage) -> None:
    with psycopg.connect(proxy.url, autocommit=True) as first, psycopg.connect(proxy.url) as second:
        second.execute("select 1")  # in a transaction
        pids = [first.info.backend_pid, second.info.backend_pid]
        assert proxy.reset() == 2
        gone = "select count(*) = 0 from pg_stat_activity where pid = any(%s)"
        until(lambda: stage.value(gone, pids), "the server has noticed")
        for conn in (first, second):
            with pytest.raises(psycopg.OperationalError):
                conn.execute("select 1")
    with psycopg.connect(proxy.url) as again:
        assert again.execute("select 1").fetchone() == (1,)
