"""Running drills: which scenarios, in how many lanes at once, and what they add up to.

Lanes are processes (`faultline.drills.lane`), each with an arena of its own. After a bad scenario a
lane is replaced: what was left behind in its arena must not count against the next. A scenario that
could not be staged is tried again in the new lane, three times in all.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict

from faultline.drills.kinds import KINDS
from faultline.drills.lane import Orders
from faultline.drills.scenario import DEFAULT_LEASE_SECONDS, Ground, Result, Scenario

# More than there are cores: most of a scenario is waiting for a lease to run out.
LANES: dict[Ground, int] = {"shared": 6, "guests": 1, "own server": 1, "own standby": 1}
# Beside them, for scenarios with the default lease, which do nothing but wait.
PATIENT_LANES: dict[Ground, int] = {"shared": 3, "guests": 2, "own server": 1, "own standby": 1}
OPTIONS = {"max_connections": "1200"}  # a lane's crowd, workers and producers are 70
_LIMIT = 1 << 24  # of one line of a lane's answer
STAGINGS = 3  # how often a scenario is tried that cannot be staged
Listener = Callable[[Result], None]


def choose(
    kinds: Sequence[str], *, quick: bool = False, each: int | None = None, seed: int = 1
) -> list[Scenario]:
    """The scenarios of these kinds, mixed, so that a run that is cut short has seen all."""
    counts = {name: each or (KINDS[name].quick if quick else KINDS[name].full) for name in kinds}
    chosen = [Scenario(name, seed + n) for name in kinds for n in range(counts[name])]
    chosen.sort(key=lambda s: ((s.seed - seed) / counts[s.kind], s.kind))
    if quick or each:
        return chosen
    return chosen + [
        Scenario(name, seed + n, DEFAULT_LEASE_SECONDS)
        for name in kinds
        for n in range(KINDS[name].at_default)
    ]


def what_is_missing(kinds: Sequence[str]) -> dict[str, str]:
    """The kinds that cannot be played on this machine, and why."""
    asked = {name: KINDS[name].needs() for name in kinds}
    return {name: why for name, why in asked.items() if why is not None}


async def run(
    scenarios: Iterable[Scenario], url: str, listener: Listener, *, lanes: int | None = None
) -> None:
    """Play them all on this server and on others that are started; the listener hears of each."""
    waiting: dict[tuple[Ground, bool], deque[Scenario]] = defaultdict(deque)
    for scenario in scenarios:
        is_patient = scenario.lease_seconds == DEFAULT_LEASE_SECONDS
        waiting[KINDS[scenario.kind].ground, is_patient].append(scenario)
    async with asyncio.TaskGroup() as group:
        for (ground, is_patient), queue in waiting.items():
            count = lanes or (PATIENT_LANES if is_patient else LANES)[ground]
            for number in range(min(count, len(queue))):
                name = f"drill_{ground}_{number}{'_patient' * is_patient}".replace(" ", "_")
                group.create_task(_serve(queue, Orders(url, name, ground), listener))


async def _serve(queue: deque[Scenario], orders: Orders, listener: Listener) -> None:
    """One lane, and another one in its place after a bad scenario."""
    generation, stagings = 0, 0
    while queue:
        generation += 1
        lane = await _Lane.start(orders.again(generation))
        is_good = True
        try:
            while queue and is_good:
                scenario = queue.popleft()
                result = await lane.play(scenario)
                is_good = result.is_good
                stagings += 1
                if is_staged_again(result, stagings):
                    queue.appendleft(scenario)
                    continue
                stagings = 0
                listener(result)
        finally:
            await lane.close()


def is_staged_again(result: Result, stagings: int) -> bool:
    """Whether this result, of the last of so many tries, is not the scenario's result yet."""
    return result.void is not None and not result.violations and stagings < STAGINGS


class _Lane:
    """A lane's process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, orders: Orders) -> _Lane:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "faultline.drills.lane",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            process_group=0,  # Ctrl-C is ours to pass on
            limit=_LIMIT,
        )
        lane = cls(process)
        lane._send(json.dumps(asdict(orders)))
        return lane

    async def play(self, scenario: Scenario) -> Result:
        assert self._process.stdout is not None
        self._send(scenario.id)
        if line := await self._process.stdout.readline():
            return Result(**json.loads(line))
        result = Result.of(scenario)
        result.violations.append(f"the drill broke: its lane ended with {await self._end()}")
        return result

    def _send(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode() + b"\n")

    async def close(self) -> None:
        """Its input ends; it takes its workers away and follows."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._end(), 30)
            return
        self._process.kill()
        await self._end()

    async def _end(self) -> int:
        return await self._process.wait()
