"""The pages of docs/, done as a reader does them: files saved, code run, commands typed.

    ```python    run in one interpreter per page; or saved, if its first line is `# name.py`
    ```console   each `$ ` line is typed into a shell, and the lines below it are what it prints
    ```sql       run on the page's database
    ```py        of another queue: parsed here, and run by `make guides`
    ```psql      several sessions, each on a connection of its own; see tests/sessions.py

What is printed may differ in times, ids, names of workers, fractions and numbers of five digits and
more; … stands for anything, alone on a line for any lines. An id that a page has shown stands for
the real one afterwards, and ports 8000 and 9464 for free ones. A command that does not end by
itself stays in its own terminal until `^C`, or the end of the page.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psycopg

from tests.ports import free_port
from tests.sessions import Sessions, typed
from tests.stage import until

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# ([\w/]+\.py)\n")
STAYS = re.compile(
    r"faultline (dev|worker|reconcile|api|inspector serve)\b(?!.*--(max-jobs|once|help|host))"
)
READY = re.compile(r"serves |worker_started|reconciling")
COMMAND_SECONDS = 180  # for who reads on a busy machine

INTERPRETER = """
import json, os, sys, traceback
_answers, sys.stdout = sys.stdout, sys.stderr
for _line in sys.stdin:
    _text, _place, _first = json.loads(_line)
    try:
        exec(compile("\\n" * _first + _text, _place, "exec"))
        _wrong = ""
    except BaseException:
        _wrong = traceback.format_exc()
    print(json.dumps(_wrong), file=_answers, flush=True)
"""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, and the line of its fence."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    """All of them, in order, also those inside of a list."""
    text = page.read_text()
    return [
        Block(
            found[2],
            re.sub(f"^{found[1]}", "", found[3], flags=re.MULTILINE),
            text.count("\n", 0, found.start()) + 1,
        )
        for found in FENCE.finditer(text)
    ]


# ── what a command prints, compared with what the page shows ─────────────────────────────────────

PARTS = re.compile(
    r"(?P<id>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
    r"|(?P<worker>[\w.-]+:\d+:[0-9a-f]{8}[\w.+]*)"
    r"|(?P<ago>\d[\d.,]* (?:ms|s|min|h|d) ago|now)"
    r"|(?P<time>\d[\d.,]* ?(?:ms|s|min|h|d)\b)"
    r"|(?P<clock>(?:\d{4}-\d{2}-\d{2}[ T])?\d{2}:\d{2}:\d{2}(?:\.\d+)?)"
    r"|(?P<number>\d+\.\d+|\d{5,})"
    r"|(?P<anything>…)"
    r"|(?P<space>\s+)"
)
SHAPES = {
    "worker": r"[\w.-]+:\d+:[0-9a-f]{8}[\w.+]*",
    "ago": r"(?:\d[\d.,]* (?:ms|s|min|h|d) ago|now)",
    "time": r"\d[\d.,]* ?(?:ms|s|min|h|d)\b",
    "clock": r"(?:\d{4}-\d{2}-\d{2}[ T])?\d{2}:\d{2}:\d{2}(?:\.\d+)?",
    "number": r"\d+(?:\.\d+)?(?:e-\d+)?",
    "anything": r".*",
    "space": r"[ \t]+",
}
ID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


class Shown:
    """The lines that a page shows; the ids in them become known when they are found."""

    def __init__(self, lines: list[str], ids: dict[str, str]) -> None:
        self.lines = lines
        self._ids = ids
        self._new: dict[str, str] = {}  # groups of the pattern
        self._pattern = re.compile(
            "".join(map(self._line, _trimmed("\n".join(lines)).splitlines()))
        )

    def is_all_of(self, printed: str) -> bool:
        return self._learn(self._pattern.fullmatch(_trimmed(printed)))

    def is_at_the_start_of(self, printed: str) -> bool:
        return self._learn(self._pattern.match(_trimmed(printed)))

    def _line(self, line: str) -> str:
        if line.strip() == "…":
            return r"(?:.*\n)*?"
        pattern, at = "", 0
        for found in PARTS.finditer(line.rstrip()):
            kind = found.lastgroup
            assert kind is not None
            pattern += re.escape(line[at : found.start()])
            pattern += self._id(found[0]) if kind == "id" else SHAPES[kind]
            at = found.end()
        return pattern + re.escape(line.rstrip()[at:]) + r"\n"

    def _id(self, text: str) -> str:
        if text in self._ids:
            return re.escape(self._ids[text])
        if text in self._new:
            return f"(?P={self._new[text]})"
        self._new[text] = f"id{len(self._new)}"
        return f"(?P<{self._new[text]}>{ID})"

    def _learn(self, found: re.Match[str] | None) -> bool:
        if found is not None:
            self._ids.update({text: found[group] for text, group in self._new.items()})
        return found is not None


def _trimmed(printed: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in printed.rstrip().splitlines())


# ── the reader ───────────────────────────────────────────────────────────────────────────────────


class Terminal:
    """A command that stays, and all it has printed."""

    def __init__(self, command: str, directory: Path, environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )
        self.reloads = "faultline dev" in command
        self.printed = ""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed += line

    def starts(self) -> int:
        """How often a worker has begun in it."""
        return len(READY.findall(self.printed))

    def restarts(self) -> int:
        """How often it has started its workers anew, and one of those has begun."""
        _, *since = self.printed.split("changed: restarting")
        return sum(READY.search(printed) is not None for printed in since)

    def end(self, sign: signal.Signals = signal.SIGTERM) -> int:
        """Its exit status, after this signal."""
        if self.process.poll() is None:
            self.process.send_signal(sign)
        try:
            status = self.process.wait(COMMAND_SECONDS)
        finally:
            if self.process.poll() is None:
                self.process.kill()
        self._thread.join(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


class Reader:
    """Works through one page in a directory of its own."""

    def __init__(self, page: Path, directory: Path, environment: Mapping[str, str]) -> None:
        self.page = page
        self.directory = directory
        self.environment = environment
        self.terminals: list[Terminal] = []
        self.status = 0  # of the last command
        self.printed = ""  # by it
        self.patience_seconds: float = COMMAND_SECONDS
        self.port, self.metrics_port = free_port(), free_port()
        self.ids: dict[str, str] = {}
        self._interpreter: subprocess.Popen[str] | None = None
        self._sessions = Sessions(environment.get("FAULTLINE_DATABASE_URL", ""))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sessions.close()
        for terminal in self.terminals:
            terminal.end()
        if self._interpreter is not None:
            self._interpreter.communicate(timeout=COMMAND_SECONDS)  # the end of its input

    def do(self, block: Block) -> None:
        """Do what the block says; AssertionError if that is not what happens."""
        place = f"{self.page.name}, line {block.line}"
        if block.language == "sql":
            with psycopg.connect(self.environment["FAULTLINE_DATABASE_URL"], autocommit=True) as c:
                c.execute(block.text)
        elif block.language == "console":
            text = block.text.replace("faultline api\n", f"faultline api --port {self.port}\n")
            text = text.replace("9464", str(self.metrics_port))
            for command, lines in _typed(text.replace(":8000", f":{self.port}")):
                self._type(command, lines, place)
        elif block.language == "py":
            compile(block.text, place, "exec")
        elif block.language == "psql":
            for session, statement, lines in typed(block.text):
                self._ask(session, statement, lines, place)
        elif block.language == "python":
            if named := NAMED.match(block.text):
                self._save(named[1], block.text)
            else:
                self._run(block)

    # ── Python ───────────────────────────────────────────────────────────────────────────────────

    def _save(self, name: str, text: str) -> None:
        """As an editor does; whoever watches the directory has seen it, a new file as well, before
        the reader goes on: a worker that is started anew hands back what it has just claimed."""
        compile(text, name, "exec")
        path = self.directory / name
        changes = not path.exists() or path.read_text() != text
        watching = {t: t.restarts() for t in self.terminals if changes and t.reloads}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for terminal, count in watching.items():
            until(lambda t=terminal, n=count: t.restarts() > n, "the worker is started anew")

    def _run(self, block: Block) -> None:
        if self._interpreter is None:
            self._interpreter = subprocess.Popen(
                [sys.executable, "-W", "error", "-c", INTERPRETER],
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        stdin, stdout = self._interpreter.stdin, self._interpreter.stdout
        assert stdin is not None
        assert stdout is not None
        print(json.dumps([block.text, self.page.name, block.line]), file=stdin, flush=True)
        answer = stdout.readline()
        assert answer, f"{self.page.name}, line {block.line}: the interpreter is gone"
        assert not json.loads(answer), json.loads(answer)

    # ── psql ─────────────────────────────────────────────────────────────────────────────────────

    def _ask(self, session: str, statement: str, lines: list[str], place: str) -> None:
        for shown, real in self.ids.items():
            statement = statement.replace(shown, real)
        printed = self._sessions.run(session, statement)
        assert Shown(lines, self.ids).is_all_of(printed), _differs(place, statement, lines, printed)

    # ── the shell ────────────────────────────────────────────────────────────────────────────────

    def _type(self, command: str, lines: list[str], place: str) -> None:
        for shown, real in self.ids.items():
            command = command.replace(shown, real)
        if command == "echo $?":
            assert lines == [str(self.status)], f"{place}: the status was {self.status}"
            self.status = 0
            return
        assert self.status == 0, f"{place}: status {self.status} of the one before: {self.printed}"
        if STAYS.search(command):
            self._stay(command, lines, place)
            return
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=self.patience_seconds,
            check=False,
        )
        self.status, self.printed = done.returncode, done.stdout
        assert Shown(lines, self.ids).is_all_of(done.stdout), _differs(
            place, command, lines, done.stdout
        )

    def _stay(self, command: str, lines: list[str], place: str) -> None:
        end = lines.index("^C") if "^C" in lines else len(lines)
        terminal = Terminal(command, self.directory, self.environment)
        self.terminals.append(terminal)

        def told(count: int) -> bool:
            return terminal.starts() > 0 and Shown(lines[:count], self.ids).is_at_the_start_of(
                terminal.printed
            )

        try:
            until(lambda: told(end) or terminal.process.poll() is not None, f"{command} is ready")
            if "^C" in lines:
                self.terminals.remove(terminal)
                self.status = terminal.end(signal.SIGINT)
                lines = [line for line in lines if line != "^C"]
        except AssertionError:
            pass
        assert told(len(lines)), _differs(place, command, lines, terminal.printed)


def _typed(text: str) -> list[tuple[str, list[str]]]:
    """The commands of a block, each with the lines that it prints."""
    found: list[tuple[str, list[str]]] = []
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        else:
            found[-1][1].append(line)
    return found


def _differs(place: str, command: str, lines: list[str], printed: str) -> str:
    shown = "\n".join(lines)
    return f"{place}: $ {command}\n── the page shows\n{shown}\n── it printed\n{printed}"
