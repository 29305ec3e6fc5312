"""Where a figure comes from: the command, version, commit and server that made it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from faultline import __version__

_HERE = Path(__file__).parent


def commit() -> str | None:
    """Of the checkout that this is, if it is one; `-dirty` if it is not quite that.

    An installed package is none, also where its environment stands inside somebody's checkout.
    """
    root = _HERE.parent.parent
    if _HERE.parent.name != "src" or not (root / ".git").exists() or shutil.which("git") is None:
        return None
    asked = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude=*"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.stdout.strip() or None


def provenance(command: str, server_version: int) -> dict[str, Any]:
    """To be written beside every figure; `server_version` is libpq's number, e.g. 180001."""
    return {
        "command": command,
        "version": __version__,
        "commit": commit(),
        "postgresql": f"{server_version // 10_000}.{server_version % 10_000}",
    }
