"""An environment with nothing in it but what is installed there, and commands run in it."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

PATIENCE_SECONDS = 600


class Environment:
    """A virtual environment of its own; pip stays outside."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.python = folder / "bin" / "python"
        self.faultline = folder / "bin" / "faultline"

    def install(self, requirement: str) -> None:
        """A wheel, with or without extras, and what it needs."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet"]
        done = subprocess.run(
            [*pip, "--disable-pip-version-check", requirement],
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{requirement} cannot be installed:\n{done.stdout}{done.stderr}")

    def installed(self) -> dict[str, str]:
        """Every distribution there, with its version."""
        code = (
            "import importlib.metadata as m\n"
            "for d in m.distributions(): print(d.metadata['Name'].lower(), d.version)"
        )
        said = subprocess.run(
            [self.python, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        return dict(line.split(" ") for line in said.splitlines())

    def run(
        self, *arguments: str, folder: Path, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """`faultline …`, in this folder, with nothing of ours in its surroundings."""
        return subprocess.run(
            [self.faultline, *arguments],
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8", **environment},
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
