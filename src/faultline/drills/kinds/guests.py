"""Workers with something special about them, and how a job is brought to one of them."""

from __future__ import annotations

import subprocess
import sys
import time
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import UUID

from faultline.drills.arena import Arena
from faultline.drills.namespace import Namespace
from faultline.drills.points import Arrival
from faultline.drills.proxy import Proxy
from faultline.drills.scene import Scene
from faultline.drills.workers import WorkerProcess

REMOTE = "remote"  # reaches the database through a proxy
WALLED = "walled"  # in a network namespace of its own
FAMILY = "family"  # a parent with two processes
DAY_SECONDS = 86_400
CLOCKS = {"ahead": "+1h", "behind": "-1h"}
QUEUES = ("default", REMOTE, WALLED, FAMILY, *CLOCKS)


def remote(scene: Scene) -> tuple[WorkerProcess, Proxy]:
    """A worker behind a proxy of its own."""
    arena = scene.arena
    if arena.proxy is None:
        arena.proxy = arena.belongings.enter_context(Proxy(arena.worker_url))
    proxy = arena.proxy
    return arena.guest(REMOTE, lambda: _start(arena, REMOTE, url=proxy.url)), proxy


def walled(scene: Scene) -> tuple[WorkerProcess, Namespace]:
    """A worker in a network namespace; a proxy at its edge leads on to the database."""
    arena = scene.arena
    if arena.namespace is None:
        arena.namespace = arena.belongings.enter_context(Namespace())
        edge = Proxy(arena.worker_url, host=arena.namespace.host)
        arena.edge_url = arena.belongings.enter_context(edge).url
    space, url = arena.namespace, arena.edge_url
    how = {"url": url, "prefix": space.prefix()}
    return arena.guest(WALLED, lambda: _start(arena, WALLED, **how)), space


def family(scene: Scene) -> WorkerProcess:
    """A worker with two processes under one parent."""
    return scene.arena.guest(FAMILY, lambda: _start(scene.arena, FAMILY, "--processes", "2"))


def with_clock(scene: Scene, which: str) -> WorkerProcess:
    """A worker whose clock is an hour ahead or behind."""
    prefix = off_by(CLOCKS[which])
    return scene.arena.guest(which, lambda: _start(scene.arena, which, prefix=prefix))


def off_by(shift: str) -> list[str]:
    """Return the prefix of a command whose wall clock shall be off, by "+30h" for example.

    The library is preloaded without its wrapper command: a wrapper that is killed leaves its named
    semaphore behind, and the next one whose pid is the same refuses to start.
    """
    return _preloading(_fake_clock(), shift)


def no_fake_clock() -> str | None:
    """Return why no process can be given a wrong clock here, or None if one can."""
    if _fake_clock():
        return None
    return (
        "no libfaketime works here: pip install libfaketime "
        "(elsewhere than on Linux on x86-64: Debian's package faketime)"
    )


@cache
def _fake_clock() -> Path | None:
    """Return a libfaketime that works here, of the package libfaketime or of Debian's faketime."""
    package = find_spec("libfaketime")
    folders = package.submodule_search_locations if package else None
    vendored = (Path(folder, "vendor/libfaketime/src/libfaketime.so.1") for folder in folders or ())
    of_debian = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
    return next((path for path in (*vendored, *of_debian) if _works(path)), None)


def _works(library: Path) -> bool:
    """Start a process with this library, built perhaps for another machine, and read its clock."""
    command = [
        *_preloading(library, "-10d"),
        sys.executable,
        "-c",
        "import time; print(time.time())",
    ]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return round((time.time() - float(told)) / DAY_SECONDS) == 10


def _preloading(library: Path | None, shift: str) -> list[str]:
    """Only the wall clock is off: the kernel waits by the monotonic clock, which is its own."""
    return ["env", f"LD_PRELOAD={library}", f"FAKETIME={shift}", "DONT_FAKE_MONOTONIC=1"]


def _start(arena: Arena, queue: str, *arguments: str, **how: Any) -> WorkerProcess:
    return arena.start_worker("--queues", queue, "--grace-seconds", "2", *arguments, **how)


def bring(
    scene: Scene, queue: str, point: str, task: str | None = None, **options: Any
) -> tuple[UUID, Arrival]:
    """A job that the guest of this queue holds at this point."""
    with scene.arena.quiet():
        job_id = scene.enqueue(task, hold=[point], queue=queue, **options)
        return job_id, scene.reached(job_id, point)
