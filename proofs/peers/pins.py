"""Which versions of the peers are run, each in an environment of its own.

npm here has no rrule-temporal 2.2.8, which pg-boss 12.38.0 asks for: 2.2.7 stands in. It reads
recurrence rules of schedules, and nothing here has one.
"""

from proofs.peers.environment import Node, Python

_PSYCOPG = "psycopg[binary]==3.3.8"
_PG = {"pg": "8.23.1"}

PROCRASTINATE = Python(("procrastinate==3.10.0", _PSYCOPG))
PGQUEUER = Python(("pgqueuer[asyncpg]==1.6.0", _PSYCOPG))
CHANCY = Python(("chancy[cli]==0.26.0", _PSYCOPG))
DBOS = Python(("dbos==3.3.0", _PSYCOPG))
CELERY = Python(("celery[redis]==5.7.0", _PSYCOPG))
GRAPHILE = Node({"graphile-worker": "0.18.0", **_PG})
PGBOSS = Node({"pg-boss": "12.38.0", **_PG}, {"rrule-temporal": "2.2.7"})
BULLMQ = Node({"bullmq": "6.7.0", "ioredis": "6.0.0", **_PG})
