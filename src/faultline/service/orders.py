"""Jobs that were asked for over HTTP, as verbs: the task's own defaults and checks apply, if the
app has it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any
from uuid import UUID

from faultline.access import Access
from faultline.call import Call, together
from faultline.enqueueing import Groups, carrying, queue_of, verb_options
from faultline.errors import InvalidArgument
from faultline.retry import Backoff
from faultline.service.models import NewJob
from faultline.service.problem import invalid_fields

Outcome = tuple[UUID, bool]
"""The job in force, and whether it is new."""


def enqueue_one(here: Access, job: NewJob) -> Outcome:
    """Accept one job."""
    payload, options = _order(here, job)
    # The id is made once, so that a call which is sent again, because its answer was lost, finds
    # the job that it made and says that it is new.
    job_id = here.new_id()
    with here.app.telemetry.enqueueing(job.task, {queue_of(options): 1}) as sending:
        named = verb_options(carrying(options, sending.headers))
        call = here.producer.verbs.enqueue(job.task, payload, job_id=job_id, **named)
        accepted = here.act("producer", call)
        sending.accepted([accepted])
    return accepted, accepted == job_id


def enqueue_all(here: Access, jobs: Sequence[NewJob]) -> list[Outcome]:
    """Accept many jobs, all or none, in as few calls as there are tasks and options."""
    tasks: dict[str, Groups] = {}
    for number, job in enumerate(jobs):
        try:
            payload, options = _order(here, job)
        except InvalidArgument as error:
            wrong = {"field": f"jobs.{number}", "in": "body", "message": str(error)}
            raise invalid_fields([wrong]) from error
        group = tasks.setdefault(job.task, Groups()).of(options)
        group.add(number, payload, options.get("idempotency_key"))
    calls: list[Call[list[UUID]]] = []
    numbers: list[int] = []
    sent: list[UUID] = []
    with ExitStack() as observed:
        for task, groups in tasks.items():
            observing = here.app.telemetry.enqueueing(task, groups.counts)
            carried = observed.enter_context(observing).headers
            for group in groups.values():
                ids = [here.new_id() for _ in group.numbers]
                keys = group.keys if any(group.keys) else None
                named = carrying(group.options, carried)
                calls.append(
                    here.producer.verbs.enqueue_many(
                        task, ids, group.payloads, idempotency_keys=keys, **named
                    )
                )
                numbers += group.numbers
                sent += ids
        accepted = [job_id for ids in here.act("producer", together(calls)) for job_id in ids]
    found = {
        number: (job_id, job_id == own)
        for number, job_id, own in zip(numbers, accepted, sent, strict=True)
    }
    return [found[number] for number in range(len(jobs))]


def _order(here: Access, job: NewJob) -> tuple[Any, dict[str, Any]]:
    """The payload and the options in force, or InvalidArgument."""
    options = {name: value for name, value in job if value is not None}  # as they are: any depth
    del options["task"], options["payload"]
    base = options.pop("backoff_seconds", None)
    cap = options.pop("backoff_cap_seconds", None)
    if base is not None or cap is not None:
        usual = Backoff()
        options["retry"] = Backoff(
            usual.base if base is None else base, usual.cap if cap is None else cap
        )
    return here.app._order(job.task, job.payload, options)
