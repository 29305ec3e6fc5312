"""The peers, in the order of the table; each module says how its peer was set, and why so."""

from __future__ import annotations

from importlib import import_module

from proofs.duel.peer import Peer

MODULES = (
    "faultline",
    "naive",
    "procrastinate",
    "pgqueuer",
    "chancy",
    "dbos",
    "pgboss",
    "graphile",
    "celery",
    "bullmq",
)


def peers() -> list[Peer]:
    """Every peer there is an adapter for."""
    found: list[Peer] = []
    for module in MODULES:
        found += import_module(f"proofs.duel.peers.{module}").PEERS
    return found
