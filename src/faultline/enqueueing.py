"""How jobs of one task are sent: options, one at a time or in bulk, sync and async.

`Enqueues` is what a `Task` and `task.options(…)` have in common. A batch is grouped by its options
into as few calls as possible, and sent as one statement: all of it or nothing. Nothing here opens a
connection; the producer does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypedDict, TypeVar, Unpack

from faultline.errors import InvalidArgument, WrongArguments
from faultline.handle import Job
from faultline.observer import Sending
from faultline.plain import Misfit, as_it_is, described
from faultline.retry import Backoff, as_seconds

if TYPE_CHECKING:
    from faultline.call import Call
    from faultline.producer import Producer
    from faultline.task import Task

P = ParamSpec("P")
R = TypeVar("R")

CHUNK = 5_000  # jobs a call: one JSON array of them stays small beside the server's memory
# What the SQL functions take an option for that is not given. Part of the protocol, like their
# names: of another value there, clients of this release would get what they did not ask for.
SUPPOSED = {
    "queue": "default",
    "priority": 0,
    "delay_seconds": 0.0,
    "max_attempts": 5,
    "max_crashes": 3,
    "lease_seconds": 30.0,
    "backoff_seconds": 2.0,
    "backoff_cap_seconds": 300.0,
    "notify": True,
}


class Options(TypedDict, total=False):
    """What an enqueue may say about its job; None stands for the task's own value."""

    queue: str | None
    priority: int | None
    """Higher runs first."""
    delay_seconds: float | timedelta | None
    run_at: datetime | None
    idempotency_key: str | None
    """A second enqueue of this task under the same key gives the first one's job."""
    headers: Mapping[str, Any] | None
    """JSON that travels with the job, beside its arguments."""
    max_attempts: int | None
    max_crashes: int | None
    lease_seconds: float | None
    retry: Backoff | None
    notify: bool | None
    """False for a transaction that will be PREPAREd: NOTIFY cannot be part of one."""
    connection: Any
    """Join the transaction of this connection: psycopg's or SQLAlchemy's."""


@dataclass(frozen=True, slots=True)
class Item(Generic[R]):
    """One job of a batch with options of its own; made by `task.options(…).item(…)`."""

    task: Task[..., R]
    payload: dict[str, Any]
    options: Mapping[str, Any]


class Enqueues(Generic[P, R]):
    """The ways to send a job of a task."""

    _task: Task[P, R]
    _options: Mapping[str, Any]
    _route: Route  # of single jobs

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Enqueue one job. Blocks for a round trip; inside an event loop, await `aenqueue`."""
        task = self._task
        payload = task.arguments.dump(args, kwargs)
        return Job(send_one(task.producer, self._route, payload), task.producer, task.load_result)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """As `enqueue`, for asyncio."""
        task = self._task
        payload = task.arguments.dump(args, kwargs)
        sent = await asend_one(task.producer, self._route, payload)
        return Job(sent, task.producer, task.load_result)

    def enqueue_many(self, items: Iterable[Mapping[str, Any] | Item[R]]) -> list[Job[R]]:
        """Enqueue many jobs, all or none; answers in the order given.

        An item is a dict of arguments, or `task.options(…).item(…)` with options of its own.
        """
        batch = Batch(self._task, self._options, items)
        with self._producer.observer.enqueueing(self._task.name, batch.counts) as batch.sending:
            ids = batch.ids(self._producer.send(batch.calls, batch.connection))
            batch.sending.accepted(ids)
        return self._task.jobs(ids)

    async def aenqueue_many(self, items: Iterable[Mapping[str, Any] | Item[R]]) -> list[Job[R]]:
        """As `enqueue_many`, for asyncio."""
        batch = Batch(self._task, self._options, items)
        with self._producer.observer.enqueueing(self._task.name, batch.counts) as batch.sending:
            ids = batch.ids(await self._producer.asend(batch.calls, batch.connection))
            batch.sending.accepted(ids)
        return self._task.jobs(ids)

    def item(self, *args: P.args, **kwargs: P.kwargs) -> Item[R]:
        """One job for `enqueue_many`."""
        return Item(self._task, self._task.arguments.dump(args, kwargs), self._options)

    def options(self, **options: Unpack[Options]) -> Enqueues[P, R]:
        """The same task with options for the next enqueue, e.g. `idempotency_key="order-7"`."""
        changed = Enqueues[P, R]()
        changed._task = self._task
        changed._options = {**self._options, **checked(options)}
        changed._route = Route(self._task.name, {**self._task.defaults, **changed._options})
        return changed

    @property
    def _producer(self) -> Producer:
        return self._task.producer


class Batch:
    """Many jobs of one task as calls, and the answers of these in the order of the jobs."""

    def __init__(
        self,
        task: Task[..., Any],
        options: Mapping[str, Any],
        items: Iterable[Mapping[str, Any] | Item[Any]],
    ) -> None:
        if "idempotency_key" in options:
            raise InvalidArgument(
                "idempotency_key names one job, not a batch: give each item its own, with "
                f"{task.name}.options(idempotency_key=…).item(…)"
            )
        self._task = task
        self.connection = options.get("connection")
        common = {**task.defaults, **options}
        self._groups = groups = Groups()
        most = groups.of(common)  # most items have no options of their own
        for number, item in enumerate(items):
            payload, own = self._read(number, item)
            merged = {**common, **own} if own else common
            group = groups.of(merged) if own else most
            group.add(number, payload, merged.get("idempotency_key"))
        self._chunks = [chunk for group in groups.values() for chunk in group.chunks()]
        self.sending = Sending()

    @property
    def counts(self) -> dict[str, int]:
        """How many jobs are for which queue."""
        return self._groups.counts

    def calls(self, producer: Producer) -> list[Call[Any]]:
        """The calls, with new ids; the fewest there can be."""
        from faultline.columns import UuidColumn

        return [
            producer.verbs.enqueue_many(
                self._task.name,
                UuidColumn(producer.ids.blocks(len(chunk.payloads))),
                chunk.payloads,
                idempotency_keys=chunk.keys if any(chunk.keys) else None,
                **carrying(chunk.options, self.sending.headers),
            )
            for chunk in self._chunks
        ]

    def ids(self, answers: list[list[Any]]) -> list[Any]:
        """The ids in force, in the order in which the jobs were given."""
        if len(self._groups) == 1:
            return [job_id for ids in answers for job_id in ids]
        found: dict[int, Any] = {}
        for chunk, ids in zip(self._chunks, answers, strict=True):
            found.update(zip(chunk.numbers, ids, strict=True))
        return [found[number] for number in sorted(found)]

    def _read(self, number: int, item: Any) -> tuple[dict[str, Any], Mapping[str, Any]]:
        if type(item) is not dict and isinstance(item, Item):
            if item.task is not self._task:
                raise WrongArguments(
                    f"item {number} is one of task {item.task.name!r}, this is {self._task.name!r}"
                )
            if "connection" in item.options:
                raise InvalidArgument(f"item {number} has a connection: give it to the whole batch")
            return item.payload, item.options
        if type(item) is not dict and not isinstance(item, Mapping):
            raise WrongArguments(
                f"item {number} is {item!r:.60}: give a dict with the arguments, or "
                f"{self._task.name}.item(…)"
            )
        try:
            return self._task.arguments.dump((), item), {}
        except InvalidArgument as error:
            raise type(error)(f"item {number}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Group:
    """Jobs that share their options."""

    options: dict[str, Any]
    numbers: list[int]
    payloads: list[Any]
    keys: list[str | None]

    def add(self, number: int, payload: Any, key: str | None) -> None:
        self.numbers.append(number)
        self.payloads.append(payload)
        self.keys.append(key)

    def chunks(self) -> list[_Group]:
        """In pieces that one call may carry."""
        pieces = [slice(n, n + CHUNK) for n in range(0, len(self.numbers), CHUNK)]
        return [
            _Group(self.options, self.numbers[piece], self.payloads[piece], self.keys[piece])
            for piece in pieces
        ]


class Groups(dict[str, _Group]):
    """The fewest groups that the items can be in."""

    def of(self, options: Mapping[str, Any]) -> _Group:
        shared = {k: v for k, v in verb_options(options).items() if k != "idempotency_key"}
        return self.setdefault(repr(sorted(shared.items())), _Group(shared, [], [], []))

    @property
    def counts(self) -> dict[str, int]:
        """How many jobs are for which queue."""
        counts: dict[str, int] = {}
        for group in self.values():
            if group.numbers:
                queue = queue_of(group.options)
                counts[queue] = counts.get(queue, 0) + len(group.numbers)
        return counts


class Route:
    """A task and options that are `checked`: all that its single jobs have in common."""

    __slots__ = ("_made", "_options", "connection", "counts", "task")

    def __init__(self, task: str, options: Mapping[str, Any]) -> None:
        self.task = task
        self.connection = options.get("connection")
        self.counts = {queue_of(options): 1}
        self._options = options
        self._made: Callable[..., Call[Any]] | None = None

    def calls(self, payload: Any, carried: Mapping[str, Any]) -> Callable[..., list[Call[Any]]]:
        """The call for a job with these headers beside its own."""

        def calls(sender: Producer) -> list[Call[Any]]:
            # On own connections it is only sent; a driver of the caller's may want it as it is.
            job_id = sender.ids.text() if self.connection is None else sender.ids()
            return [self._call(sender, carried)(payload, job_id)]

        return calls

    def _call(self, sender: Producer, carried: Mapping[str, Any]) -> Callable[..., Call[Any]]:
        if not carried and self._made is not None:
            return self._made
        from faultline.protocol import enqueues

        named = verb_options(carrying(self._options, carried))
        made = enqueues(sender.verbs.schema, self.task, named)
        if not carried:  # which differs from job to job
            self._made = made
        return made


def send_one(producer: Producer, route: Route, payload: Any) -> Any:
    """Enqueue one job; the id in force."""
    with producer.observer.enqueueing(route.task, route.counts) as sending:
        ids = producer.send(route.calls(payload, sending.headers), route.connection)
        sending.accepted(ids)
    return ids[0]


async def asend_one(producer: Producer, route: Route, payload: Any) -> Any:
    """As `send_one`, for asyncio."""
    with producer.observer.enqueueing(route.task, route.counts) as sending:
        ids = await producer.asend(route.calls(payload, sending.headers), route.connection)
        sending.accepted(ids)
    return ids[0]


# ── options ──────────────────────────────────────────────────────────────────────────────────────


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, or InvalidArgument naming the one that cannot be."""
    if unknown := sorted(options.keys() - Options.__annotations__.keys()):
        raise InvalidArgument(
            f"unknown option {', '.join(unknown)}: the options are "
            f"{', '.join(Options.__annotations__)}"
        )
    return {name: _check(name, value) for name, value in options.items() if value is not None}


def _check(name: str, value: Any) -> Any:
    if name == "delay_seconds":
        return as_seconds(f"option {name}", value)
    if name == "headers":
        return _headers(value)
    fits, words = _RULES[name]
    if not fits(value):
        raise InvalidArgument(f"option {name} is {value!r:.80}, it must be {words}")
    return value


def _headers(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"option headers is {value!r:.80}, it must be a dict")
    try:
        return as_it_is(dict(value))
    except (Misfit, RecursionError) as error:
        raise InvalidArgument(f"option headers{described(error)}: headers are JSON") from error


def queue_of(options: Mapping[str, Any]) -> str:
    """Where a job with these options goes."""
    return str(options.get("queue", "default"))


def carrying(options: Mapping[str, Any], carried: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options, with headers that travel beside the user's own; these win, and then none of the
    others goes: half of one context and half of another would be neither."""
    own = options.get("headers") or {}
    if not carried or not carried.keys().isdisjoint(own):
        return options
    return {**options, "headers": {**carried, **own}}


def verb_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Checked options under the names that the database's functions have for them, without those
    that these functions suppose anyway: each costs a call twice, here and there."""
    named = {k: v for k, v in options.items() if k not in ("connection", "retry")}
    if (backoff := options.get("retry")) is not None:
        named |= {"backoff_seconds": backoff.base, "backoff_cap_seconds": backoff.cap}
    return {k: v for k, v in named.items() if k not in SUPPOSED or v != SUPPOSED[k]}


def _is_count(value: Any, most: int) -> bool:
    return _is_integer(value) and 1 <= value <= most


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**31) <= value < 2**31


def _is_lease(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0.001 <= value <= 1e6


# Where the database has a rule, it is the same one: here it is only found out sooner.
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "queue": (lambda v: isinstance(v, str) and 1 <= len(v) <= 128, "text of 1 to 128 characters"),
    "priority": (_is_integer, "a whole number; higher runs first"),
    "run_at": (
        lambda v: isinstance(v, datetime) and v.tzinfo is not None,
        "a datetime with a time zone, e.g. with tzinfo=UTC",
    ),
    "idempotency_key": (
        lambda v: isinstance(v, str) and 1 <= len(v) <= 255,
        "text of 1 to 255 characters",
    ),
    "max_attempts": (lambda v: _is_count(v, 1000), "a whole number from 1 to 1,000"),
    "max_crashes": (lambda v: _is_count(v, 100), "a whole number from 1 to 100"),
    "lease_seconds": (_is_lease, "seconds from 0.001 to 1e6"),
    "retry": (lambda v: isinstance(v, Backoff), "a Backoff, e.g. Backoff(base=2, cap=300)"),
    "notify": (lambda v: isinstance(v, bool), "True or False"),
    "connection": (lambda _: True, "a connection"),
}
