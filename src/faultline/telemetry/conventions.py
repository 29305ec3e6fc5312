"""What spans and their attributes are called.

`messaging.*` and `error.type` are OpenTelemetry's conventions for messaging spans (in development
there; as of August 2026); `faultline.*` is ours, each named as the field of the event is that logs
the same fact. https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/
"""

from __future__ import annotations

from typing import Final

NAME: Final = "faultline"

SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
MESSAGE_ID: Final = "messaging.message.id"
MESSAGE_COUNT: Final = "messaging.batch.message_count"
CLIENT_ID: Final = "messaging.client.id"
ERROR_TYPE: Final = "error.type"

EXCEPTION: Final = "exception"  # an event, with these attributes
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"
EXCEPTION_TRACEBACK: Final = "exception.stacktrace"

SEND: Final = "send"
RECEIVE: Final = "receive"
PROCESS: Final = "process"
SETTLE: Final = "settle"
RENEW: Final = "renew"  # no operation of theirs; a span only where it was refused after the end


def ours(field: str) -> str:
    """The attribute for a field of an event."""
    return f"{NAME}.{field}"


TASK: Final = ours("task")
JOB_ID: Final = ours("job_id")
TOKEN: Final = ours("token")
ATTEMPT: Final = ours("attempt")
OUTCOME: Final = ours("outcome")
REASON: Final = ours("reason")
DELAY_SECONDS: Final = ours("delay_seconds")
TOLD: Final = ours("told_to_stop")
