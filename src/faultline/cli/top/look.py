"""A frame: all that `faultline top` shows, at one moment.

Asked for as the service asks: the views as reader, the server's statistics as the login, with
statements that are cut off in time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict

from faultline import conditions
from faultline.access import Access
from faultline.app import App
from faultline.cli.jobs.story import Evidence
from faultline.conditions import Counters
from faultline.config import DEFAULT_SCHEMA
from faultline.observing import observe
from faultline.reading import Reading, Record
from faultline.risk import Limits, Risk, assess

LOOK_SECONDS = 1.0
RATE_SECONDS = 60.0
MAX_ROWS = 200


@dataclass(frozen=True, slots=True)
class Frame:
    """What was seen."""

    now: datetime
    risk: Risk
    rate_seconds: float
    """Over how many seconds the rates are; 0: there are none yet."""
    per_second: Mapping[str, float] | None
    queues: Sequence[Record]
    leases: Sequence[Record]
    more_leases: bool
    workers: Sequence[Record]
    refusals: Sequence[Record]
    jobs: Sequence[Record] | None = None
    """The newest of the state that was asked for; None, if nobody asked."""

    def facts(self) -> dict[str, Any]:
        """For a machine; the names are those of the service's routes."""
        return {
            "now": self.now,
            "risk": asdict(self.risk),
            "throughput": {"seconds": self.rate_seconds, "per_second": self.per_second},
            "queues": self.queues,
            "leases": self.leases,
            "more_leases": self.more_leases,
            "workers": self.workers,
            "refusals": self.refusals,
        }


class Looks:
    """Looks at one installation, one after the other."""

    def __init__(self, app: App, limits: Limits | None = None) -> None:
        self.access = Access(app)
        self.limits = limits or Limits()
        self._samples: deque[Counters] = deque(maxlen=round(2 * RATE_SECONDS / LOOK_SECONDS))

    @property
    def where(self) -> str:
        """Which installation this is, without a password."""
        app = self.access.app
        parts = conninfo_to_dict(app.url)
        schema = "" if app.schema == DEFAULT_SCHEMA else f" ({app.schema})"
        return f"{parts.get('dbname', '')}@{parts.get('host', 'localhost')}{schema}"

    def frame(self, *, jobs: bool = False, state: str | None = None) -> Frame:
        """Look; with `jobs`, at the newest of this state too."""
        schema = self.access.app.schema
        self._samples.append(self.access.server(lambda conn: conditions.counters(conn, schema)))

        def ask(reading: Reading, conn: Connection[Any]) -> dict[str, Any]:
            return {
                "now": reading.now(conn),
                "queues": reading.depths(conn),
                "leases": reading.leases(conn, MAX_ROWS + 1),
                "workers": reading.workers(conn),
                "refusals": reading.latest_refusals(conn, limit=MAX_ROWS),
                "jobs": reading.jobs(conn, state=state, limit=MAX_ROWS) if jobs else None,
            }

        seen = self.access.read(ask)
        leases = seen.pop("leases")
        rates = conditions.per_second(self._samples, RATE_SECONDS)
        return Frame(
            risk=assess(observe(self.access, self.limits), self.limits),
            rate_seconds=rates[0] if rates else 0.0,
            per_second=rates[1] if rates else None,
            leases=leases[:MAX_ROWS],
            more_leases=len(leases) > MAX_ROWS,
            **seen,
        )

    def evidence(self, job_id: UUID) -> Evidence | None:
        """Everything about one job."""
        return self.access.read(lambda reading, conn: Evidence.read(reading, conn, job_id))

    def close(self) -> None:
        """Let go of the connections."""
        self.access.close()
