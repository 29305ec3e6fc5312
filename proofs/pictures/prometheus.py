"""A real Prometheus beside the run, with the project's rules, and an address with its graphs."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

from faultline.errors import FaultlineError

RULES = Path("deploy/prometheus/faultline.rules.yml").absolute()
GRAPHS = (
    "sum(faultline_stale_writes_rejected_total)",
    "sum by (task) (rate(faultline_jobs_succeeded_total[10s]))",
)


def free_port() -> int:
    """One that nobody listens on just now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


@contextmanager
def prometheus(targets: Sequence[int]) -> Iterator[str]:
    """Scrapes these ports every second; gives the address of a page with graphs."""
    program = shutil.which("prometheus")
    if program is None:
        raise FaultlineError("no Prometheus was found: install one (on Debian: prometheus)")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="faultline-prometheus-") as name:
        folder = Path(name)
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [
                {
                    "job_name": "faultline",
                    "static_configs": [{"targets": [f"127.0.0.1:{p}" for p in targets]}],
                }
            ],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # which is YAML as well
        server = subprocess.Popen(
            [
                program,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield f"http://127.0.0.1:{port}/classic/graph?{_query()}"  # Debian's has no other
        finally:
            server.terminate()
            server.wait(30)


def _query() -> str:
    fields = {}
    for number, expression in enumerate(GRAPHS):
        fields[f"g{number}.expr"] = expression
        fields[f"g{number}.tab"] = "0"
        fields[f"g{number}.range_input"] = "1m"
    return urlencode(fields)
