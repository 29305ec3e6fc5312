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
        log.warning("something could not be observed", exc_info=error)
        return True


careful = _Careful()
