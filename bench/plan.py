"""How large a run is: the full one, the quick one, and whatever a test asks for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """Sizes that the scenarios share; frozen, so that none can change them for the next."""

    jobs: int = 100_000  # in one drain or bulk enqueue
    rounds: int = 3  # a figure is the median of so many
    share: float = 1.0  # of each scenario's own seconds and numbers

    @classmethod
    def quick(cls) -> Plan:
        """For a look: a fifth of the jobs, one round, a third of the time."""
        return cls(jobs=20_000, rounds=1, share=0.3)

    def seconds(self, full: float) -> float:
        """So long, of what a full run takes."""
        return full * self.share

    def number(self, full: int) -> int:
        """So many, of what a full run does; at least one."""
        return max(1, round(full * self.share))
