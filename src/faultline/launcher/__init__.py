"""The embedded PostgreSQL: found, initialised, started, stopped and recovered without set-up.

    with Server.temporary(options={"fsync": "off"}) as server:     # ends with this process
        psycopg.connect(server.url)

    Server(home).start()                                           # a daemon that stays

    binaries    which server programs to run, and a copy where the server's user reaches them
    identity    which user they run as, since PostgreSQL refuses root
    cluster     making a data directory, or checking that the one found can be used
    processes   what is alive in a data directory, and ending it
    watchdog    ends a temporary server when the process that started it dies
    home        the small files beside the data, and the lock
    instance    one postmaster: does it answer, what did it leave, launch it, end it
    server      `Server`, which puts these together under one lock

It refuses to read the environment, to create users, to change permissions of directories that
are not its own, and to signal a process that is not a PostgreSQL of its own data directory.
"""

from faultline.launcher.binaries import Binaries, find
from faultline.launcher.identity import RunAs
from faultline.launcher.server import Server, Status

__all__ = ["Binaries", "RunAs", "Server", "Status", "find"]
