"""DBOS: without its paid Conductor, a workflow is recovered when its executor is started anew.

So B is the restarted executor, with the executor id of A, as when a hung machine is replaced. A
step may be plain code, or a transaction of a datasource; both are documented, so both are shown.
"""

from proofs.duel.peer import Peer
from proofs.peers.pins import DBOS


def _dbos(name: str, variant: str, settings: str) -> Peer:
    return Peer(
        name=name,
        environment=DBOS,
        script="dbos_worker.py",
        settings=settings,
        recovery="start of another executor with the same executor_id, right after the stall",
        finished="select exists (select from dbos.workflow_status where status = 'SUCCESS')",
        variant=variant,
        late_successor=True,
    )


PEERS = [
    _dbos("DBOS, plain step", "plain", "the row in @DBOS.step"),
    _dbos("DBOS, transaction step", "transaction", "the row in @datasource.transaction"),
]
