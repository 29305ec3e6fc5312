"""A process that claims many jobs and holds their leases until it is killed.

python -m faultline.drills.claimant WORKER JOBS       prints how many it has, and waits
"""

from __future__ import annotations

import sys

from faultline.drills.app import app
from faultline.protocol import Protocol


def main() -> None:
    """Claim, say so, and wait for the end."""
    worker, jobs = sys.argv[1], int(sys.argv[2])
    verbs = Protocol(app.schema)
    with app.connect() as conn:
        lanes = [lane.lane for lane in verbs.lanes(["default"]).run(conn)]
        leases = verbs.claim(worker, lanes, max_jobs=jobs).run(conn)
        print(len(leases), flush=True)  # noqa: T201 - this is how it answers
        sys.stdin.read()


if __name__ == "__main__":
    main()
