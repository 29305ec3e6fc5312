"""Graphile Worker: a lock lasts four hours, so the duel makes it that old in the database.

A sweep ends old locks, every 8 to 10 minutes by default; here each second. Heartbeats are a part
of its paid edition, which is not tried.
"""

from proofs.duel.peer import Peer
from proofs.peers.pins import GRAPHILE

PEERS = [
    Peer(
        name="Graphile Worker",
        environment=GRAPHILE,
        script="graphile_worker.mjs",
        settings="min/maxResetLockedInterval=1 s; heeds helpers.abortSignal",
        recovery="its sweep of locks older than 4 h; locked_at was moved back by 5 h",
        finished="select not exists (select from graphile_worker._private_jobs)",
        expire="update graphile_worker._private_jobs "
        "set locked_at = locked_at - interval '5 hours' where locked_at is not null",
    )
]
