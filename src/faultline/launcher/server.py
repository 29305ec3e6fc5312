"""`Server`: one PostgreSQL in one home, started, found, stopped and recovered.

    start   is it running? → wait for, or clear away, what a killed launcher or server left
            → data directory (initdb) → postmaster on a free port → it answers and lets us in
    stop    fast shutdown → immediate → SIGKILL; then, if ephemeral, the data goes

Both hold the lock of the home; a second process that starts finds the first one's server and
shares it. A running server is never reconfigured: options count when it is started.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from faultline.errors import LauncherError
from faultline.launcher import binaries as programs
from faultline.launcher import cluster, identity, processes
from faultline.launcher.binaries import Binaries
from faultline.launcher.home import Place, locked, make_directory
from faultline.launcher.identity import Identity, RunAs
from faultline.launcher.instance import Instance, Launch
from faultline.launcher.watchdog import Watchdog

_LOCK_SECONDS = 300.0
_OPTION_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_NO_OPTIONS: Mapping[str, str] = {}


@dataclass(frozen=True)
class Status:
    """What is known about a server at one moment."""

    running: bool
    ephemeral: bool
    pid: int | None
    port: int | None
    data: Path
    log: Path
    url: str | None = field(repr=False)


class Server:
    """A PostgreSQL whose files are in `home`; a daemon that outlives this process.

    home      its directory; made if absent
    binaries  a directory of server programs; None: the wheel's, else the system's
    ephemeral the data is fresh at the start and discarded at the stop (home/"ephemeral")
    options   server settings, e.g. {"max_connections": "200"}; "port" fixes the port
    password  the superuser's, for a data directory made elsewhere
    run_as    as root: force one of the two ways of not being root
    cache     where binaries are copied if the server's user cannot reach them
    environment  variables for the server process, which otherwise inherits none
    """

    def __init__(
        self,
        home: Path,
        *,
        binaries: Path | None = None,
        ephemeral: bool = False,
        options: Mapping[str, str] = _NO_OPTIONS,
        password: str | None = None,
        run_as: RunAs = "auto",
        cache: Path | None = None,
        environment: Mapping[str, str] = _NO_OPTIONS,
    ) -> None:
        _check_options(options)
        self.home = home.absolute()
        self.ephemeral = ephemeral
        self._place = Place(self.home / "ephemeral" if ephemeral else self.home)
        self._instance = Instance(self._place)
        self._given_binaries = binaries
        self._options = dict(options)
        self._password = password
        self._run_as: RunAs = run_as
        self._cache = cache or self.home / "cache"
        self._environment = dict(environment)
        self._binaries: Binaries | None = None
        self._is_temporary = False
        self._watchdog: Watchdog | None = None
        self._started_here = False

    @classmethod
    def temporary(
        cls,
        *,
        binaries: Path | None = None,
        options: Mapping[str, str] = _NO_OPTIONS,
        password: str | None = None,
        run_as: RunAs = "auto",
        cache: Path | None = None,
        environment: Mapping[str, str] = _NO_OPTIONS,
    ) -> Self:
        """A server in a directory of its own that ends, and is deleted, with this process.

        Stopped and deleted by `stop`, or by a watchdog when this process dies without it.
        """
        home = Path(tempfile.gettempdir()) / f"faultline-{secrets.token_hex(8)}"
        server = cls(
            home,
            binaries=binaries,
            ephemeral=True,
            options=options,
            password=password,
            run_as=run_as,
            cache=cache,
            environment=environment,
        )
        server._is_temporary = True
        return server

    # ── what it is ──────────────────────────────────────────────────────────────────────────

    @property
    def data(self) -> Path:
        """The data directory."""
        return self._place.data

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self._place.log

    @property
    def binaries(self) -> Binaries:
        """The programs it runs, originals or copies."""
        if self._binaries is None:
            self._binaries = programs.find(self._given_binaries)
        return self._binaries

    @property
    def password(self) -> str:
        """The superuser's password."""
        password = self._place.read_password() or self._password
        if password is None:
            raise LauncherError(f"{self.home} has no server yet: start it with faultline db start")
        return password

    @property
    def port(self) -> int:
        """The port it listens on, or listened on when it last ran."""
        found = processes.recorded(self.data)
        port = (found.port if found else None) or self._place.read_port()
        if port is None:
            raise LauncherError(f"{self.home} has no server yet: start it with faultline db start")
        return port

    @property
    def url(self) -> str:
        """A URL for any driver: loopback TCP, superuser, password."""
        return f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int:
        """The postmaster's process id."""
        found = processes.recorded(self.data)
        if found is None:
            raise LauncherError(f"no server runs in {self.data}: start it with faultline db start")
        return found.pid

    def is_running(self) -> bool:
        """Whether it accepts connections; asked of the server, not of a file."""
        return self._instance.is_running()

    def status(self) -> Status:
        """Everything at once."""
        running = self.is_running()
        found = processes.recorded(self.data) if running else None
        return Status(
            running=running,
            ephemeral=self.ephemeral,
            pid=found.pid if found else None,
            port=found.port if found else None,
            data=self.data,
            log=self.log,
            url=self.url if running else None,
        )

    # ── start and stop ──────────────────────────────────────────────────────────────────────

    def start(self) -> Self:
        """Make it run, whatever state it was left in; if it runs already, share it."""
        if self.is_running():
            return self
        try:
            with self._errors_explained():
                self._make_home()
                with locked(self.home / "lock", seconds=_LOCK_SECONDS):
                    if not self.is_running() and not self._instance.other_start_succeeds():
                        self._clear_remains()
                        self._launch()
                        self._started_here = True
        except BaseException:
            if self._is_temporary and not self._started_here:
                self.stop()
            raise
        return self

    def restart(self) -> Self:
        """Stop, keep the data even if ephemeral, and start again at the same URL."""
        with self._errors_explained(), locked(self.home / "lock", seconds=_LOCK_SECONDS):
            self._instance.end()
            self._launch()
        return self

    def stop(self, *, patience_seconds: float = 20.0) -> bool:
        """Stop it, and discard it if ephemeral; False, and no error, if it was not running.

        A fast shutdown has so much time, then follow an immediate one and SIGKILL.
        """
        if not self.home.exists() and self._watchdog is None:
            return False
        with self._errors_explained():
            with locked(self.home / "lock", seconds=_LOCK_SECONDS):
                was_running = self._instance.end(patience_seconds=patience_seconds)
                if self.ephemeral and self._place.root.exists():
                    shutil.rmtree(self._place.root)
                if self._is_temporary:
                    shutil.rmtree(self.home)
            if self._watchdog is not None:
                self._watchdog.dismiss()
                self._watchdog = None
        self._started_here = False
        return was_running

    def _make_home(self) -> None:
        """As root without namespaces another user must pass through to the data, so 0711."""
        who = identity.choose(self._run_as, self.data)
        mode = 0o700 if who.uid is None else 0o711
        make_directory(self.home, mode)
        if self._is_temporary and self._watchdog is None:
            self._watchdog = Watchdog(self.home, self.data)
        make_directory(self._place.root, mode)

    def _clear_remains(self) -> None:
        self._instance.clear_remains()
        if self.ephemeral and not self._is_temporary:
            shutil.rmtree(self._place.root)
            self._make_home()
        cluster.discard_unfinished(self.data)

    def _launch(self) -> None:
        """A user, programs, a data directory, a postmaster, and a first login."""
        who = identity.choose(self._run_as, self.data)
        if who.uid is not None and not who.can_enter(self._place.root):
            raise LauncherError(
                f"the server would run as {who.name}, who cannot reach {self._place.root}: set "
                "FAULTLINE_HOME to a directory whose parents everybody may enter, such as one in "
                "/var/lib"
            )
        found = programs.reachable(programs.find(self._given_binaries), who, self._cache)
        self._binaries = found
        self._ensure_cluster(found, who)
        postgres = found.program("postgres")
        self._instance.launch(Launch(who, postgres, self._options, self._environment))
        self._check_login()

    def _ensure_cluster(self, found: Binaries, who: Identity) -> None:
        password = self._place.read_password() or self._password
        if not cluster.exists(self.data, found):
            password = password or secrets.token_hex(16)
            self._place.write_password(password)  # first: no data without its password
            # Syncing a new cluster takes longer than making it, and is lost on callers who
            # do not want their commits synced either.
            durable = not self.ephemeral and self._options.get("fsync") != "off"
            cluster.create(self.data, password, found, who, durable=durable)
        elif password is None:
            raise LauncherError(
                f"{self._place.root} has data but no password file: write the password of the "
                f"user postgres into {self._place.root / 'password'}, or set FAULTLINE_HOME to a "
                "new directory"
            )
        if self._place.read_password() != password:
            self._place.write_password(password)
        who.own(self.data)
        if self._place.socket is not None:
            make_directory(self._place.socket, 0o700)
            who.own(self._place.socket)

    def _check_login(self) -> None:
        where, why = processes.login(self.port, self.password)
        if where is None:
            raise LauncherError(
                f"the server in {self.data} runs but does not let us in ({why}): write the "
                f"password of the user postgres into {self._place.root / 'password'}"
            )

    # ── beside it ───────────────────────────────────────────────────────────────────────────

    def run(
        self,
        program: str,
        *arguments: str | Path,
        check: bool = True,
        environment: Mapping[str, str] = _NO_OPTIONS,
        timeout_seconds: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run one of its programs (psql, pg_dump, pg_basebackup, …) as its user, logged in."""
        done = identity.choose(self._run_as, self.data).run(
            [self.binaries.program(program), *arguments],
            environment={**self._login_variables(), **environment},
            timeout_seconds=timeout_seconds,
        )
        if check and done.returncode != 0:
            last = (done.stderr or done.stdout).strip().splitlines()[-3:]
            raise LauncherError(f"{program} failed ({done.returncode}): {' | '.join(last)}")
        return done

    def standby(
        self, home: Path | None = None, *, options: Mapping[str, str] = _NO_OPTIONS
    ) -> Server:
        """A streaming standby of this server, copied and ready to start; temporary without home."""
        password, run_as = self.password, self._run_as
        if home is None:
            server = Server.temporary(
                binaries=self._given_binaries, options=options, password=password, run_as=run_as
            )
        else:
            server = Server(
                home,
                binaries=self._given_binaries,
                options=options,
                password=password,
                run_as=run_as,
            )
        with server._errors_explained():
            server._make_home()
            make_directory(server.data, 0o700)
            identity.choose(run_as, self.data).own(server.data)
        self.run(
            "pg_basebackup",
            "--pgdata",
            server.data,
            "--write-recovery-conf",
            "--wal-method=stream",
            "--checkpoint=fast",
        )
        return server

    def _login_variables(self) -> dict[str, str]:
        return {
            "PGHOST": "127.0.0.1",
            "PGPORT": str(self.port),
            "PGUSER": "postgres",
            "PGPASSWORD": self.password,
            "PGDATABASE": "postgres",
            "PGDATA": str(self.data),
        }

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._started_here:
            self.stop()

    @contextlib.contextmanager
    def _errors_explained(self) -> Iterator[None]:
        """What the file system refuses, as one sentence."""
        try:
            yield
        except OSError as error:
            raise LauncherError(
                f"{error.filename or self.home} cannot be used ({error.strerror}): set "
                "FAULTLINE_HOME to a directory that you may write to, on a disk with room"
            ) from error


def _check_options(options: Mapping[str, str]) -> None:
    for name in options:
        if not _OPTION_NAME.fullmatch(name):
            raise LauncherError(f"{name!r} is not the name of a server setting")
    port = options.get("port", "1")
    if not (port.isdigit() and 0 < int(port) < 65_536):
        raise LauncherError(f"{port!r} is not a port: take a number from 1 to 65535")
