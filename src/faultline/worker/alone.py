"""Running a job alone: in a process of its own, because its last worker died with it.

A worker that dies counts a crash against everything it had started; only one of them may be the
poison. So whoever has a crash is tried again where nobody else can be hurt, and only the one that
really kills its process reaches its limit. The child adopts the lease, under a name of its own, and
writes the ending itself; this side waits for it, and ends the lease at once when it dies.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from contextlib import suppress
from functools import partial

from faultline.observer import NOBODY, Observer
from faultline.worker.attempt import Attempt
from faultline.worker.child import Child, Spec
from faultline.worker.endings import Died, Ending, Gone

START_SECONDS = 30.0


def apart(worker: str) -> str:
    """Whose the leases of this worker's suspects are, until their processes have begun."""
    return f"{worker}+alone"


class Alone:
    """Starts the processes of one worker's suspects."""

    def __init__(self, worker: str, spec: Spec, observer: Observer = NOBODY) -> None:
        self._spec = spec
        self._observer = observer
        self.name = apart(worker)

    async def run(self, attempt: Attempt) -> Ending | None:
        """Run the attempt in a child; the ending says what is left to do here, None that it did
        not begin.

        The lease is kept here until the child says that it does: starting a process may take
        longer than a lease.
        """
        name = f"{self.name}.{secrets.token_hex(3)}"  # each its own: a job may run alone twice
        heard, said = os.pipe()
        try:
            spec = self._spec.for_lease(name, attempt.lease, said)
            child = await Child.start(spec, self._observer)
        except BaseException:
            os.close(heard)
            raise
        finally:
            os.close(said)
        attempt.interrupt = partial(_ask_to_stop, child)
        if attempt.told is not None:  # while the child was being started
            _ask_to_stop(child, attempt)
        if not await _is_kept(heard):
            with suppress(ProcessLookupError):
                child.send_signal(signal.SIGKILL)
            await child.wait()
            return None
        attempt.alone = True
        return Gone(attempt) if await child.wait() == 0 else Died(attempt, name)


async def _is_kept(pipe: int) -> bool:
    """Whether the child has said so, before it ended or its time to start was over."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[bool] = loop.create_future()

    def heard() -> None:
        loop.remove_reader(pipe)
        answer.set_result(os.read(pipe, 1) != b"")

    loop.add_reader(pipe, heard)
    try:
        return await asyncio.wait_for(answer, START_SECONDS)
    except TimeoutError:
        loop.remove_reader(pipe)
        return False
    finally:
        os.close(pipe)


def _ask_to_stop(child: Child, attempt: Attempt) -> None:
    """A shutdown means hand it back now; everything else the child finds out by itself."""
    if attempt.told == "shutdown":
        with suppress(ProcessLookupError):
            child.send_signal(signal.SIGTERM)
