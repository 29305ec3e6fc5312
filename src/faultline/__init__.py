"""Faultline: a crash-safe distributed job queue on PostgreSQL.

The protocol lives in the database (`faultline/sql`); Python is a thin, typed caller.
"""

from faultline.app import App
from faultline.context import Context
from faultline.errors import (
    AppNotFound,
    CommitUnknown,
    DatabaseUnavailable,
    DuplicateTask,
    FaultlineError,
    IdempotencyConflict,
    InvalidArgument,
    JobCancelled,
    JobFailed,
    JobNotFound,
    KeyInFlight,
    LauncherError,
    LockedOut,
    MigrationRefused,
    NotPermitted,
    PayloadTooLarge,
    SchemaMismatch,
    ServerTooOld,
    StaleLease,
    Unfenced,
    UnknownTask,
    WrongArguments,
    WrongIsolation,
)
from faultline.gate import aassert_fence, assert_fence
from faultline.handle import Job
from faultline.outbox import Message
from faultline.retry import Backoff, Cancel, Retry, Snooze
from faultline.states import State
from faultline.task import Task

__version__ = "0.1.0"

__all__ = [
    "App",
    "AppNotFound",
    "Backoff",
    "Cancel",
    "CommitUnknown",
    "Context",
    "DatabaseUnavailable",
    "DuplicateTask",
    "FaultlineError",
    "IdempotencyConflict",
    "InvalidArgument",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobNotFound",
    "KeyInFlight",
    "LauncherError",
    "LockedOut",
    "Message",
    "MigrationRefused",
    "NotPermitted",
    "PayloadTooLarge",
    "Retry",
    "SchemaMismatch",
    "ServerTooOld",
    "Snooze",
    "StaleLease",
    "State",
    "Task",
    "Unfenced",
    "UnknownTask",
    "WrongArguments",
    "WrongIsolation",
    "aassert_fence",
    "assert_fence",
]
