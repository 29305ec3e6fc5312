"""How often a worker says that it is alive, and from when on its silence means something."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

BEAT_SECONDS: Final = 10.0
# A beat may come as late as its call may take, which is 10 s: after 25 s the next one is missing
# too. Sooner would be a slow database's false alarm, and later nobody would look before the leases,
# of 30 s by default, are gone.
SILENT_SECONDS: Final = 25.0


def is_silent(worker: Mapping[str, Any]) -> bool:
    """Whether a worker of the view `workers` should have been heard of."""
    return float(worker["silent_seconds"]) > SILENT_SECONDS
