"""What vacuum does with the busy tables: it frees their rows, and never cuts them short, since the
lock which that takes stops every claim and every ending, again and again for seconds."""

from __future__ import annotations

import pytest

from tests.stage import Stage

pytestmark = pytest.mark.both_servers


@pytest.mark.parametrize("table", ["ready", "lease", "scheduled", "progress"])
def test_a_busy_table_that_is_empty_again_keeps_its_pages(stage: Stage, table: str) -> None:
    jobs = 2_000
    later = {"delay_seconds": 3600} if table == "scheduled" else {}
    stage.verbs.enqueue_many("work", [None] * jobs, [{}] * jobs, **later).run(stage.conn)
    attempts = []
    if table in ("lease", "progress"):
        attempts = [(lease.job_id, lease.token) for lease in stage.claim("A", jobs)]
    if table == "progress":
        stage.verbs.progress(attempts, [{}] * jobs).run(stage.conn)
    size = f"select pg_relation_size('{{schema}}.{table}')"
    full = stage.value(size)
    assert full > 0
    stage.execute(f"delete from {{schema}}.{table}")
    stage.conn.execute(f"vacuum {stage.schema}.{table}")
    assert stage.value(size) == full
