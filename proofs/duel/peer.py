"""What the duel has to know about one peer.

A peer is data and a script: the script (scripts/) has two verbs, `prepare` (tables, and one job)
and `work` (the peer's real worker, one job at a time, until it is killed). To add one, write a
script and a module in peers/ with its PEERS, and name the module in peers/__init__.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from proofs.peers.environment import Environment


@dataclass(frozen=True)
class Peer:
    """One row of the table; frozen, so that a run cannot change the terms of the next."""

    name: str
    environment: Environment
    script: str
    settings: str  # what was set, in the peer's own words
    recovery: str  # by what documented means B gets the job, and what was done to hasten it
    finished: str | None = None  # SQL that is true once B's success is recorded
    expire: str | None = None  # SQL that makes the claim old, where waiting would take hours
    variant: str = ""
    redis: bool = False
    late_successor: bool = False  # B is started after the stall, since its start is the recovery
    patience_seconds: float = 30.0
    linger_seconds: float = 3.0  # after A's write: for its completion, its log, and a third run
