"""A producer process that is killed in the middle of a submission, or survives it.

    python -m faultline.drills.submitter       reads one JSON object a line, answers with one

`pause` says where it stops and says so: with the job enqueued but not committed, or committed but
nobody told. It goes on when it reads another line.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from faultline.drills.app import app
from faultline.errors import FaultlineError


def main() -> None:
    """Until its input ends."""
    with app.connect(autocommit=False) as conn:
        for line in sys.stdin:
            order: dict[str, Any] = json.loads(line)
            pause = order["pause"]
            try:
                sender = app.tasks["pay"].options(connection=conn, **order["options"])
                job = sender.enqueue(**order["arguments"])
                if pause == "uncommitted":
                    _wait(pause)
                conn.commit()
                if pause == "committed":
                    _wait(pause)
                _say({"job_id": str(job.id)})
            except FaultlineError as error:
                conn.rollback()
                _say({"error": type(error).__name__})


def _wait(pause: str) -> None:
    _say({"paused": pause})
    sys.stdin.readline()


def _say(words: dict[str, Any]) -> None:
    print(json.dumps(words), flush=True)  # noqa: T201 - this is how it answers


if __name__ == "__main__":
    main()
