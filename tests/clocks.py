"""A wrong clock for one process.

The library is preloaded without its wrapper command: a wrapper that is killed leaves its named
semaphore behind, and the next one whose pid is the same refuses to start.
"""

from pathlib import Path

import pytest

LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
needs_a_wrong_clock = pytest.mark.skipif(LIBRARY is None, reason="faketime is not installed")


def off_by(shift: str) -> list[str]:
    """What to put before a command whose clock shall be off, by "+30h" say."""
    return ["env", f"LD_PRELOAD={LIBRARY}", f"FAKETIME={shift}"]
