"""Ports of this machine, for servers that cannot choose one themselves."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

_chance = random.SystemRandom()


def free_port() -> int:
    """Below those that the system gives to whoever connects: such a one would soon be taken again,
    before the server has it. So is the port that a Redis of a cluster also takes, 10,000 above."""
    while True:
        port = _chance.randrange(10_000, 22_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def answers(port: int) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
