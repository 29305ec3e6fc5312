"""Commands that need more than the core: what to say when it is not installed."""

from __future__ import annotations

from faultline.errors import FaultlineError


def not_installed(error: ModuleNotFoundError, extra: str, *packages: str) -> FaultlineError:
    """What to install; or the error itself again, if it is not about one of these packages."""
    if (error.name or "").partition(".")[0] not in packages:
        raise error
    return FaultlineError(
        f"this needs {error.name}, which is not installed: pip install 'faultline-queue[{extra}]'"
    )
