"""`faultline` commands that need not load Python and Faultline first, which is most of their time.

One process has loaded all of it, and forks for each command: a real process, with an environment, a
directory and an exit status of its own, and what it writes in files of its own.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from tests.stage import DEADLINE_SECONDS

LOADED = """
import atexit, gc, json, os, runpy, signal, socket, sys
from contextlib import redirect_stderr, suppress
import faultline.cli, faultline.migrate, faultline.reading, rich.console, rich.table

def command(arguments, environment, directory, stdin, stdout, stderr):
    for place, given in enumerate((stdin, stdout, stderr)):
        os.dup2(given, place)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.path[0] = directory
    sys.stdin = sys.__stdin__ = open(0, closefd=False)
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = open(
        2, "w", buffering=1, errors="backslashreplace", closefd=False
    )
    sys.argv = ["faultline", *arguments]
    try:
        runpy.run_module("faultline", run_name="__main__", alter_sys=True)
    except SystemExit as ending:
        if isinstance(ending.code, str):
            raise
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ending.code or 0)  # to take down what was loaded takes longer than the command

def serve(asked):
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for who waits
    while True:
        request, descriptors, _, _ = socket.recv_fds(asked, 1 << 20, 4)
        if not request:
            return
        if os.fork() == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
    asked.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *files, ended = descriptors
    if (pid := os.fork()) == 0:
        os.close(ended)
        command(*json.loads(request), *files)
        return
    os.write(ended, f"{pid}\\n".encode())
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(ended, f"{status}\\n".encode())
    os._exit(0)

asked = socket.socket(fileno=int(sys.argv[1]))
sys.argv = ["faultline", "jobs", "list", "--no-such-option"]
with open(os.devnull, "w") as nobody, redirect_stderr(nobody), suppress(SystemExit):
    faultline.cli.main()  # loads what is loaded late
gc.collect()
gc.freeze()  # or the memory of what is loaded is copied for each command
serve(asked)
"""


_processes: list[subprocess.Popen[bytes]] = []


@cache
def _loaded() -> socket.socket:
    """Where to ask for a command; the process behind it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    names = ("PATH", "LANG", "PYTHONPATH")
    _processes.append(
        subprocess.Popen(
            [sys.executable, "-c", LOADED, str(theirs.fileno())],
            env={name: os.environ[name] for name in names if name in os.environ},
            pass_fds=[theirs.fileno()],
        )
    )
    theirs.close()
    return ours


def run(
    *arguments: str, environment: Mapping[str, str], directory: Path | None, given: str
) -> subprocess.CompletedProcess[str]:
    """Run `faultline` with these arguments and this on stdin."""
    with ExitStack() as open_files:
        files = [open_files.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
        files[0].write(given.encode())
        files[0].seek(0)
        request = json.dumps([arguments, dict(environment), str(directory or Path.cwd())])
        status = _ended(request, [file.fileno() for file in files])
        for file in files:
            file.seek(0)
        _, out, err = [file.read().decode() for file in files]
    return subprocess.CompletedProcess(arguments, status, out, err)


def _ended(request: str, files: list[int]) -> int:
    """Its exit status; it is killed if it does not end."""
    ours, theirs = os.pipe()
    with os.fdopen(ours) as answers:
        socket.send_fds(_loaded(), [request.encode()], [*files, theirs])
        os.close(theirs)
        pid = int(answers.readline())
        if not select.select([ours], [], [], DEADLINE_SECONDS)[0]:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(request, DEADLINE_SECONDS)
        return int(answers.readline())
