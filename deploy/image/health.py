"""The image's health check: asks whatever this container runs whether it is well.

    api, inspector serve    GET /health: 503 while the database is away or its schema does not fit
    worker, reconcile       GET /readyz on --metrics-port: 503 while leases cannot be renewed

Which of them it is, and on which port, stands in the command line of process 1. A command that
serves no port (a worker without --metrics-port, migrate, one of your own) has nothing to be asked,
and counts as well for as long as it runs.
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from pathlib import Path

PATIENCE_SECONDS = 4.0  # the image gives the check five
PORTS = {"api": "8000", "inspector": "8001"}
EVERYWHERE = {"0.0.0.0", "::", ""}


def main() -> int:
    """0: well; 1: not. What it prints is kept by the engine beside the verdict."""
    url = address(Path("/proc/1/cmdline").read_text().split("\0"))
    if url is None:
        print("serves no port: nothing to ask")
        return 0
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
            print(f"{url}: {answer.status}")
            return 0
    except urllib.error.HTTPError as error:
        print(f"{url}: {error.code} {error.read(500).decode(errors='replace')}")
    except OSError as error:
        print(f"{url}: {error}")
    return 1


def address(words: list[str]) -> str | None:
    """Whom to ask, from the words of a command; None if nobody listens."""
    command = next((word for word in words if word in {*PORTS, "worker", "reconcile"}), None)
    if command is None:
        return None
    if command in PORTS:
        port = option(words, "--port") or PORTS[command]
        host, path = option(words, "--host") or "", "/health"
    else:
        port = option(words, "--metrics-port") or ""
        host, path = option(words, "--metrics-host") or "", "/readyz"
    if not port:
        return None
    host = "127.0.0.1" if host in EVERYWHERE else host
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{path}"


def option(words: list[str], name: str) -> str | None:
    """Its value, as `--name value` or `--name=value`; the last one counts."""
    found = None
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == name:
            found = following
        elif word.startswith(f"{name}="):
            found = word.partition("=")[2]
    return found


if __name__ == "__main__":
    sys.exit(main())
