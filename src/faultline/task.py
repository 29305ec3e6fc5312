"""A registered function: `@app.task` turns a handler into a Task.

A Task knows how its handler is called and how its jobs are to be run; it can still be called like
the function itself, which is how a unit test uses it. Looked up by its exact name only: nothing is
ever imported because a payload says so.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload
from uuid import UUID

from faultline.arguments import Arguments
from faultline.context import Context
from faultline.enqueueing import Enqueues, Route, checked
from faultline.errors import InvalidArgument
from faultline.handle import Job
from faultline.retry import as_seconds

if TYPE_CHECKING:
    from faultline.jobs import Lease
    from faultline.producer import Producer

P = ParamSpec("P")
R = TypeVar("R")

RESULT_LIMIT_BYTES = 1_048_576


class Task(Enqueues[P, R]):
    """A handler under its name. P are its arguments without the context, R what it returns."""

    def __init__(
        self,
        handler: Callable[..., Any],
        producer: Producer,
        *,
        name: str | None = None,
        timeout_seconds: float | None = None,
        transactional: bool = False,
        local: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        functools.update_wrapper(self, handler)  # first: of what it may bring along, ours wins
        self._task = self
        self._options = {}
        self.producer = producer
        self.handler = handler
        self.name = _name(handler, name)
        _refuse(self.name, handler)
        self.arguments = Arguments(self.name, handler, local)
        self.defaults: Mapping[str, Any] = MappingProxyType(checked(options))
        self._route = Route(self.name, self.defaults)
        self.queue: str = self.defaults.get("queue", "default")
        self.timeout_seconds = _timeout(timeout_seconds)
        self.wants_context = self.arguments.wants_context
        self.transactional = transactional
        if transactional and not self.wants_context:
            raise InvalidArgument(
                f"task {self.name!r} is transactional, and has no way to its transaction: make its "
                "first parameter `ctx: Context`, and use ctx.tx"
            )
        self.is_async = _is_async(handler)
        self.place = _place(handler)

    def __repr__(self) -> str:
        return f"Task({self.name!r}, {self.place})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the handler here and now, as the plain function it is; no job is made."""
        return self.handler(*args, **kwargs)

    def job(self, job_id: UUID | str) -> Job[R]:
        """A job of this task by its id, to ask for its status or result."""
        return Job(as_uuid(job_id), self.producer, self.load_result)

    def jobs(self, ids: Iterable[UUID]) -> list[Job[R]]:
        """As `job`, for ids that are known to be some."""
        producer, load = self.producer, self.load_result
        return [Job(job_id, producer, load) for job_id in ids]

    def arguments_for(self, lease: Lease) -> dict[str, Any]:
        """Keyword arguments for the handler, or InvalidArgument if the payload is not its."""
        return self.arguments.load(lease.payload)

    def dump_result(self, value: Any) -> tuple[Any, int]:
        """The JSON of what the handler returned, and roughly its size; or InvalidArgument."""
        from faultline.call import to_json

        result = self.arguments.dump_result(value)
        text = "" if result is None else to_json(result, "result")
        if len(text) > RESULT_LIMIT_BYTES and len(text.encode()) > RESULT_LIMIT_BYTES:
            raise InvalidArgument(
                f"the result has more than {RESULT_LIMIT_BYTES} bytes: store it elsewhere and "
                "return a reference"
            )
        return result, len(text)

    def load_result(self, value: Any) -> Any:
        """A stored result as the handler's annotation has it."""
        return self.arguments.load_result(value)


class Decorator(Protocol):
    """What `@app.task(…)` is: it takes a handler and gives its Task."""

    @overload
    def __call__(self, f: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, f: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, f: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, f: Callable[P, R], /) -> Task[P, R]: ...


def as_uuid(job_id: UUID | str) -> UUID:
    """The id, also from the text that a URL or another process has of it."""
    try:
        return job_id if isinstance(job_id, UUID) else UUID(job_id)
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidArgument(f"{job_id!r} is not the id of a job: ids are UUIDs") from error


def _name(handler: Any, given: str | None) -> str:
    name = given if given is not None else getattr(handler, "__name__", "")
    if not isinstance(name, str) or not 1 <= len(name) <= 255:
        raise InvalidArgument(f"task name {name!r} must have 1 to 255 characters")
    if given is None and not name.isidentifier():
        raise InvalidArgument(
            f'{name} has no name to be found by: give it one, with @app.task(name="…")'
        )
    return name


def _refuse(name: str, handler: Any) -> None:
    if isinstance(handler, Task):
        raise InvalidArgument(f"task {name!r} is a task already: register the plain function")
    if isinstance(handler, type) or not callable(handler):
        raise InvalidArgument(f"task {name!r} is not a function")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise InvalidArgument(
            f"task {name!r} is a generator, which does not run when it is called: return a value "
            "instead of yielding some"
        )


def _timeout(value: Any) -> float | None:
    if value is None:
        return None
    timeout = as_seconds("timeout_seconds", value)
    if timeout == 0:
        raise InvalidArgument("timeout_seconds is 0, it must be more, or None for no timeout")
    return timeout


def _is_async(handler: Any) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(type(handler), "__call__", None)  # noqa: B004  # an object that is called
    )


def _place(handler: Any) -> str:
    code = getattr(inspect.unwrap(handler), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(handler)
