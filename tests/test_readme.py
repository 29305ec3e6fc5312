"""What the documents tell a stranger to do, done."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from faultline.launcher import Server
from tests.documents import Block, Reader, blocks
from tests.stage import Stage

README = Path(__file__).parent.parent / "README.md"


def test_a_stranger_who_does_what_the_readme_says_gets_what_it_says(tmp_path: Path) -> None:
    """The first app: its file, the commands around it, and the handler with the fenced write."""
    page = README.read_text()
    section = page[page.index("## A first app") : page.index("## The two commands")]
    found = [block for block in blocks(README) if block.text in section]
    setup, app, commands, fenced = found
    assert setup.text.startswith("$ source .venv/bin/activate ")
    assert "\ndemo: .venv/.demo ## " in (README.parent / "Makefile").read_text(), "which makes it"
    assert len(app.text.splitlines()) < 15
    tmp_path.chmod(0o755)
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "FAULTLINE_HOME": str(tmp_path / "home"),
        "HOME": str(tmp_path),
    }
    try:
        with Reader(README, tmp_path, environment) as reader:
            reader.do(app)
            reader.do(commands)
            together = app.text.removeprefix("# app.py\n") + fenced.text
            reader.do(Block("python", together.replace("__main__", "__nobody__"), fenced.line))
    finally:
        Server(tmp_path / "home").stop()


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
