"""A child process that is started anew when a .py file changes, and ended by a signal.

    with Reload(command, directory) as child:
        status = child.run(environment)          # until Ctrl-C, SIGTERM or SIGHUP

From `with` on a signal no longer interrupts what is under way: it is remembered, so that whatever
was started before `run` can be ended in order. The child has a process group of its own, so that
Ctrl-C reaches it once, from here: the first signal drains it, a second one hurries it, a third
kills it. A child that ends by itself, as with a syntax error, is started anew at the next change.
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

from faultline.log import printable

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_SECONDS = 0.3
_TICK_SECONDS = 0.05
_SCAN_SHARE = 10  # a look that takes long is followed by a pause of so many times its length
_SKIPPED = {"__pycache__", "node_modules", "site-packages"}

Snapshot = dict[Path, tuple[int, int]]


class Reload:
    """The child, the files it depends on, and the signals that end it."""

    def __init__(self, command: Sequence[str], directory: Path) -> None:
        self._command = list(command)
        self._directory = directory
        self._received: list[int] = []
        self._previous: dict[int, signal.Handlers | int | object | None] = {}
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            self._previous[number] = signal.signal(number, self._remember)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._child is not None:
            self._end(self._child)
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def run(self, environment: Mapping[str, str]) -> int:
        """Until a signal; answers with the exit status: 130 for Ctrl-C, else 0."""
        seen = snapshot(self._directory)
        if not self._received:
            self._child = self._start(environment)
        while not self._received:
            began = time.monotonic()
            found = snapshot(self._directory)
            pause = max(_LOOK_SECONDS, (time.monotonic() - began) * _SCAN_SHARE)
            if found != seen:
                changed = _changed(seen, found)
                seen = self._when_still(found)
                self._say(f"{', '.join(changed)} changed: restarting")
                if self._child is not None:
                    self._end(self._child)
                self._child = None if self._received else self._start(environment)
            elif self._child is not None and (status := self._child.poll()) is not None:
                self._child = None
                self._say(f"the worker ended ({status}): waiting for a change")
            self._sleep(pause)
        if self._child is not None:
            self._end(self._child)
            self._child = None
        return 130 if self._received[0] == signal.SIGINT else 0

    def _remember(self, number: int, _: FrameType | None) -> None:
        self._received.append(number)

    def _start(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command,
            cwd=self._directory,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            process_group=0,
        )

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        """SIGTERM, and once more for each further signal; the third kills."""
        child.terminate()
        hurried = len(self._received)
        while child.poll() is None:
            time.sleep(_TICK_SECONDS)
            if len(self._received) > max(hurried, 1):
                hurried = len(self._received)
                if hurried >= 3:
                    child.kill()
                else:
                    child.terminate()

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
