"""A lane: a process that plays scenarios one after the other in an arena of its own.

    python -m faultline.drills.lane

Its first line of input is its orders, as JSON; each further one a scenario's id, which it answers
with the result, as one line of JSON. When its input ends it takes everything away again.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace

from faultline.drills.arena import OPTIONS, Arena, prepare
from faultline.drills.kinds import KINDS, guests
from faultline.drills.proxy import Proxy
from faultline.drills.scenario import Ground, Result, Scenario
from faultline.drills.scene import Scene
from faultline.launcher import Server


@dataclass(frozen=True, slots=True)
class Orders:
    """What a lane is told when it starts."""

    url: str
    name: str  # of its database
    ground: Ground

    def again(self, generation: int) -> Orders:
        """For a lane in the place of one that broke: what was left of it is not touched."""
        return replace(self, name=f"{self.name}_{generation}")


@contextmanager
def arena(orders: Orders) -> Iterator[Arena]:
    """A database of this lane's own, on the server that all share or on one of its own."""
    with ExitStack() as stack:
        server = None
        if orders.ground in ("own server", "own standby"):
            server = stack.enter_context(Server.temporary(options=OPTIONS))
        owner, worker = prepare(server.url if server else orders.url, orders.name)
        proxy = Proxy(worker) if orders.ground == "own standby" else None
        found = stack.enter_context(Arena(owner, worker_url=proxy.url if proxy else worker))
        found.server, found.proxy = server, proxy
        if proxy is not None:
            found.belongings.enter_context(proxy)
        if orders.ground == "guests":
            found.queues = guests.QUEUES
        yield found


def play(where: Arena, scenario: Scenario) -> Result:
    """One scenario; a drill that breaks is a bad result, not a silent one."""
    try:
        return Scene(where, KINDS[scenario.kind], scenario).run()
    except Exception as error:
        result = Result.of(scenario)
        place = traceback.extract_tb(error.__traceback__)[-1]
        why = f"{type(error).__name__}: {error} ({place.name}, line {place.lineno})"
        result.violations.append(f"the drill broke: {why}")
        return result


def main() -> None:
    """Until its input ends."""
    orders = Orders(**json.loads(sys.stdin.readline()))
    with arena(orders) as where:
        for line in sys.stdin:
            result = play(where, Scenario.parse(line.strip()))
            print(json.dumps(asdict(result)), flush=True)  # noqa: T201 - this is how it answers


if __name__ == "__main__":
    main()
