"""`faultline` run as a user runs it: a process, its exit status and what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def faultline(*arguments: str, home: Path, status: int = 0, **environment: str) -> str:
    """What it printed; with a status other than 0, what it complained about on stderr."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-m", "faultline", *arguments],
        env={**kept, "FAULTLINE_HOME": str(home), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr if status else done.stdout


def refusal(*arguments: str, home: Path, **environment: str) -> str:
    """The one sentence with which the command says no."""
    said = faultline(*arguments, home=home, status=1, **environment)
    assert said.startswith("faultline: "), said
    assert said.count("\n") == 1, said
    return said
