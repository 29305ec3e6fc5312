"""`make contract`: schemathesis against the service, over every operation of its OpenAPI.

A real `faultline api` on a real server, asked what fits its description, what just fits it and what
does not, and long sequences of that. No answer may be a 5xx, have an undocumented status, type or
shape, or accept what the description forbids. schemathesis.toml says what is left out, and why.

The last line on stdout is one JSON object; the exit status is 0 when nothing was found.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg

from faultline.launcher import Server
from faultline.migrate import migrate
from proofs.serving import Service
from proofs.stopwatch import finish

CONFIGURATION = Path(__file__).with_name("schemathesis.toml")


@dataclass(frozen=True, slots=True)
class Tried:
    """What schemathesis says."""

    operations: int
    cases: int
    held: bool
    said: str


def try_all(url: str, *, examples: int, seed: int) -> Tried:
    """So many examples for each operation, from this seed, on the installation there."""
    with Service(url) as service:
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIGURATION)]
        command += ["run", f"{service.address}/openapi.json", "--no-color"]
        command += ["--header", f"Authorization: Bearer {service.token}"]
        command += ["--seed", str(seed), "--max-examples", str(examples)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    return Tried(
        _number(r"Tested: (\d+)", said),
        _number(r"(\d+) generated", said),
        not done.returncode,
        said,
    )


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0


def main() -> int:
    """As a command."""
    options = argparse.ArgumentParser(prog="python -m proofs.contract")
    options.add_argument("--examples", type=int, default=300, help="for each operation")
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    with Server.temporary() as server:
        with psycopg.connect(server.url, autocommit=True) as conn:
            migrate(conn, "faultline")
        tried = try_all(server.url, examples=given.examples, seed=given.seed)
    found = asdict(tried)
    print(found.pop("said"), file=sys.stderr)
    finish("contract", {**found, "seed": given.seed, "examples": given.examples})
    return 0 if tried.held else 1


if __name__ == "__main__":
    sys.exit(main())
