"""The playground, in a process that has imported OpenTelemetry and set nothing up."""

from __future__ import annotations

import opentelemetry.trace  # noqa: F401

from tests.playground import app

__all__ = ["app"]
