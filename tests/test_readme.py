"""What the documents tell a stranger to do, done."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from faultline.launcher import Server
from tests.stage import Stage

README = Path(__file__).parent.parent / "README.md"


def test_a_stranger_who_does_what_the_readme_says_gets_what_it_says(tmp_path: Path) -> None:
    """The console lines and the Python between them, literally, in one shell."""
    text = README.read_text()
    section = text[text.index("## What there is today") : text.index("## The guarantee")]
    script = ["set -e"]
    for language, body in re.findall(r"```(console|python)\n(.*?)```", section, re.DOTALL):
        if language == "python":
            script.append(f".venv/bin/python - <<'PYTHON'\n{body}\nPYTHON")
        else:
            script += [line.removeprefix("$ ") for line in body.splitlines()]
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parent.parent)
    tmp_path.chmod(0o755)
    home = {"FAULTLINE_HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}
    try:
        done = subprocess.run(
            ["bash", "-c", "\n".join(script)],
            cwd=tmp_path,
            env=home,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert re.search(r"succeeded \|\s+1 \| \{\"ok\": true\}", done.stdout)
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
