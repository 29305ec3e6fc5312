"""Telemetry never stops a job: what fails in it, ours or a user's exporter, is logged."""

from __future__ import annotations

import logging
from types import TracebackType

log = logging.getLogger("faultline.telemetry")


class _Careful:
    """A block that may fail."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self.failed(error)
        return True

    def failed(self, error: Exception) -> None:
        """For an `except` where a block would cost too much."""
        log.warning("something could not be observed", exc_info=error)


careful = _Careful()
