"""The app of workers whose handlers fork."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from faultline import App, connect

app = App()


def sockets_to_the_database() -> int:
    """How many sockets of this process lead to a PostgreSQL server of the tests."""
    port = app_port()
    found = 0
    for file in Path("/proc/self/fd").iterdir():
        with suppress(OSError), socket.socket(fileno=os.dup(int(file.name))) as copy:
            peer: Any = copy.getpeername()
            found += isinstance(peer, tuple) and peer[1] == port
    return found


def app_port() -> int:
    """The port of the app's database."""
    port = urlsplit(app.url).port
    assert port is not None
    return port


def count(pipe: Any) -> None:
    """What a child is made for."""
    pipe.send(sockets_to_the_database())


def handle(pipe: Any) -> None:
    """Until SIGTERM, of which it makes a status of its own."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    pipe.send("ready")
    forever()


def forever() -> None:
    """Until a signal ends it."""
    while True:
        signal.pause()


def made_child(method: str) -> list[int | None]:
    """The sockets that a child has, and how it ended."""
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    child = context.Process(target=count, args=(theirs,))
    child.start()
    theirs.close()
    found = ours.recv()
    child.join()
    return [found, child.exitcode]


def is_settled() -> bool:
    """Whether no connection of the worker is just being opened."""
    return sockets_to_the_database() == sum(not conn.closed for conn in connect._kept)


@app.task
def child(method: str) -> list[int | None]:
    """By multiprocessing, in a thread."""
    while not is_settled():
        time.sleep(0.01)
    return made_child(method)


@app.task
async def achild(method: str) -> list[int | None]:
    """On the event loop."""
    while not is_settled():
        await asyncio.sleep(0.01)
    return made_child(method)


@app.task
async def terminated() -> int | None:
    """A child that SIGTERM ends, and not its parent."""
    process = multiprocessing.get_context("fork").Process(target=forever)
    process.start()
    process.terminate()
    process.join()
    return process.exitcode


@app.task
async def handled() -> int | None:
    """A child that handles SIGTERM itself."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=handle, args=(theirs,))
    process.start()
    ours.recv()
    process.terminate()
    process.join()
    return process.exitcode


@app.task
def returns(kind: str) -> int:
    """A raw fork in a thread, after which both go on."""
    return fork()


@app.task
async def areturns(kind: str) -> int:
    """On the event loop; the child returns, or waits for something."""
    status = fork()
    if kind == "waits":
        await asyncio.sleep(0)
    return status


def fork() -> int:
    """How the child ended; it is waited for, which blocks the thread or the loop."""
    write("forks")
    if (pid := os.fork()) == 0:
        return 0
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@app.task
async def neighbour(number: int) -> int:
    """Runs beside those that fork, and writes that it does."""
    await asyncio.sleep(0.01)
    write(str(number))
    return number


def write(note: str) -> None:
    """An effect, on a connection of its own: a second one would be seen."""
    with app.connect() as conn:
        conn.execute("insert into effect (note) values (%s)", (note,))
