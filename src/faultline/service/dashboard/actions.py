"""What the buttons do: the operator's verbs, on the jobs that were ticked or on all that match.

Each answers with a sentence that says what was done. A job that cannot be changed in this way is
left as it is, and counted.
"""

from __future__ import annotations

from uuid import UUID

from faultline.access import Access
from faultline.errors import InvalidArgument
from faultline.service.dashboard.stalling import Stalling
from faultline.states import State

MOST = 1000  # jobs by one press of a button
REASON = "from the dashboard"

Fields = dict[str, list[str]]


def change_jobs(here: Access, fields: Fields) -> str:
    """Retry or cancel some jobs."""
    ids = _ticked(fields) or _matching(here, fields)
    if not ids:
        return "no job was chosen: nothing was done"
    match _one(fields, "act"):
        case "retry":
            return _retry(here, ids)
        case "cancel":
            return _cancel(here, ids)
    raise InvalidArgument("there is no such action: retry or cancel")


def _retry(here: Access, ids: list[UUID]) -> str:
    due, requeued = here.retry(ids, REASON)
    done, kept = len(due) + len(requeued), len(ids) - len(due) - len(requeued)
    also = f"; {_jobs(kept)} left alone: neither failed, quarantined nor scheduled" if kept else ""
    return f"{_jobs(done)} will be tried again now{also}"


def _cancel(here: Access, ids: list[UUID]) -> str:
    verdicts = [
        job.verdict for job in here.act("operator", here.producer.verbs.cancel(ids, REASON))
    ]
    ended = verdicts.count("cancelled")
    asked = verdicts.count("requested")
    parts = [f"{_jobs(ended)} cancelled"]
    if asked:
        parts.append(f"{_jobs(asked)} running and asked to stop")
    if kept := verdicts.count("finished"):
        parts.append(f"{_jobs(kept)} had ended already")
    if unknown := len(ids) - len(verdicts):
        parts.append(f"{_jobs(unknown)} not found")
    return "; ".join(parts)


def change_queue(here: Access, fields: Fields) -> str:
    """Pause or resume one."""
    queue, act = _one(fields, "queue"), _one(fields, "act")
    if act not in ("pause", "resume"):
        raise InvalidArgument("there is no such action: pause or resume")
    here.act("operator", here.producer.verbs.pause(queue, paused=act == "pause"))
    if act == "pause":
        return f"queue {queue} is paused: what runs goes on, nothing more is claimed"
    return f"queue {queue} is claimed from again"


def change_worker(stalling: Stalling | None, fields: Fields) -> str:
    """Stall one, or let it go on."""
    given = _one(fields, "pid")
    pid = int(given) if given.isdecimal() and given.isascii() else -1
    if stalling is None or pid not in stalling.stalled():
        raise InvalidArgument("this worker was not started here: only such can be stalled")
    if _one(fields, "act") == "stall":
        stalling.stall(pid)
        return f"process {pid} is stopped in the middle of its work; its leases will expire"
    stalling.resume(pid)
    return f"process {pid} goes on, and does not know what it has missed"


def _ticked(fields: Fields) -> list[UUID]:
    try:
        return [UUID(job_id) for job_id in fields.get("id", [])[:MOST]]
    except ValueError:
        raise InvalidArgument("one of these is not the id of a job") from None


def _matching(here: Access, fields: Fields) -> list[UUID]:
    """All that match, if that was asked for; the oldest first."""
    if "all" not in fields:
        return []
    state = fields.get("state", [""])[0] or None
    if state not in list(State):
        raise InvalidArgument("choose a state first: all jobs are too many")
    queue, task = (fields.get(name, [""])[0] or None for name in ("queue", "task"))
    return here.read(
        lambda reading, conn: reading.job_ids(conn, state=state, queue=queue, task=task, limit=MOST)
    )


def _one(fields: Fields, name: str) -> str:
    return fields.get(name, [""])[0]


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"
