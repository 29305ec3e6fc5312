"""The network between a worker and the database: silent, reset, or without the answer to a COMMIT.

The worker is a guest behind a proxy of the arena's own, or in a network namespace.
"""

from __future__ import annotations

import time
from uuid import UUID

from faultline.drills.arena import until
from faultline.drills.kinds.guests import REMOTE, WALLED, bring, remote, walled
from faultline.drills.kinds.sessions import backends, until_gone
from faultline.drills.namespace import is_allowed
from faultline.drills.proxy import Fate, Moment, Proxy, Way
from faultline.drills.scenario import Kind
from faultline.drills.scene import PAYING, Scene

# Those that commit an effect so that an attempt which does not know of it does not write it again.
RESOLVING = ("pay", "pay_async", "pay_in_steps")
SILENT_SECONDS = 0.2  # in which the worker writes and hears nothing


def play_partition(scene: Scene) -> None:
    """Longer than the lease; both ways or one; the worker writes into the silence or after it."""
    requests, answers = scene.random.choice([(True, True), (True, False), (False, True)])
    drops_packets = scene.random.random() < 0.3 and is_allowed()
    silence = _DroppedPackets(scene) if drops_packets else _SilentProxy(scene)
    moment = scene.random.choice(["begin", "written"])
    into_the_silence = scene.random.random() < 0.5
    task = scene.random.choice(PAYING)
    victim, arrival = bring(scene, silence.queue, moment, task)
    scene.bystanders()
    at = scene.arena.now()
    silence.begin(requests, answers)
    try:
        until(silence.is_felt, "something is lost in the silence")
        ways = "both ways" if requests and answers else "requests" if requests else "answers"
        what = f"partition of {ways}, {silence.how}"
        scene.record(scene.arena.fault(what, silence.guest.pid, at), victim)
        scene.until_state(victim, "succeeded")
        if into_the_silence:
            scene.go(victim, moment)
            time.sleep(SILENT_SECONDS)
    finally:
        silence.end()
    scene.go(victim, moment)
    scene.until_answered(victim, arrival.token)
    # In a transaction it is not refused by the fence: the server has ended that by then.
    scene.stale_is_refused = moment == "begin"
    if scene.stale_is_refused:
        scene.until_refused(victim)


class _SilentProxy:
    """Nothing passes, and nothing is lost either: it arrives at the end."""

    how, queue = "by a proxy", REMOTE

    def __init__(self, scene: Scene) -> None:
        self.guest, self._proxy = remote(scene)
        self._ways: list[Way] = []

    def begin(self, requests: bool, answers: bool) -> None:
        ways = [(self._proxy.requests, requests), (self._proxy.answers, answers)]
        self._ways = [way for way, is_silent in ways if is_silent]
        self._proxy.partition(*self._ways)

    def is_felt(self) -> bool:
        return any(way.kept.is_set() for way in self._ways)

    def end(self) -> None:
        self._proxy.heal()


class _DroppedPackets:
    """The kernel drops what is sent, and TCP sends it again."""

    how, queue = "packets dropped in a namespace", WALLED

    def __init__(self, scene: Scene) -> None:
        self.guest, self._space = walled(scene)

    def begin(self, requests: bool, answers: bool) -> None:
        self._space.silence(requests, answers)

    def is_felt(self) -> bool:
        return self._space.dropped() > 0

    def end(self) -> None:
        self._space.heal()


def play_reset(scene: Scene) -> None:
    """Every connection of the worker, at both ends."""
    guest, proxy = remote(scene)
    moment = scene.random.choice(["begin", "written", "written"])
    effects = scene.random.randint(1, 2)
    victim, _ = bring(scene, REMOTE, moment, scene.random.choice(PAYING), effects=effects)
    scene.bystanders()
    pids = backends(scene.arena, guest)
    count = proxy.reset()
    if not count:
        scene.violations.append("there was no connection to reset")
    until_gone(scene.arena, pids)
    scene.record(scene.arena.fault(f"reset of {count} connections", guest.pid), victim)
    scene.token_rises = moment == "written"  # else it gets new ones, and the lease is kept
    scene.go(victim, moment)
    scene.until_state(victim, "succeeded")


class _Once:
    """Decides about the first COMMIT of one job's fenced transactions."""

    def __init__(self, job_id: UUID, fate: Fate) -> None:
        self._job_id = job_id
        self._fate: Fate | None = fate

    def __call__(self, moment: Moment) -> Fate | None:
        if not moment.is_commit or moment.fence is None or moment.fence[0] != self._job_id:
            return None
        fate, self._fate = self._fate, None
        return fate


def play_lost_commit(scene: Scene) -> None:
    """The COMMIT reaches the server and its answer nobody, or not even the COMMIT arrives."""
    guest, proxy = remote(scene)
    fate = (Fate.LOSE_ANSWER, Fate.LOSE_REQUEST)[scene.scenario.seed % 2]
    effects = scene.random.randint(1, 2)
    victim, _ = bring(scene, REMOTE, "begin", scene.random.choice(RESOLVING), effects=effects)
    scene.bystanders()
    _lose(scene, proxy, victim, fate)
    what = "the answer to COMMIT" if fate is Fate.LOSE_ANSWER else "COMMIT"
    scene.record(scene.arena.fault(f"{what} lost, connection cut", guest.pid), victim)
    scene.token_rises = fate is Fate.LOSE_REQUEST  # what was committed is found, and stands
    scene.until_state(victim, "succeeded")
    if fate is Fate.LOSE_ANSWER and len(scene.executions(victim)) > 1:
        scene.violations.append("what was committed was not found, and the job ran again")


def _lose(scene: Scene, proxy: Proxy, victim: UUID, fate: Fate) -> None:
    proxy.when(_Once(victim, fate))
    try:
        scene.go(victim, "begin")
        until(proxy.lost.is_set, "a COMMIT or its answer is lost")
    finally:
        proxy.when(None)


PARTITION = Kind(
    "partition",
    "silence between a worker and the database, both ways or one, for longer than its lease",
    play_partition,
    ground="guests",
)
RESET = Kind(
    "reset",
    "all connections of a worker are reset in mid-job",
    play_reset,
    quick=1,
    ground="guests",
)
LOST_COMMIT = Kind(
    "lost_commit",
    "a COMMIT is carried out and its answer lost, or it is lost itself",
    play_lost_commit,
    ground="guests",
)
