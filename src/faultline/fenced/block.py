"""What every fenced transaction has in common, whatever driver is underneath.

A block opens a fence with its first statement; the database checks it at COMMIT, whoever commits.
On leaving, one statement does what the handler asked for (emit, record, complete) and checks the
lease under a lock; then the commit. Nothing of a block commits in another way.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from faultline.call import Call, reported
from faultline.enqueueing import checked, verb_options
from faultline.errors import CommitUnknown, InvalidArgument, StaleLease, from_sqlstate
from faultline.fenced.drive import Steps, adrive, drive, uninterrupted
from faultline.outbox import task_of
from faultline.plain import Misfit, described, plain

if TYPE_CHECKING:
    from faultline.context import Context, Means

# How long to ask what became of a COMMIT that was never answered: 0.05, 0.1, … 2 s, 13 times.
_PAUSES_SECONDS = [min(0.05 * 2**n, 2.0) for n in range(13)]
MOST_CALLS = 500  # in one statement: PostgreSQL has at most 1,664 columns


class Block(ABC):
    """One transaction of one attempt, as a `with` or `async with` block."""

    def __init__(self, context: Context, means: Means, step: str | None) -> None:
        if step is not None and not (isinstance(step, str) and 1 <= len(step) <= 100):
            raise InvalidArgument(f"step is {step!r:.80}: it is a name of 1 to 100 characters")
        self._context = context
        self._means = means
        self._key = (context.job_id, context.token)
        self._step = step
        self._mark = ""
        self._completed: tuple[Any] | None = None  # the result, once complete() was called
        self._emitted: list[Call[Any]] = []
        self._is_async = False
        self._is_entered = False
        self._is_open = False
        self._is_held = False
        self.done = False
        """Whether an earlier commit has done this step: then nothing of this block is committed."""
        self.value: Any = None
        """What the step has recorded, now or in an earlier attempt."""

    # ── for the handler: carried out on leaving, so there is nothing to await ────────────────────

    def complete(self, result: Any = None) -> None:
        """End the job as succeeded, with this result, in the commit of this block."""
        self._insist_open("tx.complete")
        self._context._refuse_if_completed()
        if self._completed is not None:
            raise InvalidArgument("tx.complete was called twice: an attempt ends once")
        self._completed = (self._context._dump(result),)

    def record(self, value: Any) -> None:
        """What the step is worth: `tx.value` of every later attempt. Any JSON."""
        self._insist_open("tx.record")
        if self._step is None:
            raise InvalidArgument('tx.record belongs to a step: ctx.transaction(step="…")')
        if not self.done:
            self.value = _plain(value, f"the value of step {self._step!r}")

    def emit(self, topic: str, payload: Any, *, key: str | None = None) -> None:
        """Put a message into the outbox, in the commit of this block; a relay delivers it.

        `key` makes it one message, however often it is emitted; by default each is its own.
        """
        self._insist_open("tx.emit")
        task = task_of(topic)
        checked({"idempotency_key": key})
        relay = self._means.tasks.get(task)
        options = verb_options(relay.defaults) if relay is not None else {}
        content = {"payload": _plain(payload, f"the message for {topic!r}")}
        headers = {"token": self._context.token, "job_id": str(self._context.job_id), "key": key}
        headers = {**self._means.observer.headers(), **headers}
        options |= {"headers": headers, "idempotency_key": key}
        self._emitted.append(self._means.verbs.enqueue(task, content, **options))

    def _insist_open(self, what: str) -> None:
        """Nobody would carry it out any more: say so, instead of losing it."""
        if not self._is_open:
            raise InvalidArgument(
                f"{what} belongs inside its block, which has ended or was never entered"
            )

    # ── the block ────────────────────────────────────────────────────────────────────────────────

    def __enter__(self) -> Self:
        return drive(self._enter())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        drive(self._leave(error))

    async def __aenter__(self) -> Self:
        self._is_async = True
        return await adrive(self._enter())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await uninterrupted(adrive(self._leave(error)))

    def _enter(self) -> Steps[Self]:
        self._context._refuse_if_completed()
        if self._is_entered:
            raise InvalidArgument("a fenced block is entered once: ask the context for another")
        self._is_entered = True
        answer = yield from self._begin()
        try:
            self._opened(answer)
            yield from self._check_opened()
        except BaseException as error:
            yield from self._roll_back(error)
            yield from self._release()
            raise
        self._is_open = True
        return self

    def _leave(self, error: BaseException | None) -> Steps[None]:
        self._is_open = False
        try:
            if error is not None:
                yield from self._roll_back(error)
            elif self.done:
                yield from self._leave_done()
            else:
                yield from self._close()
        finally:
            yield from self._release()

    def _close(self) -> Steps[None]:
        """Check, do what was asked for, and commit."""
        context = self._context
        context._closing += self._completed is not None  # its lease may be gone any moment
        try:
            try:
                context._refuse_if_completed()  # by another block, inside this one
                yield from self._insist()
                *before, last = self._closing()
                for calls in before:
                    yield partial(self._run, calls)
            except BaseException as error:
                yield from self._roll_back(error)
                yield from self._explain(error)
                raise
            yield from self._finish(last)
            if self._completed is not None:
                context._completed = self._completed
        finally:
            context._closing -= self._completed is not None

    def _leave_done(self) -> Steps[None]:
        """The step was done before: whatever the handler did again is undone."""
        yield from self._roll_back(None)
        yield from self._release()
        if self._completed is not None:
            from faultline.fenced.transaction import Transaction

            ending = Transaction(self._context, self._means, None, None)
            ending._is_async = self._is_async
            yield from ending._enter()
            ending._completed = self._completed
            yield from ending._leave(None)

    # ── what is asked of the database ────────────────────────────────────────────────────────────

    def _opening(self) -> Call[Any]:
        if self._step is None:
            return self._means.verbs.fence(*self._key)
        return self._means.verbs.begin_step(*self._key, self._step)

    def _opened(self, answer: Any) -> None:
        if self._step is None:
            self._mark = answer
        else:
            self._mark, self.done, self.value = (answer[k] for k in ("mark", "done", "value"))

    def _closing(self) -> list[list[Call[Any]]]:
        """One statement, unless there are very many messages: that this is still the transaction in
        which the fence was opened, then what the handler asked for; the last one checks the lease
        and holds it until the commit."""
        verbs = self._means.verbs
        calls = [*self._emitted]
        if self._step is not None:
            calls.append(verbs.record_step(*self._key, self._step, self.value))
        if self._completed is not None:
            calls.append(verbs.complete_one(*self._key, self._completed[0]))
        elif self._step is None:
            calls.append(verbs.assert_fence(*self._key))
        same = verbs.same_transaction(self._mark)
        return [[same, *calls[n : n + MOST_CALLS]] for n in range(0, len(calls), MOST_CALLS)]

    def _judge(self, error: Exception) -> Steps[None]:
        """The COMMIT failed: it was refused; or its answer was lost, and it may have happened."""
        if not self._is_broken(error):
            yield from self._roll_back(error)
            yield from self._explain(error)
            if (ours := from_sqlstate(*reported(error))) is not None:
                raise ours from error
            raise error
        for seconds in _PAUSES_SECONDS:
            status = yield self._ask_status
            if status == "committed":
                return
            if status == "unknown" and (self._completed or self._step):
                status = "aborted"  # in another life of the server, and nothing of it is there
            if status == "aborted":
                error.add_note("The transaction was rolled back: nothing of it was committed.")
                raise error
            if status == "unknown":
                break
            yield self._pause(seconds)
        self._context._unsure = self._completed is not None
        raise CommitUnknown(*self._key) from error

    def _explain(self, error: BaseException) -> Steps[None]:
        """A frozen snapshot cannot tell a lease that was taken away from one that was renewed
        (40001): ask outside of it, and raise StaleLease if it is lost."""
        if reported(error)[0] == "40001":
            call = self._means.verbs.assert_fence(*self._key)
            pool = self._means.pool
            try:
                yield lambda: pool.aask(call) if self._is_async else pool.ask(call)
            except StaleLease as stale:
                stale.operation = self._closing()[-1][-1].verb
                raise

    def _hold(self) -> Steps[None]:
        """Before a frozen snapshot is taken: a lease that is renewed after that could not be
        completed in it, so renew now, and not again while the block is open."""
        self._is_held = True
        self._context._hold()
        # First whether it is lost: a renewal would record that, and the handler raise it again.
        yield partial(self._renew, self._means.verbs.assert_fence(*self._key))
        answers = yield partial(self._renew, self._means.verbs.renew([self._key]))
        if answers and answers[0].verdict == "renewed":
            self._context._renewed()

    def _let_go(self) -> None:
        if self._is_held:
            self._is_held = False
            self._context._let_go()

    def _ask_status(self) -> Any:
        call = self._means.verbs.commit_status(*self._key, self._mark)
        pool = self._means.pool
        return pool.aask(call) if self._is_async else pool.ask(call)

    def _pause(self, seconds: float) -> Any:
        return (lambda: asyncio.sleep(seconds)) if self._is_async else lambda: time.sleep(seconds)

    # ── what the driver underneath does ──────────────────────────────────────────────────────────

    @abstractmethod
    def _begin(self) -> Steps[Any]:
        """Have a connection with an open transaction, and its fence; the answer to `_opening`."""

    @abstractmethod
    def _run(self, calls: list[Call[Any]]) -> Any:
        """Run the calls as one statement; their answers."""

    @abstractmethod
    def _renew(self, call: Call[Any]) -> Any:
        """Run the renewal and commit it, outside of the block's transaction."""

    def _check_opened(self) -> Steps[None]:
        """Refuse a connection on which a fence would protect nothing."""
        yield from ()

    @abstractmethod
    def _insist(self) -> Steps[None]:
        """Refuse to close a transaction that is not ours any more; write what is still pending."""

    @abstractmethod
    def _finish(self, calls: list[Call[Any]]) -> Steps[None]:
        """Run the last calls, and commit."""

    @abstractmethod
    def _roll_back(self, error: BaseException | None) -> Steps[None]:
        """Undo everything; never raises because of the connection."""

    @abstractmethod
    def _release(self) -> Steps[None]:
        """Give the connection back."""

    @abstractmethod
    def _is_broken(self, error: Exception) -> bool:
        """Whether the connection is gone, so that nobody was told the outcome."""


def ended_inside() -> InvalidArgument:
    """The error for a handler that committed or rolled back itself."""
    return InvalidArgument(
        "the fenced transaction was ended inside its block: leave COMMIT and ROLLBACK to the "
        "block, and use a savepoint (connection.transaction(), session.begin_nested()) instead"
    )


def _plain(value: Any, what: str) -> Any:
    try:
        return plain(value)
    except (Misfit, RecursionError) as error:
        raise InvalidArgument(f"{what}{described(error)}: give plain JSON") from error
