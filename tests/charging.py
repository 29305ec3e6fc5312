"""An app on a test's own database with a table of charges, which no queue owns."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from faultline import App
from faultline.testing import Testing

TABLES = "create table charge (job_id uuid, token bigint, note text)"
INSERT = "insert into charge values (%s, %s, %s)"


@pytest.fixture
def app() -> App:
    return App("postgresql://nowhere.invalid/")


@pytest.fixture
def testing(app: App, database: str) -> Iterator[Testing]:
    with app.testing(database=database) as testing:
        testing.connection.execute(TABLES)
        yield testing


def notes(testing: Testing) -> list[str]:
    rows = testing.connection.execute("select note from charge order by note").fetchall()
    return [row[0] for row in rows]


def events(testing: Testing) -> list[str]:
    return [event.event for event in testing.events]
