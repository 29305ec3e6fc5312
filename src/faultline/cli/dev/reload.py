"""Child processes that are started anew when a .py file changes, and ended by a signal.

    with Reload(command, directory, count=2) as children:
        status = children.run(environment)       # until Ctrl-C, SIGTERM or SIGHUP

From `with` on a signal no longer interrupts what is under way: it is remembered, so that whatever
was started before `run` can be ended in order. Each child has a process group of its own, so that
Ctrl-C reaches it once, from here: the first signal drains it, a second one hurries it, a third
kills it. A child that ends by itself, as with a syntax error, is started anew at the next change.
One that somebody has stopped is continued before it is ended: it would not hear. Should this
process be killed, so are they.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

import typer

from faultline.drills.workers import end_with_parent
from faultline.log import printable

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_SECONDS = 0.3
_TICK_SECONDS = 0.05
_SCAN_SHARE = 10  # a look that takes long is followed by a pause of so many times its length
_SKIPPED = {"__pycache__", "node_modules", "site-packages"}

Snapshot = dict[Path, tuple[int, int]]


class Reload:
    """The children, the files they depend on, and the signals that end them."""

    def __init__(self, command: Sequence[str], directory: Path, count: int = 1) -> None:
        self._command = list(command)
        self._directory = directory
        self._count = count
        self._received: list[int] = []
        self._previous: dict[int, signal.Handlers | int | object | None] = {}
        self._children: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> list[int]:
        """Of the children that are there now."""
        return [child.pid for child in self._children if child.poll() is None]

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            self._previous[number] = signal.signal(number, self._remember)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._end_all()
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def run(self, environment: Mapping[str, str]) -> int:
        """Until a signal; answers with the exit status: 130 for Ctrl-C, else 0."""
        seen = snapshot(self._directory)
        self._start_all(environment)
        while not self._received:
            began = time.monotonic()
            found = snapshot(self._directory)
            pause = max(_LOOK_SECONDS, (time.monotonic() - began) * _SCAN_SHARE)
            if found != seen:
                changed = _changed(seen, found)
                seen = self._when_still(found)
                self._say(f"{', '.join(changed)} changed: restarting")
                self._end_all()
                self._start_all(environment)
            for child in [child for child in self._children if child.poll() is not None]:
                self._children.remove(child)
                self._say(f"the worker ended ({child.returncode}): waiting for a change")
            self._sleep(pause)
        self._end_all()
        return 130 if self._received[0] == signal.SIGINT else 0

    def _remember(self, number: int, _: FrameType | None) -> None:
        self._received.append(number)

    def _start_all(self, environment: Mapping[str, str]) -> None:
        for _ in range(0 if self._received else self._count):
            child = subprocess.Popen(
                self._command,
                cwd=self._directory,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                process_group=0,
                preexec_fn=end_with_parent,
            )
            self._children.append(child)

    def _end_all(self) -> None:
        """SIGTERM, and once more for each further signal; the third kills."""
        for child in self._children:
            child.terminate()
        hurried = len(self._received)
        while self.pids:
            for child in self._children:
                child.send_signal(signal.SIGCONT)  # somebody may stop it, now as well
            time.sleep(_TICK_SECONDS)
            if len(self._received) > max(hurried, 1):
                hurried = len(self._received)
                for child in self._children:
                    child.send_signal(signal.SIGKILL if hurried >= 3 else signal.SIGTERM)
        self._children.clear()

    def _sleep(self, seconds: float) -> None:
        """Until the pause is over or a signal came."""
        until = time.monotonic() + seconds
        while not self._received and time.monotonic() < until:
            time.sleep(_TICK_SECONDS)

    def _when_still(self, found: Snapshot) -> Snapshot:
        """An editor, or a checkout, writes several files: wait until nothing changes any more."""
        while not self._received:
            self._sleep(_TICK_SECONDS * 2)
            if (again := snapshot(self._directory)) == found:
                break
            found = again
        return found

    def _say(self, sentence: str) -> None:
        typer.echo(f"\n{printable(sentence)}")


def snapshot(directory: Path) -> Snapshot:
    """When each .py file below the directory was changed, and its size."""
    found: Snapshot = {}
    for path in _python_files(directory):
        with suppress(OSError):  # it has just gone
            state = path.stat()
            found[path] = (state.st_mtime_ns, state.st_size)
    return found


def _python_files(directory: Path) -> Iterator[Path]:
    """Not those of environments, caches and hidden directories."""
    for folder, folders, files in os.walk(directory):
        if "pyvenv.cfg" in files:
            folders.clear()
            continue
        folders[:] = [name for name in folders if name[0] != "." and name not in _SKIPPED]
        yield from (Path(folder, name) for name in files if name.endswith(".py"))


def _changed(before: Snapshot, after: Snapshot) -> list[str]:
    """The names of the first few files that differ."""
    paths = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
    names = [path.name for path in paths[:3]]
    return names if len(paths) <= 3 else [*names, "…"]
