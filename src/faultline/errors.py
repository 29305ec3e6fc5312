"""Every error Faultline raises, as one tree; and the one place where SQLSTATEs become exceptions.

    FaultlineError
    ├── StaleLease              this attempt no longer owns its job; roll back and stop
    ├── Unfenced                a write to a guarded table without a fence; nothing was written
    ├── InvalidArgument         the call itself is wrong; nothing was written
    │   ├── PayloadTooLarge
    │   └── WrongArguments      the task does not take these arguments (also a TypeError)
    ├── IdempotencyConflict     the key was used for another payload; nothing was written
    ├── KeyInFlight             the key is held by a transaction that is still open; try again
    ├── LockedOut               somebody is using what the call needs; nothing changed, try again
    ├── WrongIsolation          the verb needs READ COMMITTED
    ├── CommitUnknown           the answer to a COMMIT was lost, and could not be found out
    ├── NotPermitted            the role may not call this verb; which one to grant
    ├── AppNotFound             "module:app" does not lead to an App
    ├── DuplicateTask           two tasks of one name
    ├── UnknownTask             the job's task is not registered in this app
    ├── JobNotFound             no such job, or it is not this role's
    ├── JobFailed               whoever waited for the result: the job is dead or in quarantine
    ├── JobCancelled            whoever waited for the result: the job was cancelled
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
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from uuid import UUID

StaleReason = Literal["token_mismatch", "lease_expired"]


class FaultlineError(Exception):
    """The root: `except FaultlineError` catches whatever Faultline itself reports."""


class StaleLease(FaultlineError):
    """This attempt no longer owns the job; roll back and stop. Nothing it writes is accepted."""

    def __init__(
        self,
        job_id: UUID,
        token: int,
        current_token: int | None,
        reason: StaleReason,
        operation: str = "handler",
    ) -> None:
        self.job_id = job_id
        self.token = token
        self.current_token = current_token
        self.reason: StaleReason = reason
        self.operation = operation  # what was refused
        super().__init__(
            f"stale lease ({reason}): job {job_id} was claimed under token {token}, "
            f"its token is now {current_token}; roll back and stop: this attempt no longer owns "
            "the job"
        )


class Unfenced(FaultlineError):
    """The table is guarded and the transaction has no fence; the message says how to open one."""

    def __init__(self, message: str, table: str, operation: str) -> None:
        self.table = table  # with its schema
        self.operation = operation  # INSERT, UPDATE, DELETE or TRUNCATE
        super().__init__(message)


class InvalidArgument(FaultlineError):
    """The call is wrong as it stands; the message says which argument and what is allowed."""


class PayloadTooLarge(InvalidArgument):
    """The payload is over the installation's limit; store it elsewhere and enqueue a reference."""


class WrongArguments(InvalidArgument, TypeError):
    """The task cannot be called with these arguments; nothing was enqueued."""


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
    """Somebody else is using what the call needs: it would have had to wait, or lost to him again
    and again."""

    def __init__(self, verb: str, tries: int = 0) -> None:
        self.verb = verb
        self.tries = tries  # how often it lost against another transaction; 0: it did not wait
        said = verb or "the statement"
        super().__init__(
            f"{said} was rolled back by the server {tries} times in a row, each time in favour of "
            "another transaction; nothing was changed: run it again; if it keeps happening, make "
            "the transactions that touch the same jobs, queues or keys shorter"
            if tries
            else f"{said} needs a lock that another session holds, and did not wait for it; "
            "nothing was changed: run it again later"
        )


class WrongIsolation(FaultlineError):
    """claim, renew and reclaim need READ COMMITTED; a frozen snapshot would judge old leases."""


class CommitUnknown(FaultlineError):
    """The connection broke during COMMIT, and it could not be found out whether it happened."""

    def __init__(self, job_id: UUID, token: int) -> None:
        self.job_id = job_id
        self.token = token
        super().__init__(
            f"the connection broke while job {job_id} was committing under token {token}, and "
            "whether it was committed could not be found out: write so that a second attempt does "
            'no harm, with tx.complete(…) or ctx.transaction(step="…")'
        )


class NotPermitted(FaultlineError):
    """The role of this connection may not do this; the message has the grant to run."""

    def __init__(self, role: str | None, verb: str, schema: str, grantable: Sequence[str]) -> None:
        self.role = role  # None where the driver does not say
        self.verb = verb
        self.schema = schema
        self.grantable = tuple(grantable)
        who, target = (f"role {role!r}", f'"{role}"') if role else ("the role in use", "it")
        asked = f"call {verb}" if verb else "read this"
        wanted = ("one of " if len(grantable) > 1 else "") + ", ".join(grantable)
        super().__init__(
            f"{who} may not {asked} in schema {schema!r}: grant it {wanted}, e.g. "
            f"GRANT {grantable[0]} TO {target}"
        )


class AppNotFound(FaultlineError):
    """A reference such as "shop.tasks:app" does not lead to an App; the message says where."""


class DuplicateTask(FaultlineError):
    """Two functions are registered under one name; the message has both places."""

    def __init__(self, name: str, first: str, second: str) -> None:
        self.name = name
        self.places = (first, second)
        super().__init__(
            f"task {name!r} is defined twice, in {first} and in {second}: give one of them another "
            'name, with @app.task(name="…")'
        )


class UnknownTask(FaultlineError):
    """No function of this app is registered under the name that a job asks for."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"task {name!r} is not registered in this app: import the module that defines it, or "
            "start a worker that has it"
        )


class JobNotFound(FaultlineError):
    """There is no such job for this role."""

    def __init__(self, job_id: UUID) -> None:
        self.job_id = job_id
        super().__init__(
            f"job {job_id} is not here: its enqueue was not committed (yet), it was deleted with "
            "its month, or another role enqueued it"
        )


class JobFailed(FaultlineError):
    """The job has no result: it used up its attempts, or was put into quarantine."""

    def __init__(self, job_id: UUID, state: str, error: Any) -> None:
        self.job_id = job_id
        self.state = state
        self.error = error
        super().__init__(f"job {job_id} is {state}: {_said(error)}")


class JobCancelled(FaultlineError):
    """The job has no result: it was cancelled."""

    def __init__(self, job_id: UUID, reason: str | None) -> None:
        self.job_id = job_id
        self.reason = reason
        super().__init__(f"job {job_id} was cancelled{f': {reason}' if reason else ''}")


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


def _said(error: Any) -> str:
    """The stored error in one line; workers store {"type": …, "message": …}."""
    if isinstance(error, Mapping) and "message" in error:
        kind = f"{error['type']}: " if "type" in error else ""
        return f"{kind}{error['message']}"
    return "no error was recorded" if error is None else json.dumps(error, ensure_ascii=False)


def from_sqlstate(code: str | None, message: str, detail: str | None) -> FaultlineError | None:
    """The exception for one of our own SQLSTATEs (class LF), or None for somebody else's error."""
    match code:
        case "LF001":
            facts = json.loads(detail or "{}")
            return StaleLease(
                UUID(facts["job_id"]),
                facts["token"],
                facts["current_token"],
                facts["reason"],
                facts["operation"],
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
        case "LF006":
            facts = json.loads(detail or "{}")
            return Unfenced(message, facts["table"], facts["operation"])
    return None
