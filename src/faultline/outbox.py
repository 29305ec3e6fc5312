"""The outbox: messages that are stored with a fenced commit and delivered afterwards.

    with ctx.transaction() as tx:
        tx.execute("insert into charges …")
        tx.emit("receipts", {"order": 7})

    @app.relay("receipts")
    def send(message: Message) -> None:
        post(url, json=message.payload, headers={"Idempotency-Key": message.key})

A message is a job of the topic's relay: it has retries, evidence and a place in the same tables,
and is there exactly if the commit is. Delivery is at least once, under a key that stays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from faultline.errors import InvalidArgument
from faultline.task import Task

if TYPE_CHECKING:
    from faultline.jobs import Lease
    from faultline.producer import Producer


@dataclass(frozen=True, slots=True)
class Message:
    """What a relay is given to deliver."""

    topic: str
    payload: Any
    key: str
    """The same in every delivery of this message: for a receiver that knows keys."""
    token: int
    """Of the attempt that emitted it, ordered for one `job_id`: for a receiver that compares."""
    job_id: UUID
    """The job that emitted it."""


class Relay(Task[..., Any]):
    """The task that delivers one topic."""

    def __init__(
        self, topic: str, handler: Callable[..., Any], producer: Producer, **options: Any
    ) -> None:
        super().__init__(handler, producer, name=task_of(topic), **options)
        self.topic = topic
        names = self.arguments.required
        if len(names) != 1:
            raise InvalidArgument(
                f"the relay of {topic!r} takes {len(names)} arguments: it is given one, the "
                "message (and its context before that, if it is annotated Context)"
            )
        self._argument = names[0]

    def arguments_for(self, lease: Lease) -> dict[str, Any]:
        """The message, from the job that carries it."""
        headers: Mapping[str, Any] = lease.headers or {}
        try:
            message = Message(
                self.topic,
                lease.payload["payload"],
                str(headers.get("key") or lease.job_id),
                int(headers["token"]),
                UUID(headers["job_id"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgument(
                f"the job is no message for {self.topic!r}: those are made by tx.emit"
            ) from error
        return {self._argument: message}


def task_of(topic: str) -> str:
    """The name of the task that delivers this topic."""
    if not isinstance(topic, str) or not 1 <= len(topic) <= 200:
        raise InvalidArgument(f"topic is {topic!r:.80}: it is text of 1 to 200 characters")
    return f"relay:{topic}"
