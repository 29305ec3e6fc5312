"""Whether the invariants hold, as last seen: for the metrics, and for the page of the dashboard.

The view `violations` reads every table, so nobody who scrapes waits for it: a scrape that finds the
last check old begins another beside it, and tells what is known. A check that could not be made
changes nothing of that, so that its age shows. Each service checks for itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from faultline import script
from faultline.access import Access
from faultline.errors import FaultlineError, NotPermitted
from faultline.reading import Reading, Record

EVERY_SECONDS = 600.0
CHECK_SECONDS = 45  # less than what the risk calls a pinned snapshot
MOST = 1000  # rows that are counted

log = logging.getLogger("faultline.service")


@dataclass(frozen=True, slots=True)
class Checked:
    """What the last check that could be made has found."""

    at: float
    """Since 1970, by the clock of this process; 0: none could be made so far."""
    broken: Mapping[str, int]


class Invariants:
    """The last check, and who makes the next."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._lock = threading.Lock()
        self._due = 0.0
        self._beside: threading.Thread | None = None
        self.last: Checked | None = None

    @property
    def busy(self) -> bool:
        """Whether a check is being made beside."""
        return self._beside is not None and self._beside.is_alive()

    def begin(self) -> bool:
        """Have them checked beside, if it is time; whether it was."""
        with self._lock:
            if self.busy or time.monotonic() < self._due:
                return False
            self._due = time.monotonic() + EVERY_SECONDS
            # Not of a pool: at its end the process does not wait for it.
            self._beside = threading.Thread(
                target=self._try, name="faultline-invariants", daemon=True
            )
            self._beside.start()
        return True

    def check(self) -> list[Record]:
        """Check them now, as any other question: the rows that break one, so many at most."""
        return self._seen(self._access.read(_ask))

    def _seen(self, rows: list[Record]) -> list[Record]:
        found = Counter(str(row["invariant"]) for row in rows)
        names = script.invariants()  # those that hold are told, too: a line that is 0 can rise
        self.last = Checked(time.time(), {**dict.fromkeys(names, 0), **found})
        return rows

    def _try(self) -> None:
        try:
            # 10.5 s for a million jobs just written, without parallel processes.
            self._seen(self._access.study(_ask, CHECK_SECONDS))
        except NotPermitted:  # a login that may only enqueue: others check
            return
        except Exception as error:  # whatever it is: the next one is made in its time
            known = isinstance(error, FaultlineError)
            log.warning("invariants not checked: %s", error if known else type(error).__name__)
            if self.last is None:
                self.last = Checked(0.0, {})


def _ask(reading: Reading, conn: Connection[Any]) -> list[Record]:
    return reading.violations(conn, MOST)
