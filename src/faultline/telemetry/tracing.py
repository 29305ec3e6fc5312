"""Spans, where the application has OpenTelemetry."""

from __future__ import annotations

from faultline.observer import Observer


class Tracing(Observer):
    """From enqueue to settle."""
