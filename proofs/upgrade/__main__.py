"""`make upgrade-check`: on a server of its own; the last line is one JSON object."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from faultline.config import DEFAULT_SCHEMA, Settings
from faultline.launcher import Server
from faultline.provenance import provenance
from proofs.race import ended_cleanly
from proofs.stopwatch import finish
from proofs.upgrade.play import Play
from proofs.upgrade.previous import current, previous, why_not


def check(settings: Settings) -> int:
    """One upgrade, played and judged."""
    if (reason := why_not()) is not None:
        print(f"the previous code cannot be had: {reason}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        old = previous(folder)
        print(
            f"from {old.name}, schema {old.schema_version}, to this checkout, schema "
            f"{current().schema_version} …",
            file=sys.stderr,
        )
        with Server.temporary(binaries=settings.binaries) as server:
            outcome = Play(server.url, DEFAULT_SCHEMA, folder, old, current()).run()
            version = server.binaries.version
    for sentence in outcome.wrong:
        print(f"not so: {sentence}", file=sys.stderr)
    origin = provenance("make upgrade-check", 0) | {"postgresql": version}
    finish("upgrade-check", {**asdict(outcome), "from": old.name, **origin})
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(ended_cleanly(check))
