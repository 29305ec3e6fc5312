"""Every error Faultline raises, as one tree; and the one place where SQLSTATEs become exceptions.

    FaultlineError
    ├── StaleLease              this attempt no longer owns its job; roll back and stop
    ├── InvalidArgument         the call itself is wrong; nothing was written
    │   └── PayloadTooLarge
    ├── IdempotencyConflict     the key was used for another payload; nothing was written
    ├── KeyInFlight             the key is held by a transaction that is still open; try again
    ├── LockedOut               somebody is using what the call needs; nothing changed, try again
    ├── WrongIsolation          the verb needs READ COMMITTED
    ├── DatabaseUnavailable     nobody answers, or the server refuses the connection
    ├── ServerTooOld            PostgreSQL before 15
    ├── SchemaMismatch          the installation is missing, older or newer than this client
    ├── MigrationRefused        `faultline migrate` will not do this
    └── LauncherError           the embedded server could not be found, started or stopped

Errors carry their facts as attributes and say what to do next. Nothing here imports a driver:
`from_sqlstate` is given the code, the message and the detail.
"""

from __future__ import annotations

import json
from typing import Literal
from uuid import UUID

StaleReason = Literal["token_mismatch", "lease_expired"]


class FaultlineError(Exception):
    """The root: `except FaultlineError` catches whatever Faultline itself reports."""


class StaleLease(FaultlineError):
    """This attempt no longer owns the job; roll back and stop. Nothing it writes is accepted."""

    def __init__(
        self, job_id: UUID, token: int, current_token: int | None, reason: StaleReason
    ) -> None:
        self.job_id = job_id
        self.token = token
        self.current_token = current_token
        self.reason: StaleReason = reason
        super().__init__(
            f"stale lease ({reason}): job {job_id} was claimed under token {token}, "
            f"its token is now {current_token}; roll back and stop: this attempt no longer owns "
            "the job"
        )


class InvalidArgument(FaultlineError):
    """The call is wrong as it stands; the message says which argument and what is allowed."""


class PayloadTooLarge(InvalidArgument):
    """The payload is over the installation's limit; store it elsewhere and enqueue a reference."""


class IdempotencyConflict(FaultlineError):
    """The idempotency key already belongs to a job with another payload; nothing was enqueued."""

    def __init__(self, key: str, job_id: UUID) -> None:
        self.key = key
        self.job_id = job_id
        super().__init__(
            f"idempotency key {key!r} already belongs to job {job_id}, which has another payload; "
            "nothing was enqueued: use a new key, or send the same payload"
        )


class KeyInFlight(FaultlineError):
    """Another open transaction is enqueueing under this idempotency key; try again shortly."""

    def __init__(self) -> None:
        super().__init__(
            "another transaction is enqueueing under this idempotency key, or for the first time "
            "into this queue, and has not ended within 5 s; nothing was enqueued: try again"
        )


class LockedOut(FaultlineError):
    """The call would have had to wait for somebody who uses the same tables, and gave up."""

    def __init__(self, verb: str) -> None:
        self.verb = verb
        super().__init__(
            f"{verb or 'the statement'} needs a lock that another session holds, and did not wait "
            "for it; nothing was changed: run it again later"
        )


class WrongIsolation(FaultlineError):
    """claim, renew and reclaim need READ COMMITTED; a frozen snapshot would judge old leases."""


class DatabaseUnavailable(FaultlineError):
    """No connection could be had; the message says why and what to check."""


class ServerTooOld(FaultlineError):
    """The server is older than PostgreSQL 15."""


class SchemaMismatch(FaultlineError):
    """The installation in the database is missing, or older or newer than this client can use."""


class MigrationRefused(FaultlineError):
    """The migration would leave the installation unsafe or inconsistent, so it was not begun."""


class LauncherError(FaultlineError):
    """The embedded server could not be found, started, reached or stopped."""


def from_sqlstate(code: str | None, message: str, detail: str | None) -> FaultlineError | None:
    """The exception for one of our own SQLSTATEs (class LF), or None for somebody else's error."""
    match code:
        case "LF001":
            facts = json.loads(detail or "{}")
            return StaleLease(
                UUID(facts["job_id"]), facts["token"], facts["current_token"], facts["reason"]
            )
        case "LF002":
            facts = json.loads(detail or "{}")
            return IdempotencyConflict(facts["key"], UUID(facts["job_id"]))
        case "LF003":
            return InvalidArgument(message)
        case "LF004":
            return PayloadTooLarge(message)
        case "LF005":
            return WrongIsolation(message)
    return None
