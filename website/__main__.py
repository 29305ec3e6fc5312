"""`python -m website build | serve`: the site, strictly, into build/site.

A warning of Sphinx's is an error: links and anchors that lead nowhere, pages that the navigation
does not have, code in an unknown language.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from website.staging import ROOT, stage

SOURCE = ROOT / "build" / "site-source"
SITE = ROOT / "build" / "site"


def build(source: Path = SOURCE, site: Path = SITE) -> int:
    """Sphinx's exit status."""
    try:
        stage(source)
    except LookupError as error:
        print(error, file=sys.stderr)
        return 1
    settings = Path(__file__).parent
    done = subprocess.run(
        [
            *(sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"),
            *("--fresh-env", "--builder", "html", "--conf-dir", settings),
            *("--doctree-dir", source.with_name(f"{source.name}-read"), source, site),
        ],
        cwd=ROOT,
        check=False,
    )
    return done.returncode


def serve(port: int) -> None:
    """The site on this machine only, until ^C."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        print(f"http://127.0.0.1:{server.server_port}/  (^C ends it)", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m website", description=__doc__)
    arguments.add_argument("what", choices=["build", "serve"])
    arguments.add_argument("--port", type=int, default=8080)
    given = arguments.parse_args()
    if status := build():
        return status
    if given.what == "serve":
        serve(given.port)
    else:
        print(f"{SITE.relative_to(ROOT)}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
