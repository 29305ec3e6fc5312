"""Telemetry never stops a job: what fails in it, a user's sampler or exporter, is logged."""

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
        log.warning("a job could not be traced", exc_info=error)
        return True


careful = _Careful()
