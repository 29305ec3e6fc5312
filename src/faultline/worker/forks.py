"""What a process that a handler forks keeps of its worker: nothing.

The child has copies of the worker's sockets, event loop and signal handlers. It gives up its copies
of the connections (`connect.keep_from_children`), but for one that is just being opened. SIGTERM
and Ctrl-C end it as they end any process. It may do what it was forked for. It ends where it would
go on as a second worker: when the handler returns, or awaits something that is not there yet.

`multiprocessing` ends its children itself, before that. `subprocess` and children that are spawned
have no copies.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_masked = threading.local()  # the signals that were blocked before a fork
STATUS = 1  # of a child that came back
_MESSAGE = (
    b"a process that a handler forked came back to the worker and ends here: end it with "
    b"os._exit(), or use subprocess or multiprocessing\n"
)

is_child = False  # whether this process was forked from a running worker, and runs none itself
_loops: dict[asyncio.AbstractEventLoop, tuple[int, bool]] = {}  # → its thread, and whose signals


@contextmanager
def guarded(loop: asyncio.AbstractEventLoop, *, is_process: bool) -> Iterator[None]:
    """This thread runs a worker on the loop; `is_process`: the signals are the worker's, too."""
    global is_child  # one process, one answer
    is_child = False
    _loops[loop] = (threading.get_ident(), is_process)
    try:
        yield
    finally:
        _loops.pop(loop, None)


def end() -> None:
    """End this child at once, without flushing what its parent had buffered."""
    with suppress(OSError):
        os.write(2, _MESSAGE)
    os._exit(STATUS)


def _before_fork() -> None:
    """Have a signal for the child wait until it has handlers of its own."""
    if _loops:
        _masked.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _in_parent() -> None:
    mask, _masked.mask = getattr(_masked, "mask", None), None
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _in_child() -> None:
    global is_child
    if not _loops:
        return
    is_child = True
    signal.set_wakeup_fd(-1)  # else a signal of the child's would be the parent's
    for loop, (thread, is_process) in _loops.items():
        if is_process:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if thread == threading.get_ident():  # a handler on the loop has forked
            loop.call_soon(end)
            ready = getattr(loop, "_ready", None)
            if isinstance(ready, deque):  # asyncio's own: before the steps of other handlers
                ready.rotate(1)
    _loops.clear()
    _in_parent()


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
