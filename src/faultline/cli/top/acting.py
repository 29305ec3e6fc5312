"""What the keys of `faultline top` do to one job: the operator's verbs. Each answers with a
sentence that says what was done, or why nothing was."""

from __future__ import annotations

from uuid import UUID

from faultline.access import Access

_REASON = "from faultline top"


def retry(access: Access, job_id: UUID) -> str:
    """Now: a scheduled job is due, a failed or quarantined one has another life."""
    due, requeued = access.retry([job_id], _REASON)
    if due:
        return f"job {job_id} is due now"
    if requeued:
        return f"job {job_id} has another life"
    found = access.act("operator", access.producer.verbs.status(job_id))
    if found is None:
        return f"there is no job {job_id} any more"
    return f"job {job_id} is {found.state}: retry is for scheduled, failed and quarantined ones"


def cancel(access: Access, job_id: UUID) -> str:
    """End it, if it waits; ask it to stop, if it runs."""
    for job in access.act("operator", access.producer.verbs.cancel([job_id], _REASON)):
        match job.verdict:
            case "cancelled":
                return f"job {job_id} is cancelled"
            case "requested":
                return f"job {job_id} runs, and is asked to stop"
        return f"job {job_id} had ended already"
    return f"there is no job {job_id} any more"
