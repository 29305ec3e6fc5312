"""The scenarios of `make bench`, in the order of the table; each module says what it counts."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from bench.arena import Ground
from bench.blocks import Say
from bench.plan import Plan
from bench.rows import Row

Scenario = Callable[[Ground, Plan, Say], list[Row]]

NAMES = (
    "drain",
    "transaction",
    "enqueue",
    "beside",
    "pickup",
    "crowded",
    "suspending",
    "pinned",
    "idle",
    "fence",
    "long",
)


def scenario(name: str) -> Scenario:
    """The one of this name."""
    found: Scenario = import_module(f"bench.scenarios.{name}").run
    return found
