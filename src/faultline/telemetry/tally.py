"""What one process has counted."""

from __future__ import annotations

from collections.abc import Mapping

from faultline.observer import Observer


class Tally(Observer):
    """Plain numbers."""

    def enqueued(self, task: str, counts: Mapping[str, int]) -> None:
        """So many jobs were sent."""
