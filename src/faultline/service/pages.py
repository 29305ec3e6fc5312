"""A page of jobs: what is found within a moment, and where to go on."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

from psycopg import Connection

from faultline.access import Access
from faultline.listing import Wanted
from faultline.reading import Reading
from faultline.service import models

LOOK_SECONDS = 0.1  # for how long a request looks for jobs that are rare


def page_of_jobs(here: Access, wanted: Wanted, cursor: UUID | None, limit: int) -> models.Jobs:
    """The newest that match and are older than the cursor."""

    def ask(reading: Reading, conn: Connection[Any]) -> models.Jobs:
        until = time.monotonic() + LOOK_SECONDS
        ids: list[UUID] = []
        following = None
        # One more than is shown: then it is known whether there is another page.
        for look in reading.looks(conn, wanted, cursor, limit + 1):
            ids += look.ids
            following = look.older_than
            if time.monotonic() > until:
                break
        if len(ids) > limit:
            ids = ids[:limit]
            following = ids[-1]
        rows = reading.overviews(conn, ids, wanted.state)
        return models.Jobs(jobs=[models.Overview(**row) for row in rows], next_cursor=following)

    return here.read(ask)
