"""How long a proof took: a line on stderr, and `seconds` in the line of JSON that it ends with."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

_BEGAN = time.monotonic()  # of the process: a proof imports this module before it does anything


def finish(proof: str, figures: Mapping[str, Any]) -> None:
    """Print the proof's figures, and how many seconds it has run."""
    seconds = round(time.monotonic() - _BEGAN, 1)
    print(f"{proof} took {seconds} s", file=sys.stderr, flush=True)
    print(json.dumps({**figures, "seconds": seconds}), flush=True)
