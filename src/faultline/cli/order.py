"""The order in which `faultline --help` lists the commands: as they are met, not by kind."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

ORDER = (
    "demo",
    "dev",
    "worker",
    "enqueue",
    "jobs",
    "queues",
    "workers",
    "top",
    "guard",
    "api",
    "inspector",
    "reconcile",
    "retention",
    "doctor",
    "drill",
    "migrate",
    "epoch",
    "rescue",
    "db",
)


class InOrder(TyperGroup):
    """A group whose commands stand in this order; without it typer lists groups last."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's signature
        """The names; one that is not in the order comes last."""
        return sorted(self.commands, key=lambda name: (*ORDER, name).index(name))
