"""Wheel and sdist, the same bytes from the same commit and hatchling, whenever."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Built:
    """The two files that are released."""

    wheel: Path
    sdist: Path


def build(out: Path) -> Built:
    """Both, from this checkout."""
    return Built(_build("wheel", ROOT, out), _build("sdist", ROOT, out))


def wheel_of_sdist(sdist: Path, out: Path) -> Path:
    """What somebody gets who builds from the sdist."""
    with tarfile.open(sdist) as archive:
        # Python 3.11 before 3.11.4 has no filters; from 3.14 on this one is the default.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(out)
    return _build("wheel", out / sdist.name.removesuffix(".tar.gz"), out)


def epoch() -> str | None:
    """The moment that every file in them bears: the commit's, where there is one."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        return None
    asked = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return asked.stdout.strip()


def _build(what: str, source: Path, out: Path) -> Path:
    """With the backend that is installed here: nothing is fetched."""
    command = [sys.executable, "-m", "build", "--no-isolation", f"--{what}", "--outdir", str(out)]
    moment = epoch()
    built = subprocess.run(
        [*command, str(source)],
        env={**os.environ, **({"SOURCE_DATE_EPOCH": moment} if moment else {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode != 0:
        raise RuntimeError(f"the {what} of {source} was not built:\n{built.stdout}{built.stderr}")
    (found,) = out.glob("*.whl" if what == "wheel" else "*.tar.gz")
    return found


if __name__ == "__main__":
    made = build(Path("dist"))
    print(json.dumps({"wheel": str(made.wheel), "sdist": str(made.sdist)}))
