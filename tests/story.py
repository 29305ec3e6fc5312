"""What happened, in words: a story of numbered jobs, checked line by line against the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn
from uuid import UUID

import psycopg
from psycopg import Connection

from faultline.call import Call, translated_errors
from faultline.errors import FaultlineError, IdempotencyConflict, StaleLease
from tests.oracle import EPOCH_BITS, Attempt, Fact, Oracle

LOOK = """
select array(select jsonb_build_array(j.id, j.state, j.fencing_token, j.attempts, j.crashes,
                                      j.snoozes)
                 || case when l.job_id is null then '[]' else jsonb_build_array(
                        l.worker, l.expires_at > clock_timestamp(), l.started,
                        l.cancel_reason is not null) end
               from faultline.jobs j left join faultline.leases l on l.job_id = j.id),
       array(select jsonb_build_array(a.job_id, a.fencing_token, a.outcome)
               from faultline.attempts a),
       array(select jsonb_build_array(r.job_id, r.stale_token, r.current_token, r.reason,
                                      r.operation) from faultline.refusals r),
       array(select jsonb_build_array(e.job_id, e.token, e.kind) from effect e)
"""


class Story:
    """What happened so far; each line is checked against the oracle when it is told."""

    def __init__(self, conn: Connection[Any], oracle: Oracle) -> None:
        self.conn = conn
        self.oracle = oracle
        self.lines: list[str] = []
        self.interrupted = False  # a step has begun and was not told to its end

    def ask(self, deed: str, call: Call[Any] | Callable[[], Any]) -> Any:
        """What the server answers or refuses; any other error ends the story."""
        self.interrupted = True
        try:
            with translated_errors("faultline"):
                return call.run(self.conn) if isinstance(call, Call) else call()
        except (StaleLease, IdempotencyConflict) as refused:
            return refused
        except (psycopg.Error, FaultlineError) as error:
            self.lines.append(f"{deed} → {str(error).splitlines()[0]}")
            self.stop("no error was expected")

    def tell(self, line: str, answer: object = None, expected: object = None) -> None:
        """One line; then compare the answer, and all there is to see, with the oracle."""
        self.interrupted = True
        self.lines.append(line)
        if answer != expected:
            self.stop(f"the answer was {answer}, expected was {expected}")
        jobs, endings, refusals, effects = self.look()
        known = self.oracle.jobs.values()
        self.compare("jobs", jobs, [job.seen() for job in known])
        ended = [
            (job.number, token, job.endings[token][0]) for job in known for token in job.endings
        ]
        self.compare("endings", endings, ended)
        self.compare("refusals", refusals, self.oracle.refusals)
        self.compare("effects", effects, self.oracle.effects)
        done = [number for number, _, kind in effects if kind == "done"]
        self.compare("effects of successes", done, [j[0] for j in jobs if j[1] == "succeeded"])
        self.interrupted = False

    def look(self) -> list[list[Fact]]:
        row = self.conn.execute(LOOK).fetchone()
        assert row
        number_of = self.oracle.number_of
        return [[(number_of(UUID(fact[0])), *fact[1:]) for fact in facts] for facts in row]

    def compare(self, what: str, found: Sequence[Any], expected: Sequence[Any]) -> None:
        if sorted(found) != sorted(expected):
            surplus = [fact for fact in found if fact not in expected] or found
            missing = [fact for fact in expected if fact not in found] or expected
            self.stop(f"{what}: the server has {surplus}, expected was {missing}")

    def stop(self, why: str) -> NoReturn:
        lines = "".join(f"\n  {n}. {line}" for n, line in enumerate(self.lines, 1))
        raise AssertionError(f"the server and the oracle disagree{lines}\n  {why}")

    def attempts(self, attempts: Iterable[Attempt]) -> str:
        return ", ".join(
            f"job {a.number} with {'stale ' * bool(self.oracle.reason(a))}token {digits(a.token)}"
            for a in attempts
        )

    def jobs(self, numbers: Iterable[int]) -> str:
        return ", ".join(f"job {number}" for number in numbers) or "nothing"

    def facts(self, facts: Iterable[Fact], otherwise: str = "nothing") -> str:
        return ", ".join(f"job {number} {said}" for number, said in facts) or otherwise

    def verdict(self, stale: Iterable[Fact]) -> str:
        """What became of a batch: who was refused, and why."""
        refused = [
            (number, f"token {digits(token)} refused ({why})") for number, token, _, why in stale
        ]
        return self.facts(refused, otherwise="accepted")


def digits(token: int) -> str:
    """Tokens after an epoch are long: 16·1 is the second of epoch 16."""
    epoch, rest = divmod(token, 1 << EPOCH_BITS)
    return f"{epoch}·{rest}" if epoch else str(rest)
