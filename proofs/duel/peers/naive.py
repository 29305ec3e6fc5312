"""A naive lease queue of our own (src/faultline/demo/naive.py): all but a fence."""

from proofs.duel.peer import Peer
from proofs.peers.environment import Here

PEERS = [
    Peer(
        name="naive lease queue",
        environment=Here(),
        script="naive_worker.py",
        settings="lease 1 s; the row and the completion in one transaction",
        recovery="by itself, once the lease has expired",
        finished="select exists (select from faultline_naive.job where state = 'done')",
    )
]
