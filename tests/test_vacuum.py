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


def test_a_page_of_leases_keeps_little_room_for_renewals(stage: Stage) -> None:
    """Most are never renewed, and until vacuum has come there are as many as jobs have ended."""
    jobs = 2_000
    stage.verbs.enqueue_many("work", [None] * jobs, [{}] * jobs).run(stage.conn)
    assert len(stage.claim("host-7:12345:40a5c4eb", jobs)) == jobs
    pages = int(stage.value("select pg_relation_size('{schema}.lease') / 8192"))
    assert 47 < jobs / pages < 56  # 43 with the room that there used to be, 61 with none
