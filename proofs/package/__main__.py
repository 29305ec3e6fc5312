"""`make package-check`: build twice and compare, build from the sdist and compare, look inside,
install with every extra in an empty environment, and run the demo there from an empty directory.

The last line is one JSON object; exits with 1 if anything is wrong with it.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from proofs.package.building import Built, build, wheel_of_sdist
from proofs.package.contents import in_sdist, in_wheel
from proofs.package.empty import Environment
from proofs.stopwatch import finish


def main() -> int:
    """Everything, in a folder that goes again."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        folder.chmod(0o755)  # root's embedded server is run by somebody else
        built = build(folder / "first")
        complaints = [*in_wheel(built.wheel), *in_sdist(built.sdist), *compared(built, folder)]
        complaints += rendered(built)
        summary = demonstrated(built.wheel, folder)
        figures = {
            "wheel_sha256": sha256(built.wheel),
            "sdist_sha256": sha256(built.sdist),
            "complaints": len(complaints),
            "demo": summary is not None and summary["safe_for_controlled_release_validation"],
        }
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    finish("package-check", figures)
    return 0 if not complaints and figures["demo"] else 1


def sha256(path: Path) -> str:
    """As hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def compared(built: Built, folder: Path) -> list[str]:
    """Built again, and built from the sdist: the same bytes."""
    say("building again, and from the sdist …")
    again = build(folder / "second")
    found = [
        f"{one.name} is not the same when it is built again"
        for one, other in ((built.wheel, again.wheel), (built.sdist, again.sdist))
        if sha256(one) != sha256(other)
    ]
    if sha256(wheel_of_sdist(built.sdist, folder / "third")) != sha256(built.wheel):
        found.append("the wheel built from the sdist is another one")
    return found


def rendered(built: Built) -> list[str]:
    """Whether PyPI would show the readme."""
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", built.wheel, built.sdist],
        capture_output=True,
        text=True,
        check=False,
    )
    return [] if checked.returncode == 0 else [checked.stdout.strip()]


def demonstrated(wheel: Path, folder: Path) -> dict[str, Any] | None:
    """`pip install 'faultline-queue[all]'`, then `faultline demo` from an empty directory."""
    say("installing it with every extra in an empty environment …")
    environment = Environment(folder / "all")
    environment.install(f"{wheel}[all]")
    empty = folder / "empty"
    empty.mkdir()
    say("faultline demo, from an empty directory …")
    demo = environment.run("demo", "--json", folder=empty)
    sys.stderr.write(demo.stderr)
    if demo.returncode != 0:
        return None
    summary: dict[str, Any] = json.loads(demo.stdout)
    written = json.loads((empty / "reports/latest/benchmark_summary.json").read_text())
    return summary if written == summary else None


def say(words: str) -> None:
    """Where it is."""
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
