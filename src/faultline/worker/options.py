"""How a worker is run: the options of `faultline worker` and of `app.run_worker`, checked once."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass, replace
from typing import Literal

from faultline.errors import InvalidArgument
from faultline.events import Level


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Defaults that suit one small machine."""

    queues: tuple[str, ...] = ()
    """Which queues to serve; none: those that the app's tasks name, and `default`."""
    concurrency: int = 20
    """How many jobs a process runs at once."""
    transactions: int | None = None
    """How many fenced transactions may be open at once, each with a connection; by default one for
    each job, and at most 20."""
    processes: int = 1
    """More than one: a parent keeps so many children, and ends a dead one's leases at once."""
    max_jobs: int | None = None
    """End (a child: start anew) after so many jobs."""
    grace_seconds: float = 30.0
    """How long SIGTERM waits for running jobs before they are handed back."""
    poll_seconds: float = 1.0
    """How often to look for work, expired leases and due jobs when nothing is announced."""
    allow_empty: bool = False
    """Start also where the app has no task: the worker then declines every job."""
    name: str | None = None
    """How the worker is called in the database, before a random part; by default host, process."""
    metrics_port: int | None = None
    """Answer Prometheus here; one port for all processes. None: nowhere."""
    metrics_host: str = "127.0.0.1"
    """Where to listen for it."""
    log: Literal["text", "json"] = "text"
    """How events are written to standard output."""
    log_level: Level = "info"
    """From which level on."""

    @property
    def max_transactions(self) -> int:
        """`transactions`, or its default."""
        return self.transactions or min(self.concurrency, 20)

    def __post_init__(self) -> None:
        if isinstance(self.queues, str):
            raise InvalidArgument(f"queues is {self.queues!r}: give a list of names")
        object.__setattr__(self, "queues", tuple(self.queues))
        _at_least("concurrency", self.concurrency, 1)
        _at_least("processes", self.processes, 1)
        if self.transactions is not None:
            _at_least("transactions", self.transactions, 1)
        _at_least("grace_seconds", self.grace_seconds, 0)
        _at_least("poll_seconds", self.poll_seconds, 0.01)
        if self.max_jobs is not None:
            _at_least("max_jobs", self.max_jobs, 1)
        if self.name is not None and not 1 <= len(self.name) <= 200:
            raise InvalidArgument("the name of a worker must have 1 to 200 characters")
        for queue in self.queues:
            if not 1 <= len(queue) <= 128:
                raise InvalidArgument(f"queue name {queue!r} must have 1 to 128 characters")


def _at_least(name: str, value: float, least: float) -> None:
    if not value >= least:
        raise InvalidArgument(f"{name} is {value}: it must be at least {least}")


def named(options: WorkerOptions) -> WorkerOptions:
    """With a name for people, and a part that nobody else has or can guess: who knows the name of a
    worker can end its leases."""
    name = options.name or f"{socket.gethostname()[:180]}:{os.getpid()}"
    return replace(options, name=f"{name}:{secrets.token_hex(4)}"[-200:])
