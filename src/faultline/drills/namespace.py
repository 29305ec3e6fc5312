"""A network namespace with one way out, which drops packets when told to. Needs root, `ip`, `tc`.

A pair of interfaces joins it to ours. Silence is a queue without room (pfifo, limit 0) on the
interface that sends: the packets are dropped and TCP sends them again, as on a broken network. It
takes no iptables, which are not everywhere.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from functools import cache
from typing import Self

from faultline.launcher.processes import is_alive

_NAME = "faultline-drill-"
_COMMAND_SECONDS = 10.0


class Namespace:
    """Entered: there; left: gone, once nobody runs in it."""

    def __init__(self) -> None:
        pid = os.getpid()
        self.name = f"{_NAME}{pid}"
        self._ours, self._theirs = f"fl{pid}o", f"fl{pid}t"  # at most 15 characters
        # From the range for trials of network devices, which is routed nowhere.
        third, fourth = pid // 64 % 256, pid % 64 * 4
        self.host = f"198.18.{third}.{fourth + 1}"
        self._guest = f"198.18.{third}.{fourth + 2}"

    def prefix(self) -> list[str]:
        """What to put before a command that is to run in there; it keeps its pid."""
        return ["ip", "netns", "exec", self.name]

    def silence(self, requests: bool, answers: bool) -> None:
        """From now on packets are dropped: those from there, those to there, or both."""
        if requests:
            _run("tc", "-n", self.name, *_drop("add", self._theirs))
        if answers:
            _run("tc", *_drop("add", self._ours))

    def heal(self) -> None:
        """They are not, any more."""
        with suppress(subprocess.CalledProcessError):
            _run("tc", "-n", self.name, *_drop("del", self._theirs))
        with suppress(subprocess.CalledProcessError):
            _run("tc", *_drop("del", self._ours))

    def dropped(self) -> int:
        """How many packets so far, since the silence began."""
        there = _run("tc", "-s", "-n", self.name, "qdisc", "show", "dev", self._theirs)
        here = _run("tc", "-s", "qdisc", "show", "dev", self._ours)
        return sum(
            int(text.partition("(dropped ")[2].partition(",")[0])
            for text in (there, here)
            if "pfifo" in text
        )

    def __enter__(self) -> Self:
        _remove_abandoned()
        _run("ip", "netns", "add", self.name)
        try:
            pair = ("type", "veth", "peer", "name", self._theirs, "netns", self.name)
            _run("ip", "link", "add", self._ours, *pair)
            _run("ip", "addr", "add", f"{self.host}/30", "dev", self._ours)
            _run("ip", "link", "set", self._ours, "up")
            _run("ip", "-n", self.name, "addr", "add", f"{self._guest}/30", "dev", self._theirs)
            _run("ip", "-n", self.name, "link", "set", self._theirs, "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for command in (("link", "del", self._ours), ("netns", "del", self.name)):
            with suppress(subprocess.CalledProcessError):
                _run("ip", *command)


@cache
def is_allowed() -> bool:
    """Whether one can be made here; found out by making one."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc"))):
        return False
    try:
        with Namespace() as tried:
            tried.silence(requests=True, answers=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def _drop(verb: str, interface: str) -> list[str]:
    room = ["pfifo", "limit", "0"] if verb == "add" else []
    return ["qdisc", verb, "dev", interface, "root", *room]


def _remove_abandoned() -> None:
    """Those whose process was killed before it could."""
    for line in _run("ip", "netns", "list").splitlines():
        name = line.split()[0] if line.strip() else ""
        pid = name.removeprefix(_NAME)
        if name.startswith(_NAME) and pid.isdigit() and not is_alive(int(pid)):
            with suppress(subprocess.CalledProcessError):
                _run("ip", "netns", "del", name)


def _run(*command: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=True
    )
    return done.stdout
