"""Faultline: a crash-safe distributed job queue on PostgreSQL.

The protocol lives in the database (`faultline/sql`); Python is a thin, typed caller.
"""

from faultline.errors import (
    DatabaseUnavailable,
    FaultlineError,
    IdempotencyConflict,
    InvalidArgument,
    KeyInFlight,
    LauncherError,
    LockedOut,
    MigrationRefused,
    PayloadTooLarge,
    SchemaMismatch,
    ServerTooOld,
    StaleLease,
    WrongIsolation,
)
from faultline.gate import aassert_fence, assert_fence
from faultline.states import State

__version__ = "0.1.0"

__all__ = [
    "DatabaseUnavailable",
    "FaultlineError",
    "IdempotencyConflict",
    "InvalidArgument",
    "KeyInFlight",
    "LauncherError",
    "LockedOut",
    "MigrationRefused",
    "PayloadTooLarge",
    "SchemaMismatch",
    "ServerTooOld",
    "StaleLease",
    "State",
    "WrongIsolation",
    "aassert_fence",
    "assert_fence",
]
