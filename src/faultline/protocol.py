"""The lease protocol: the one module that changes jobs.

    enqueue → claim → (execute) → (renew)* → complete | fail | snooze
                                               | decline | release | cancel_attempt
    and, from outside: reclaim, promote (both: reconcile), cancel, retry, requeue

One method per verb, one SQL function per method. A verb is a `Call`: a statement, its parameters
and how to read the answer. Run it on the connection you have; the caller owns the transaction:

    verbs = Protocol("faultline")
    leases = verbs.claim("worker-1", lanes, max_jobs=10).run(conn)
    leases = await verbs.claim("worker-1", lanes, max_jobs=10).arun(async_conn)

Nothing here sleeps, retries, logs, opens a connection or reads a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from faultline.answers import (
    column,
    each,
    leased,
    leases,
    nothing,
    one,
    reconciled,
    retained,
    swapped,
)
from faultline.call import Call, Row, to_json
from faultline.columns import UuidColumn, columns, uuids
from faultline.config import DEFAULT_SCHEMA, schema_name
from faultline.errors import InvalidArgument
from faultline.jobs import (
    Cancelled,
    Lane,
    Lease,
    Outcome,
    Reclaimed,
    Reconciled,
    Renewal,
    Retained,
    Stale,
    Status,
)
from faultline.statement import Casts, named_options, statement

T = TypeVar("T")
Attempts = Sequence[tuple[UUID, int]]  # (job_id, token) of each attempt a verb is about
MOST_RECOVERED = 1000  # jobs that reclaim_dead, release_others and know_tasks take in one call


def enqueues(
    schema: str, task: str, options: Mapping[str, Any]
) -> Callable[[Any, UUID | str | None], Call[UUID]]:
    """Calls of `enqueue`, by payload and id: what they have in common is made once."""
    named = named_options(options, without={"id", "idempotency_keys"})
    given = {name: value for name, value in named.items() if value is not None}
    text = statement(schema, "enqueue", 2, ("text", "jsonb"), ("id", *given), is_value=True)
    last = tuple(given.values())

    def call(payload: Any, job_id: UUID | str | None) -> Call[UUID]:
        empty = payload is None or (type(payload) is dict and not payload)
        content = "{}" if empty else to_json(payload, "payload")
        return Call(schema, "enqueue", text, (task, content, job_id, *last), one)

    return call


class Protocol:
    """The verbs of one installation, that is, of one schema."""

    def __init__(self, schema: str = DEFAULT_SCHEMA) -> None:
        self.schema = schema_name(schema)

    # ── producers ────────────────────────────────────────────────────────────────────────────────

    def enqueue(
        self, task: str, payload: Any = None, *, job_id: UUID | None = None, **options: Any
    ) -> Call[UUID]:
        """Accept one job; `options` are the named arguments of the SQL function."""
        return enqueues(self.schema, task, options)(payload, job_id)

    def enqueue_many(
        self, task: str, ids: Sequence[UUID] | UuidColumn, payloads: Sequence[Any], **options: Any
    ) -> Call[list[UUID]]:
        """Accept many jobs of one task, all or none; answers with the ids in force."""
        text = to_json(list(payloads), "payloads")
        call = self._call(
            "enqueue_many",
            (task, uuids(ids), text),
            one,
            named_options(options, without={"id", "idempotency_key"}),
            casts=("text", "uuid[]", "jsonb"),
            is_value=True,
        )
        return call._replace(binary=True)

    def status(self, job_id: UUID) -> Call[Status | None]:
        """Where the job stands, for who enqueued it or an operator."""
        return self._call("status", (job_id,), lambda rows: Status(*rows[0]) if rows else None)

    def cancel(self, job_ids: Sequence[UUID], reason: str | None = None) -> Call[list[Cancelled]]:
        """End waiting jobs, ask running ones to stop."""
        return self._call("cancel", (list(job_ids), reason), each(Cancelled), casts=_UUIDS)

    # ── workers ──────────────────────────────────────────────────────────────────────────────────

    def lanes(self, queues: Sequence[str]) -> Call[list[Lane]]:
        """The lanes of these queues, highest priority first."""
        return self._call("lanes", (list(queues),), each(Lane), casts=("text[]",))

    def claim(
        self,
        worker: str,
        lanes: Sequence[int],
        *,
        max_jobs: int = 1,
        cursors: Sequence[int] | None = None,
        started: bool = True,
    ) -> Call[list[Lease]]:
        """Lease up to `max_jobs` due jobs, each under a token higher than any before."""
        arguments = (worker, list(lanes), max_jobs, list(cursors) if cursors else None, started)
        casts = ("text", "int[]", "int", "bigint[]")
        return self._call("claim", arguments, leases, casts=casts)._replace(binary=True)

    def claim_one(
        self,
        worker: str,
        lanes: Sequence[int],
        *,
        cursors: Sequence[int] | None = None,
        started: bool = True,
        by_itself: bool = False,
    ) -> Call[list[Lease]]:
        """As `claim` with `max_jobs=1`, at half its cost: for who waits for a job. `by_itself`:
        the transaction ends with this call, also if nothing more is ever heard of the caller."""
        arguments = (worker, list(lanes), list(cursors) if cursors else None, started, by_itself)
        return self._call("claim_one", arguments, leased, casts=("text", "int[]", "bigint[]"))

    def execute(self, attempts: Attempts) -> Call[list[Stale]]:
        """These claimed jobs begin now; answers with the stale ones."""
        return self._settle("execute", attempts)

    def renew(self, attempts: Attempts) -> Call[list[Renewal]]:
        """Extend these leases, if they are alive."""
        return self._call("renew", columns(attempts), each(Renewal), casts=_ATTEMPTS)

    def progress(self, attempts: Attempts, reports: Sequence[Any]) -> Call[None]:
        """What these running attempts say of themselves; stale ones are left out."""
        arguments = (*columns(attempts), to_json(list(reports), "progress"))
        return self._call("progress", arguments, nothing, casts=(*_ATTEMPTS, "jsonb"))

    def adopt(self, worker: str, attempts: Attempts, *, started: bool = True) -> Call[list[Stale]]:
        """These leases are this worker's from now on; answers with the stale ones."""
        arguments = (worker, *columns(attempts), started)
        return self._call("adopt", arguments, each(Stale), casts=("text", *_ATTEMPTS))

    def complete(
        self, attempts: Attempts, results: Sequence[Any] | None = None
    ) -> Call[list[Stale]]:
        """End these attempts as succeeded; answers with the stale ones, which were refused."""
        text = None if results is None else to_json(list(results), "result")
        return self._settle("complete", attempts, text, casts=("jsonb",))

    def complete_one(self, job_id: UUID, token: int, result: Any = None) -> Call[None]:
        """End the attempt in the caller's own transaction; raises StaleLease."""
        text = None if result is None else to_json(result, "result")
        return self._call("complete_one", (job_id, token, text), nothing, casts=_ONE_RESULT)

    def swap(
        self,
        attempts: Attempts,
        results: Sequence[Any] | None,
        worker: str,
        lanes: Sequence[int],
        *,
        max_jobs: int = 1,
        cursors: Sequence[int] | None = None,
        started: bool = True,
    ) -> Call[tuple[list[Stale], list[Lease]]]:
        """Complete the previous batch and claim the next, in one call and one commit."""
        text = None if results is None else to_json(list(results), "result")
        claim = (worker, list(lanes), max_jobs, list(cursors) if cursors else None, started)
        casts = (*_ATTEMPTS, "jsonb", "text", "int[]", "int", "bigint[]")
        call = self._call("swap", (*columns(attempts), text, *claim), swapped, casts=casts)
        return call._replace(binary=True)

    def fail(
        self,
        attempts: Attempts,
        errors: Sequence[Any] | None = None,
        *,
        delays: Sequence[float | None] | None = None,
        dead: Sequence[bool] | None = None,
    ) -> Call[list[Stale]]:
        """End these attempts as failed: tried again after a delay, or dead."""
        text = None if errors is None else to_json(list(errors), "error")
        columns = (text, list(delays) if delays else None, list(dead) if dead else None)
        return self._settle("fail", attempts, *columns, casts=("jsonb", "float8[]", "bool[]"))

    def snooze(self, attempts: Attempts, delays: Sequence[float]) -> Call[list[Stale]]:
        """Put these jobs off by so many seconds, without using up an attempt."""
        return self._settle("snooze", attempts, list(delays), casts=("float8[]",))

    def decline(self, attempts: Attempts) -> Call[list[Stale]]:
        """Put these jobs off until a worker that has a handler for their task comes."""
        return self._settle("decline", attempts)

    def release(self, attempts: Attempts) -> Call[list[Stale]]:
        """Hand these jobs back, to their own places in their queues."""
        return self._settle("release", attempts)

    def release_others(self, worker: str, attempts: Attempts) -> Call[list[UUID]]:
        """Hand back what this worker was leased and does not know of, all but these attempts: at
        most MOST_RECOVERED a call."""
        arguments = (worker, *columns(attempts))
        return self._call("release_others", arguments, column, casts=("text", *_ATTEMPTS))

    def cancel_attempt(self, attempts: Attempts, reason: str | None = None) -> Call[list[Stale]]:
        """The attempts end their own jobs as cancelled."""
        return self._settle("cancel_attempt", attempts, reason)

    def busy(self, attempts: Attempts) -> Call[list[UUID]]:
        """Those of these jobs whose lease an open transaction holds: ending them has to wait."""
        return self._call("busy", columns(attempts), column, casts=_ATTEMPTS)

    def reclaim(self, max_jobs: int = 100) -> Call[list[Reclaimed]]:
        """Take expired leases away from their owners."""
        return self._call("reclaim", (max_jobs,), each(Reclaimed), casts=("int",))

    def reclaim_dead(
        self, worker: str, job_ids: Sequence[UUID] | None = None
    ) -> Call[list[Reclaimed]]:
        """Take a dead worker's leases away at once, all or those of these jobs: at most
        MOST_RECOVERED a call."""
        arguments = (worker, None if job_ids is None else list(job_ids))
        return self._call("reclaim_dead", arguments, each(Reclaimed), casts=("text", "uuid[]"))

    def promote(self, max_jobs: int = 1000) -> Call[int]:
        """Queue what has become due; answers with how many."""
        return self._call("promote", (max_jobs,), one, casts=("int",))

    def reconcile(self, max_jobs: int = 1000) -> Call[Reconciled]:
        """Reclaim, promote and clean up; answers also with when to do so again."""
        return self._call("reconcile", (max_jobs,), reconciled, casts=("int",))

    def assert_fence(self, job_id: UUID, token: int) -> Call[None]:
        """The write gate: raises StaleLease unless the lease is alive, and then holds it."""
        return self._call("assert_fence", (job_id, token), nothing)

    def fence(self, job_id: UUID, token: int) -> Call[str]:
        """Have the server check the lease when this transaction commits."""
        return self._call("fence", (job_id, token), one)

    def begin_step(self, job_id: UUID, token: int, step: str) -> Call[dict[str, Any]]:
        """As `fence`; answers with its mark, and whether the step is done and what it recorded."""
        return self._call("begin_step", (job_id, token, step), one)

    def record_step(self, job_id: UUID, token: int, step: str, value: Any = None) -> Call[None]:
        """The step is done, with the caller's transaction; raises StaleLease."""
        text = None if value is None else to_json(value, "value")
        arguments = (job_id, token, step, text)
        return self._call("record_step", arguments, nothing, casts=_ONE_STEP)

    def same_transaction(self, mark: str) -> Call[None]:
        """Raises InvalidArgument unless this is the transaction whose fence had this mark."""
        return self._call("same_transaction", (mark,), nothing, casts=("text",))

    def commit_status(self, job_id: UUID, token: int, mark: str) -> Call[str]:
        """What became of the transaction whose fence had this mark."""
        return self._call("commit_status", (job_id, token, mark), one, casts=_ONE_COMMIT)

    def report_refusal(self, job_id: UUID, token: int, operation: str) -> Call[Stale | None]:
        """Record a refusal whose own record was rolled back; None if nobody can have been late."""
        return self._call(
            "report_refusal",
            (job_id, token, operation),
            lambda rows: Stale(*rows[0]) if rows else None,
        )

    def outcome(self, job_id: UUID, token: int) -> Call[str | None]:
        """How the attempt ended; None while it has not."""
        return self._call("outcome", (job_id, token), one)

    def outcomes(self, attempts: Attempts) -> Call[list[Outcome]]:
        """How these attempts ended, each, and whether their jobs ended with them."""
        return self._call("outcomes", columns(attempts), each(Outcome), casts=_ATTEMPTS)

    def beat(
        self,
        worker: str,
        queues: Sequence[str],
        details: Mapping[str, Any] | None = None,
        clock: datetime | None = None,
    ) -> Call[None]:
        """The worker is alive."""
        arguments = (worker, list(queues), to_json(dict(details or {}), "details"), clock)
        return self._call("beat", arguments, nothing, casts=("text", "text[]", "jsonb"))

    def know_tasks(self, worker: str, queues: Sequence[str], tasks: Sequence[str]) -> Call[int]:
        """The worker has handlers for these tasks: write that down, and make jobs of these queues
        due that were declined for want of one; returns how many, MOST_RECOVERED at most."""
        arguments = (worker, list(queues), list(tasks))
        return self._call("know_tasks", arguments, one, casts=("text", "text[]", "text[]"))

    def leave(self, worker: str) -> Call[None]:
        """The worker has ended."""
        return self._call("leave", (worker,), nothing)

    def sleep(self, worker: str, queues: Sequence[str], seconds: float) -> Call[None]:
        """Ask for a notification when one of these queues gets a job."""
        return self._call("sleep", (worker, list(queues), seconds), nothing, casts=_SLEEP)

    def awake(self, worker: str) -> Call[None]:
        """No more notifications, please."""
        return self._call("awake", (worker,), nothing)

    # ── operators ────────────────────────────────────────────────────────────────────────────────

    def retry(self, job_ids: Sequence[UUID]) -> Call[list[UUID]]:
        """Scheduled jobs become due now; answers with those moved."""
        return self._call("retry", (list(job_ids),), column, casts=("uuid[]",))

    def requeue(self, job_ids: Sequence[UUID], reason: str | None = None) -> Call[list[UUID]]:
        """Give dead or quarantined jobs another life; answers with those moved."""
        return self._call("requeue", (list(job_ids), reason), column, casts=_UUIDS)

    def pause(self, queue: str, paused: bool = True) -> Call[None]:
        """Stop or resume the claiming of a queue."""
        return self._call("pause", (queue, paused), nothing)

    def guard(self, target: str, exempt_roles: Sequence[str] | None = None) -> Call[int]:
        """Only fenced transactions and the exempt roles (None: as before) write to this table."""
        if isinstance(exempt_roles, str):  # its letters are no names
            raise InvalidArgument(f"exempt_roles is a list of names: give [{exempt_roles!r}]")
        arguments = (target, None if exempt_roles is None else list(exempt_roles))
        return self._call("guard", arguments, one, casts=("regclass", "name[]"))

    def unguard(self, target: str) -> Call[int]:
        """The contrary; answers with how many tables were guarded."""
        return self._call("unguard", (target,), one, casts=("regclass",))

    def rescue(self) -> Call[int]:
        """After a restore: give every job without a pointer its pointer back."""
        return self._call("rescue", (), one)

    def epoch_bump(self) -> Call[int]:
        """After a restore from a disk snapshot: make all further tokens higher than any before."""
        return self._call("epoch_bump", (), one)

    def compact(self) -> Call[bool]:
        """Rewrite `ready` when a pinned snapshot stops vacuum."""
        return self._call("compact", (), one)

    def compact_if_bloated(self) -> Call[bool]:
        """The same, if dead rows are many and live ones few; asks no table."""
        return self._call("compact_if_bloated", (), one)

    def spare_vacuum(self) -> Call[int | None]:
        """Have autovacuum come more seldom while it is in vain; what it left, if that is new."""
        return self._call("spare_vacuum", (), one)

    def create_partitions(self, months_ahead: int = 3) -> Call[int]:
        """Make the partitions of the coming months."""
        return self._call("create_partitions", (months_ahead,), one)

    def drop_partitions(self, older_than_days: int) -> Call[list[str]]:
        """Forget finished jobs of months that ended so long ago; answers with the months."""
        age = f"{older_than_days} days"
        return self._call("drop_partitions", (age,), column, casts=("interval",))

    def apply_retention(self) -> Call[Retained]:
        """A step of forgetting what ended longer ago than the setting says."""
        return self._call("apply_retention", (), retained)

    def set_retention(self, days: int | None) -> Call[None]:
        """For how many days what has ended is kept; None: for ever."""
        return self._call("set_retention", (days,), nothing, casts=("int",))

    # ── the statement ────────────────────────────────────────────────────────────────────────────

    def _settle(
        self, verb: str, attempts: Attempts, *more: Any, casts: tuple[str, ...] = ()
    ) -> Call[list[Stale]]:
        parameters = (*columns(attempts), *more)
        return self._call(verb, parameters, each(Stale), casts=(*_ATTEMPTS, *casts))

    def _call(
        self,
        verb: str,
        parameters: tuple[Any, ...],
        read: Callable[[list[Row]], T],
        named: Mapping[str, Any] | None = None,
        casts: Casts = (),
        *,
        is_value: bool = False,
    ) -> Call[T]:
        given = {name: value for name, value in (named or {}).items() if value is not None}
        text = statement(self.schema, verb, len(parameters), casts, tuple(given), is_value)
        return Call(self.schema, verb, text, (*parameters, *given.values()), read)


_UUIDS = ("uuid[]", "text")
_ATTEMPTS = ("uuid[]", "bigint[]")
_ONE_RESULT = ("uuid", "bigint", "jsonb")
_ONE_STEP = ("uuid", "bigint", "text", "jsonb")
_ONE_COMMIT = ("uuid", "bigint", "text")
_SLEEP = ("text", "text[]", "float8")
