"""`faultline enqueue`: one job, by its task's name; the task's code is not needed here."""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from faultline.cli import options
from faultline.cli.database import Installation, installation
from faultline.cli.display import NOTHING, print_json
from faultline.log import duration
from faultline.states import FINAL, State
from faultline.story import error_line

if TYPE_CHECKING:
    from faultline.jobs import Status

# How often --wait looks: soon at first, then rarer.
_FIRST_LOOK_SECONDS = 0.02
_LONGEST_LOOK_SECONDS = 0.5


def _payload(text: str) -> dict[str, Any]:
    try:
        value = json.loads(sys.stdin.read() if text == "-" else text)
    except ValueError as error:
        raise typer.BadParameter(f"it is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise typer.BadParameter(
            "it must be a JSON object, the task's arguments by name, such as '{\"order_id\": 7}'"
        )
    return value


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a moment such as 2030-12-24T18:00:00Z") from None
    if moment.tzinfo is None:
        raise typer.BadParameter(f"{text!r} has no time zone: add Z for UTC, or such as +02:00")
    return moment


Payload = Annotated[
    Any,
    typer.Argument(
        parser=_payload,
        metavar="PAYLOAD",
        help="Its arguments by name, as JSON; - reads them from standard input.",
        show_default=False,
    ),
]
Delay = Annotated[
    float | None,
    typer.Option(min=0, metavar="SECONDS", help="Not before so many seconds have passed."),
]
RunAt = Annotated[
    datetime | None,
    typer.Option(parser=_moment, metavar="MOMENT", help="Not before this moment (ISO 8601)."),
]
Key = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="The same key and payload give the same job again."),
]
Timeout = Annotated[
    float | None,
    typer.Option(min=0, metavar="SECONDS", help="With --wait: at most so many seconds."),
]


def enqueue(
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task's name.")],
    payload: Payload = "{}",
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="Instead of default.")] = None,
    priority: Annotated[
        int | None, typer.Option(metavar="N", help="Higher runs first; 0 is usual.")
    ] = None,
    delay_seconds: Delay = None,
    run_at: RunAt = None,
    idempotency_key: Key = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for its end; print its result.")
    ] = False,
    timeout: Timeout = None,
    as_json: options.AsJson = False,
) -> None:
    """Enqueue a job by its task's name, and print its id.

    With --wait the exit status is 0 if it succeeded, 1 if not, and 3 if it had not ended in time.

    \b
    Example:
      faultline enqueue charge '{"order_id": 7}' --queue billing --idempotency-key order-7
      faultline enqueue report --wait --timeout 60
      jq -c .order order.json | faultline enqueue charge -
    """
    if timeout is not None and not wait:
        raise typer.BadParameter("--timeout is for --wait")
    chosen: dict[str, Any] = {
        "queue": queue,
        "priority": priority,
        "delay_seconds": delay_seconds,
        "run_at": run_at,
        "idempotency_key": idempotency_key,
    }
    with installation() as here:
        job_id = here.verbs.enqueue(task, payload, **chosen).run(here.conn)
        if wait:
            if not as_json:
                typer.echo(job_id, err=True)
            status = _wait(here, job_id, timeout)
            _tell(job_id, status, timeout, as_json=as_json)
        elif as_json:
            print_json({"id": job_id})
        else:
            typer.echo(job_id)


def _wait(here: Installation, job_id: UUID, timeout: float | None) -> Status:
    """Where the job stands when it has ended, or when the time is over."""
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = _FIRST_LOOK_SECONDS
    while True:
        status = here.verbs.status(job_id).run(here.conn)
        assert status is not None, "who enqueued it may look at it"
        left = pause if deadline is None else deadline - time.monotonic()
        if status.state in _ENDS or left <= 0:
            return status
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, _LONGEST_LOOK_SECONDS)


_ENDS = FINAL | {State.QUARANTINED}  # nothing more happens to these by itself


def _tell(job_id: UUID, status: Status, timeout: float | None, *, as_json: bool) -> None:
    ended, succeeded = status.state in _ENDS, status.state == State.SUCCEEDED
    if as_json:
        facts = {"id": job_id, "state": status.state, "result": status.result}
        print_json(facts if status.error is None else {**facts, "error": status.error})
    elif succeeded:
        print_json(status.result)
    elif ended:
        because = error_line(status.error)
        said = f"faultline: job {job_id} is {status.state}{f': {because}' if because else ''}"
        typer.echo(said, err=True)
    else:
        late = duration(timeout)
        typer.echo(f"faultline: job {job_id} is still {status.state} after {late}", err=True)
    if not succeeded:
        raise typer.Exit(1 if ended else NOTHING)
