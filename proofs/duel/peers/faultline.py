"""Faultline: in `ctx.transaction()`, its first choice for a handler's rows; and, as with the peers,
on a plain connection of the handler's own, which nothing can fence (a guard on the table would).
"""

from proofs.duel.peer import Peer
from proofs.peers.environment import Here


def _faultline(name: str, variant: str, settings: str) -> Peer:
    return Peer(
        name=name,
        environment=Here(),
        script="faultline_worker.py",
        settings=f"lease_seconds=1; {settings}",
        recovery="by itself, once the lease has expired",
        finished="select exists (select from faultline.jobs where state = 'succeeded')",
        variant=variant,
    )


PEERS = [
    _faultline("Faultline", "fenced", "the row in ctx.transaction()"),
    _faultline("Faultline, plain connection", "plain", "the row on a connection of its own"),
]
