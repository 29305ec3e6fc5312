"""Columns of ids can be sent on any connection, however old it is.

In processes of their own: a connection knows what was known at its first statement, and here all is
known already.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.stage import Stage

SYNC = """
conn = psycopg.connect(url)
conn.execute("select 1")
charge.options(connection=conn).enqueue_many([{"n": 1}, {"n": 2}])
conn.commit()
"""
ASYNC = """
async def main():
    conn = await psycopg.AsyncConnection.connect(url)
    await conn.execute("select 1")
    await charge.options(connection=conn).aenqueue_many([{"n": 1}, {"n": 2}])
    await conn.commit()

asyncio.run(main())
"""
BEFORE = """
import asyncio, sys
import psycopg
from faultline import App

url = sys.argv[1]
app = App(url)

@app.task
def charge(n: int) -> None: ...

assert "faultline.columns" not in sys.modules
"""


CONNECTED = """
import sys
from faultline.connect import connect

conn = connect(sys.argv[1], schema=None)
conn.execute("select 1")

from uuid import uuid4
from faultline.protocol import Protocol

Protocol().enqueue_many("charge", [uuid4(), uuid4()], [{}, {}]).run(conn)
"""


def test_a_connection_that_is_older_than_the_verbs_knows_columns(stage: Stage) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CONNECTED, stage.url], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("code", [SYNC, ASYNC], ids=["sync", "async"])
def test_a_connection_that_was_used_before_the_first_bulk_enqueue_can_send_it(
    stage: Stage, code: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEFORE + code, stage.url],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert stage.value("select count(*) from {schema}.job") == 2
