"""A scenario: a kind of fault, a seed and a lease, from which everything else about it follows.

Its id is all it takes to play it again: `faultline drill replay takeover-17`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from faultline.errors import InvalidArgument

if TYPE_CHECKING:
    from faultline.drills.scene import Scene

LEASE_SECONDS = 1.0  # so that a takeover is a matter of a second
DEFAULT_LEASE_SECONDS = 30.0  # what a task has that says nothing
_ID = re.compile(r"([a-z_]+)-([0-9]{1,9})(?:@([1-9][0-9]{0,3}))?")
# Where it can be played: beside others; there, among workers with something special about them; or
# where nobody minds what becomes of the server.
Ground = Literal["shared", "guests", "own server", "own standby"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault, how often it is drilled, and what a scenario of it must have shown."""

    name: str
    sentence: str
    play: Callable[[Scene], None]
    full: int = 20
    quick: int = 2
    at_default: int = 3  # so many more, in a full run, with the lease that a task has by default
    ground: Ground = "shared"
    token_rises: bool = True  # else the scenario is vacuous
    stale_is_refused: bool = False  # likewise
    needs: Callable[[], str | None] = lambda: None  # why it cannot be played here, if it cannot


@dataclass(frozen=True, slots=True)
class Scenario:
    """One of a kind."""

    kind: str
    seed: int
    lease_seconds: float = LEASE_SECONDS

    @property
    def id(self) -> str:
        """Its name; with the lease, if that is not a drill's usual one."""
        lease = "" if self.lease_seconds == LEASE_SECONDS else f"@{self.lease_seconds:.0f}"
        return f"{self.kind}-{self.seed}{lease}"

    @classmethod
    def parse(cls, text: str) -> Scenario:
        """From its name."""
        match = _ID.fullmatch(text)
        if match is None:
            raise InvalidArgument(f"{text!r} is no scenario: give a kind and a seed, as in crash-7")
        return cls(match[1], int(match[2]), float(match[3] or LEASE_SECONDS))

    def random(self) -> random.Random:
        """Its choices: the same every time."""
        return random.Random(f"{self.kind}-{self.seed}")  # noqa: S311 - nothing secret


@dataclass(slots=True)
class Result:
    """What came of a scenario; good if nothing was violated, vacuous or void."""

    id: str
    kind: str
    seed: int
    lease_seconds: float
    seconds: float = 0.0
    faults: list[dict[str, Any]] = field(default_factory=list)
    jobs: int = 0
    committed: int = 0
    tokens: dict[str, list[int]] = field(default_factory=dict)  # of the jobs that were hit
    stale_refused: int = 0
    duplicates: int = 0
    lost: int = 0
    violations: list[str] = field(default_factory=list)
    vacuous: str | None = None
    void: str | None = None  # why it could not be staged, in the last of its tries
    recovery_seconds: list[float] = field(default_factory=list)
    after_expiry_seconds: list[float] = field(default_factory=list)
    timeline: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, scenario: Scenario) -> Result:
        """Nothing yet."""
        return cls(scenario.id, scenario.kind, scenario.seed, scenario.lease_seconds)

    @property
    def is_good(self) -> bool:
        """Whether it shows what it is there to show."""
        return not self.violations and self.vacuous is None and self.void is None
