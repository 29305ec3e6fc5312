"""The drawings of docs/pictures. `python -m website.pictures` writes them; a test compares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from website.pictures import places, times
from website.pictures.drawing import Drawing

PICTURES: Final[dict[str, Callable[[], Drawing]]] = {
    "lease-and-fence.svg": times.lease_and_fence,
    "window.svg": times.window,
    "heartbeats.svg": times.heartbeats,
    "failover.svg": times.failover,
    "one-commit.svg": places.one_commit,
    "boundary.svg": places.boundary,
    "states.svg": places.states,
}
