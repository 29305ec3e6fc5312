"""A TCP proxy before the database: loses an answer, goes silent, resets, exactly when told to.

It understands as much of PostgreSQL's protocol as it takes to know which statement a message runs
and in whose fenced transaction: `when` lets the caller decide the fate of each, such as a COMMIT.

A partition is silence, as where packets are dropped: nothing that is sent is lost, but it arrives
only after `heal`, and so does the news that an end has closed; no new connection is made meanwhile.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Self
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

from faultline.drills.wire import Requests, is_answered, last_of

_RESET = struct.pack("ii", 1, 0)  # for SO_LINGER: close without a good-bye
_CONNECT_SECONDS = 5.0


class Fate(Enum):
    """What becomes of a statement."""

    LOSE_REQUEST = auto()  # it never reaches the server; the connection is cut
    LOSE_ANSWER = auto()  # it is carried out, its answer reaches nobody; the connection is cut
    HOLD_REQUEST = auto()  # it waits here until `release`
    HOLD_ANSWER = auto()  # it is carried out, and its answer waits here


@dataclass(frozen=True, slots=True)
class Moment:
    """A statement that a client has just sent."""

    text: str
    fence: tuple[UUID, int] | None  # the attempt whose fence is open in this transaction
    connection: int = 0  # counted from 1, in the order in which they were made

    @property
    def is_commit(self) -> bool:
        """Whether it ends a transaction for good."""
        return last_of(self.text) == "COMMIT"


class Hold:
    """A request, or the answer to one, that waits in the proxy."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._cut = False
        self._go = threading.Event()

    def end(self, cut: bool) -> None:
        """It is passed on, or its connection cut."""
        self._cut = cut
        self._go.set()

    def wait(self) -> bool:
        """Whether it is to be passed on, once that is known."""
        self._go.wait()
        return not self._cut


class Way:
    """One of the two directions, which may be silent."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.kept = threading.Event()  # something was sent into the silence

    def close(self) -> None:
        """Nothing passes."""
        self.kept.clear()
        self._open.clear()

    def open(self) -> None:
        """Everything passes, what has waited first."""
        self._open.set()

    def pass_on(self) -> None:
        """Wait until it is open."""
        if not self._open.is_set():
            self.kept.set()
            self._open.wait()


Decide = Callable[[Moment], Fate | None]


class Proxy:
    """Passes everything on, until it is told otherwise."""

    def __init__(self, url: str, *, host: str = "127.0.0.1") -> None:
        parts = urlsplit(url)
        self._server = _address(url)
        self._listener = socket.create_server((host, 0))
        port = self._listener.getsockname()[1]
        user = parts.netloc.rpartition("@")[0]
        self.url = urlunsplit(parts._replace(netloc=f"{user}@{host}:{port}"))
        self._lines: list[_Line] = []
        self._made = 0
        self._lose_answer_to: list[bytes] = []
        self._lose_answer_with: bytes | None = None
        self._decide: Decide | None = None
        self._deciding = threading.Lock()
        self.held: list[Hold] = []  # all so far
        self.lost = threading.Event()
        self.requests, self.answers = Way(), Way()
        threading.Thread(target=self._accept, daemon=True).start()

    # ── the fate of a statement ─────────────────────────────────────────────────────────────────

    def lose_the_answer_to(self, *verbs: str) -> None:
        """The next call of one of these verbs reaches the server; its answer reaches nobody."""
        self.lost.clear()
        self._lose_answer_to = [f"faultline.{verb}(".encode() for verb in verbs]

    def lose_the_answer_with(self, words: str) -> None:
        """The next answer with these words in it reaches nobody."""
        self.lost.clear()
        self._lose_answer_with = words.encode()

    def when(self, decide: Decide | None) -> None:
        """From now on ask this about every statement; one at a time, whatever the connection."""
        self.lost.clear()
        self._decide = decide

    def release(self, words: str = "", *, cut: bool = False) -> None:
        """Pass on what is held, of statements with these words; or cut those connections."""
        for hold in list(self.held):
            if words in hold.text:
                hold.end(cut)

    # ── the network ─────────────────────────────────────────────────────────────────────────────

    def go_silent(self) -> None:
        """Every connection that is open now passes nothing on any more; new ones do."""
        for line in self._lines:
            line.silent = True

    def partition(self, *ways: Way) -> None:
        """From now on nothing passes these ways: `requests`, `answers`, both if none is named."""
        for way in ways or (self.requests, self.answers):
            way.close()

    def heal(self) -> None:
        """Everything passes again, and what has waited first."""
        self.requests.open()
        self.answers.open()

    def reset(self) -> int:
        """Both ends of every open connection are told so at once (RST); how many there were."""
        lines, self._lines = self._lines, []
        return sum(line.reset() for line in lines)

    def redirect(self, url: str) -> None:
        """Who connects from now on gets to another server."""
        self._server = _address(url)

    # ── for the lines ───────────────────────────────────────────────────────────────────────────

    def keeps(self, answer: bytes) -> bool:
        """Whether this answer is the one to be lost."""
        words = self._lose_answer_with
        if words is None or words not in answer:
            return False
        self._lose_answer_with = None
        return True

    def takes_its_answer(self, request: bytes) -> bool:
        """Whether this request is the one whose answer is to be lost."""
        if not any(verb in request for verb in self._lose_answer_to):
            return False
        self._lose_answer_to = []
        return True

    def fate_of(self, moment: Moment) -> Fate | None:
        """What was decided about it."""
        with self._deciding:
            return None if self._decide is None else self._decide(moment)

    def hold(self, text: str) -> bool:
        """Wait here; whether to pass it on afterwards."""
        self.held.append(hold := Hold(text))
        return hold.wait()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.requests.pass_on()
                self.answers.pass_on()
                try:
                    server = socket.create_connection(self._server, _CONNECT_SECONDS)
                    server.settimeout(None)
                    for end in (client, server):  # else small messages wait 40 ms for each other
                        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                except OSError:  # the server is away
                    client.close()
                else:
                    self._lines = [line for line in self._lines if not line.is_cut]
                    self._made += 1
                    self._lines.append(_Line(self, client, server, self._made))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._decide = None
        self.heal()
        self.release(cut=True)
        self._listener.close()
        for line in self._lines:
            line.cut()


class _Line:
    """One connection of a client, and its own to the server."""

    def __init__(
        self, proxy: Proxy, client: socket.socket, server: socket.socket, number: int
    ) -> None:
        self._proxy = proxy
        self._number = number
        self._client = client
        self._server = server
        self._requests = Requests()
        self._doomed = False
        self._fate: Fate | None = None
        self._text = ""  # of the statement whose fate it is
        self._answer = b""  # as much of it as has come
        self._good_bye = True
        self.silent = False
        self.is_cut = False
        threading.Thread(target=self._pass_requests, daemon=True).start()
        threading.Thread(target=self._pass_answers, daemon=True).start()

    def _pass_requests(self) -> None:
        with suppress(OSError):
            while data := self._client.recv(1 << 20):
                if self._proxy.takes_its_answer(data):
                    self._doomed = True
                for message, text, fence in self._requests.take(data):
                    if text is not None and not self._decided(Moment(text, fence, self._number)):
                        self.cut()
                        return
                    self._proxy.requests.pass_on()
                    if not self.silent:
                        self._server.sendall(message)
        self._proxy.requests.pass_on()
        self.cut()

    def _decided(self, moment: Moment) -> bool:
        """Whether the statement is passed on."""
        fate = self._proxy.fate_of(moment)
        if fate is Fate.LOSE_REQUEST:
            self._proxy.lost.set()
            return False
        if fate is Fate.HOLD_REQUEST:
            return self._proxy.hold(moment.text)
        if fate is not None:
            self._fate, self._text = fate, moment.text
        return True

    def _pass_answers(self) -> None:
        with suppress(OSError):
            while data := self._server.recv(1 << 20):
                if self._doomed or self._proxy.keeps(data):
                    # answered means committed: the verbs run in autocommit
                    self._proxy.lost.set()
                    break
                if self._fate is not None:
                    self._answer += data
                    if not is_answered(self._answer):
                        continue
                    if self._fate is Fate.LOSE_ANSWER:
                        self._proxy.lost.set()
                        break
                    if not self._proxy.hold(self._text):
                        break
                    data, self._answer, self._fate = self._answer, b"", None
                self._proxy.answers.pass_on()
                if not self.silent:
                    self._client.sendall(data)
        self._proxy.answers.pass_on()
        self.cut()

    def reset(self) -> bool:
        """Whether it was open."""
        was_open, self._good_bye = not self.is_cut, False
        for end in (self._client, self._server):
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.cut()
        return was_open

    def cut(self) -> None:
        """Closed, and each end is told. The threads that read are woken first: while one of them
        is in the kernel, nothing is really closed."""
        self.is_cut = True
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR if self._good_bye else socket.SHUT_RD)
            end.close()


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    return parts.hostname, parts.port or 5432
