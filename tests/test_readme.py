"""What the documents tell a stranger to do, done."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.stage import Stage

README = Path(__file__).parent.parent / "README.md"


def test_the_example_of_the_readme_runs_as_it_stands(stage: Stage) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    stage.execute("create table charges (order_id int)")
    stage.enqueue("charge", {"order_id": 7}, queue="billing")
    done = subprocess.run(
        [sys.executable, "-c", example],
        env={"FAULTLINE_DATABASE_URL": stage.url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert stage.execute("select order_id from charges") == [(7,)]
    assert stage.execute("select state, result from {schema}.jobs") == [("succeeded", {"ok": True})]


def test_every_make_target_that_the_readme_names_exists() -> None:
    makefile = (README.parent / "Makefile").read_text()
    named = set(re.findall(r"`make ([a-z-]+)", README.read_text()))
    assert {"demo", "test"} <= named
    assert all(re.search(rf"^{target}:.*## ", makefile, re.MULTILINE) for target in named)


def test_the_sql_of_the_operating_page_runs_from_top_to_bottom(stage: Stage) -> None:
    page = (README.parent / "docs" / "operating.md").read_text()
    blocks = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    assert len(blocks) >= 5
    with stage.conn.transaction(force_rollback=True):  # the log-ins belong to the whole server
        for block in blocks:
            stage.conn.execute(block)
