"""A TCP proxy before the database, which can lose an answer or go silent, exactly when told to."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit, urlunsplit


class Proxy:
    """Passes everything on, until it is told otherwise."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._server = (parts.hostname, parts.port or 5432)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        user = parts.netloc.rpartition("@")[0]
        self.url = urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{port}"))
        self._lines: list[_Line] = []
        self._lose_answer_to: list[bytes] = []
        self._lose_answer_with: bytes | None = None
        self.lost = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_the_answer_to(self, *verbs: str) -> None:
        """The next call of one of these verbs reaches the server; its answer reaches nobody."""
        self.lost.clear()
        self._lose_answer_to = [f"faultline.{verb}(".encode() for verb in verbs]

    def lose_the_answer_with(self, words: str) -> None:
        """The next answer with these words in it reaches nobody."""
        self.lost.clear()
        self._lose_answer_with = words.encode()

    def keeps(self, answer: bytes) -> bool:
        words = self._lose_answer_with
        if words is None or words not in answer:
            return False
        self._lose_answer_with = None
        return True

    def go_silent(self) -> None:
        """Every connection that is open now passes nothing on any more; new ones do."""
        for line in self._lines:
            line.silent = True

    def takes_its_answer(self, request: bytes) -> bool:
        if not any(verb in request for verb in self._lose_answer_to):
            return False
        self._lose_answer_to = []
        return True

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._lines.append(_Line(self, client, socket.create_connection(self._server)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for line in self._lines:
            line.cut()


class _Line:
    """One connection of a client, and its own to the server."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._doomed = False
        self.silent = False
        threading.Thread(target=self._pass_requests, daemon=True).start()
        threading.Thread(target=self._pass_answers, daemon=True).start()

    def _pass_requests(self) -> None:
        with suppress(OSError):
            while data := self._client.recv(1 << 20):
                if self._proxy.takes_its_answer(data):
                    self._doomed = True
                if not self.silent:
                    self._server.sendall(data)
        self.cut()

    def _pass_answers(self) -> None:
        with suppress(OSError):
            while data := self._server.recv(1 << 20):
                if self._doomed or self._proxy.keeps(
                    data
                ):  # answered means committed: the verbs run in autocommit
                    self._proxy.lost.set()
                    break
                if not self.silent:
                    self._client.sendall(data)
        self.cut()

    def cut(self) -> None:
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
