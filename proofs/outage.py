"""`make http-outage`: the database is killed and comes back, again and again, under HTTP load.

Clients post jobs to a real `faultline api`: one by one and in batches, with idempotency keys and
without. Who has a key sends the same again until it is answered; who has none goes on with another
job. Meanwhile the server's postmaster is killed (SIGKILL), told to end at once (SIGQUIT), or loses
a session (SIGKILL), and is started again. Afterwards the tables are compared with the answers:

    lost        acknowledged, and not there
    twice       there more than once, whether acknowledged or not
    unexpected  an answer that is neither an acknowledgement nor "try again"
    unseen      outages that /health did not say, or did not end to say

The last line on stdout is one JSON object; the exit status is 0 when all four are 0.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from http.client import HTTPException
from itertools import count
from typing import Any

import psycopg

from faultline.launcher import Server
from faultline.migrate import migrate
from faultline.provenance import provenance
from proofs.serving import Answer, Caller, Service
from proofs.stopwatch import finish

SCHEMA = "faultline"
BATCH = 20
PATIENCE_SECONDS = 120.0
LOAD = 40  # acknowledged requests before each fault
KINDS = ("postmaster killed", "ended at once", "session killed")


@dataclass
class Outcome:
    """What came of it."""

    rounds: int
    acknowledged: int = 0
    repeated: int = 0
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    unseen: int = 0
    reasons: list[str] = field(default_factory=list)  # that /health gave
    violations: int = 0

    @property
    def held(self) -> bool:
        """Whether all was as promised."""
        return not (self.lost or self.twice or self.unexpected or self.unseen or self.violations)


class Client(threading.Thread):
    """Posts jobs, each with a number of its own, until it is told to stop."""

    def __init__(self, name: str, caller: Caller, *, keyed: bool, size: int) -> None:
        super().__init__(name=name, daemon=True)
        self._caller = caller
        self._keyed = keyed
        self._size = size
        self._over = threading.Event()
        self.acknowledged: dict[str, str] = {}  # number → id
        self.answers: Counter[str] = Counter()
        self.unexpected: list[str] = []

    def run(self) -> None:
        """One order after the other."""
        numbers = (f"{self.name}-{n}" for n in count())
        while not self._over.is_set():
            self._order([next(numbers) for _ in range(self._size)])

    def end(self) -> None:
        """After the order under way."""
        self._over.set()
        self.join(PATIENCE_SECONDS)
        if self.is_alive():
            self.unexpected.append(f"{self.name} was not answered within {PATIENCE_SECONDS:.0f} s")
        self._caller.close()

    def _order(self, numbers: list[str]) -> None:
        jobs = [self._job(number) for number in numbers]
        path, body = ("/jobs/batch", {"jobs": jobs}) if self._size > 1 else ("/jobs", jobs[0])
        while True:
            answer = self._send(path, body)
            if answer is not None and answer.status in (200, 201):
                made = answer.body["jobs"] if self._size > 1 else [answer.body]
                self.acknowledged |= {n: job["id"] for n, job in zip(numbers, made, strict=True)}
                self.answers["acknowledged"] += 1
                return
            if answer is not None and not _says_try_again(answer):
                self.unexpected.append(f"{answer.status}: {answer.text[:300]}")
                return
            self.answers["no answer" if answer is None else "try again"] += 1
            if not self._keyed:
                return
            self._over.wait(0.02)

    def _job(self, number: str) -> dict[str, Any]:
        job: dict[str, Any] = {"task": "charge", "payload": {"n": number}}
        return {**job, "idempotency_key": number} if self._keyed else job

    def _send(self, path: str, body: Any) -> Answer | None:
        try:
            return self._caller("POST", path, body)
        except (OSError, HTTPException):
            return None


def _says_try_again(answer: Answer) -> bool:
    return answer.status == 503 or answer.body.get("type") == "faultline:key_in_flight"


class Health(threading.Thread):
    """Asks /health all the time, and keeps what it said last and each reason that it gave."""

    def __init__(self, caller: Caller) -> None:
        super().__init__(name="health", daemon=True)
        self._caller = caller
        self._over = threading.Event()
        self.status = 0
        self.asked = 0
        self.reasons: Counter[str] = Counter()

    def run(self) -> None:
        """Until told to stop."""
        while not self._over.wait(0.02):
            with suppress(OSError, HTTPException):
                answer = self._caller("GET", "/health")
                self.status = answer.status
                self.asked += 1
                if answer.status == 503:
                    self.reasons[answer.body["type"]] += 1

    def end(self) -> None:
        """And wait for it."""
        self._over.set()
        self.join(PATIENCE_SECONDS)
        self._caller.close()


class Outage:
    """One run: a server, a service, its clients."""

    def __init__(self, server: Server, service: Service) -> None:
        self._server = server
        self.clients = [
            Client("key", service.caller(), keyed=True, size=1),
            Client("key too", service.caller(), keyed=True, size=1),
            Client("keys", service.caller(), keyed=True, size=BATCH),
            Client("none", service.caller(), keyed=False, size=1),
            Client("nones", service.caller(), keyed=False, size=BATCH),
        ]
        self.health = Health(service.caller())
        self.unseen = 0

    def play(self, rounds: int) -> None:
        """All faults, one after the other; every client is served in between."""
        threads: list[Client | Health] = [*self.clients, self.health]
        for thread in threads:
            thread.start()
        try:
            for number in range(rounds):
                self._until_served()
                self._hit(KINDS[number % len(KINDS)])
            self._until_served()
        finally:
            for thread in threads:
                thread.end()

    def _until_served(self) -> None:
        before = {client.name: client.answers["acknowledged"] for client in self.clients}

        def served() -> bool:
            new = [c.answers["acknowledged"] - before[c.name] for c in self.clients]
            return min(new) > 0 and sum(new) >= LOAD

        _wait(served, "every client is served")

    def _hit(self, kind: str) -> None:
        if kind == "session killed":  # the server ends all the others and recovers by itself
            os.kill(self._a_session(), signal.SIGKILL)
            return
        killed = kind == "postmaster killed"
        os.kill(self._server.pid, signal.SIGKILL if killed else signal.SIGQUIT)
        self._noticed(lambda: self.health.status == 503)
        if killed:  # for so long that the service gives up, and its clients have to send again
            before = self._told_to_try_again()
            _wait(lambda: self._told_to_try_again() > before, "a client is told to try again")
        self._server.start()
        self._noticed(lambda: self.health.status == 200)

    def _told_to_try_again(self) -> int:
        return sum(client.answers["try again"] for client in self.clients)

    def _noticed(self, condition: Callable[[], bool]) -> None:
        try:
            _wait(condition, "/health notices")
        except TimeoutError:
            self.unseen += 1

    def _a_session(self) -> int:
        """Of the service; one that works, if there is one."""
        with psycopg.connect(self._server.url, autocommit=True) as conn:
            row = conn.execute(
                "select pid from pg_stat_activity where pid <> pg_backend_pid() "
                "and backend_type = 'client backend' order by state = 'active' desc limit 1"
            ).fetchone()
        assert row is not None
        return int(row[0])


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"never happened: {what}")
        time.sleep(0.01)


def play(server: Server, rounds: int) -> Outcome:
    """The whole run on a server that is there and has an installation."""
    with Service(server.url) as service:
        outage = Outage(server, service)
        outage.play(rounds)
    outcome = Outcome(rounds, unseen=outage.unseen, reasons=sorted(outage.health.reasons))
    for client in outage.clients:
        outcome.acknowledged += len(client.acknowledged)
        outcome.repeated += client.answers["try again"] + client.answers["no answer"]
        outcome.unexpected += client.unexpected
    with psycopg.connect(server.url, autocommit=True) as conn:
        compare(conn, outage.clients, outcome)
    return outcome


def compare(conn: psycopg.Connection[Any], clients: list[Client], outcome: Outcome) -> None:
    """What was acknowledged with what is in the tables."""
    rows = conn.execute(f"select payload ->> 'n', id::text from {SCHEMA}.jobs")
    there: dict[str, list[str]] = {}
    for number, job_id in rows:
        there.setdefault(number, []).append(job_id)
    acknowledged = {n: i for client in clients for n, i in client.acknowledged.items()}
    outcome.lost = [n for n, job_id in acknowledged.items() if job_id not in there.get(n, [])]
    outcome.twice = [n for n, ids in there.items() if len(ids) > 1]
    outcome.violations = conn.execute(f"select from {SCHEMA}.violations").rowcount


def main(options: Mapping[str, str]) -> int:
    """As a command."""
    given = argparse.ArgumentParser(prog="python -m proofs.outage")
    given.add_argument("--rounds", type=int, default=30)
    rounds = given.parse_args().rounds
    with Server.temporary(options=options) as server:
        with psycopg.connect(server.url, autocommit=True) as conn:
            migrate(conn, SCHEMA)
            version = conn.info.server_version
        outcome = play(server, rounds)
    found = asdict(outcome)
    for what in ("lost", "twice", "unexpected"):
        for one in found[what][:5]:
            print(f"{what}: {one}", file=sys.stderr)
        found[what] = len(found[what])
    more = {"held": outcome.held, **provenance("make http-outage", version)}
    finish("http-outage", {**found, **more})
    return 0 if outcome.held else 1


if __name__ == "__main__":
    sys.exit(main({}))
