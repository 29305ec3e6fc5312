"""deploy/systemd: the units are right by systemd's own judgement, and what they start runs."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from faultline.cli.api import api
from faultline.worker import WorkerOptions
from faultline.worker.parent import ENDING_SECONDS
from tests.ports import free_port
from tests.stage import DEADLINE_SECONDS, until

UNITS = sorted((Path(__file__).parent.parent / "deploy" / "systemd").glob("*.service"))
FAULTLINE = Path(sys.executable).parent / "faultline"
ROUNDS = {"reconcile", "worker@"}  # they look after leases, round after round
MOST_EXPOSED = 15  # of 100, by `systemd-analyze security`; an unprotected service has 96

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze (Debian: systemd)"
)


def setting(unit: str, name: str) -> str:
    """The last value of a setting."""
    path = next(path for path in UNITS if path.stem == f"faultline-{unit}")
    return re.findall(rf"^{name}=(.*)$", path.read_text(), re.MULTILINE)[-1]


def command(unit: str, **environment: str) -> list[str]:
    """What the unit starts, as systemd fills it in, with our own program in the place of its."""
    _, *words = shlex.split(setting(unit, "ExecStart"))
    found = [str(FAULTLINE)]
    for word in words:
        if name := re.fullmatch(r"\$\{(\w+)\}", word):
            found.append(environment[name[1]])
        elif name := re.fullmatch(r"\$(\w+)", word):  # split at spaces, nothing if it is unset
            found += environment.get(name[1], "").split()
        else:
            found.append(word)
    return found


def at_work(unit: str, port: int) -> bool:
    """Whether it does its work by now: from then on it knows what to do with a signal."""
    path, said = ("metrics", "reconciler_last_round") if unit in ROUNDS else ("health", '"ok"')
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}") as answer:
        return said in answer.read().decode()
    return False


def analyze(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.fixture
def units(tmp_path: Path) -> list[str]:
    """Copies whose program exists, by name; the template as its instance shop."""
    for path in UNITS:
        text = re.sub(r"^ExecStart=\S+", f"ExecStart={FAULTLINE}", path.read_text(), flags=re.M)
        (tmp_path / path.name).write_text(text)
    return [f"./{path.name.replace('@', '@shop')}" for path in UNITS]


@needs_systemd
def test_systemd_finds_nothing_wrong_with_the_units(units: list[str], tmp_path: Path) -> None:
    done = analyze("verify", "--man=no", *units, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
def test_systemd_finds_what_is_wrong_with_a_unit(units: list[str], tmp_path: Path) -> None:
    unit = tmp_path / "faultline-api.service"
    unit.write_text(unit.read_text().replace("[Service]", "[Service]\nProtectSystm=strict"))
    assert "ProtectSystm" in analyze("verify", "--man=no", *units, folder=tmp_path).stderr


@needs_systemd
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_may_do_no_more_than_it_needs(path: Path) -> None:
    options = ("--offline=true", f"--threshold={MOST_EXPOSED}", "--no-pager")
    done = analyze("security", *options, f"./{path.name}", folder=path.parent)
    assert done.returncode == 0, done.stdout


def test_a_unit_gives_more_time_than_its_program_takes_to_drain() -> None:
    grace = inspect.signature(api).parameters["grace_seconds"].default
    for unit in ("api", "inspector"):
        assert float(setting(unit, "TimeoutStopSec")) >= grace + 5
    needed = WorkerOptions().grace_seconds + ENDING_SECONDS + 5
    assert float(setting("worker@", "TimeoutStopSec")) >= needed
    assert setting("worker@", "KillMode") == "mixed"


def test_the_page_has_every_unit_with_the_file_that_it_reads() -> None:
    page = (Path(__file__).parent.parent / "docs" / "how-to" / "systemd.md").read_text()
    rows = dict(re.findall(r"^\| `faultline-(\S+)` \|.*\| `(\S+)` \|$", page, re.MULTILINE))
    units = [path.stem.removeprefix("faultline-") for path in UNITS]
    assert rows == {
        unit.replace("@", "@shop"): setting(unit, "EnvironmentFile").replace("%i", "shop")
        for unit in units
    }


def test_what_the_units_start_does_run_and_ends_when_it_is_told_to(
    database: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(
        "from faultline import App\n\napp = App()\n\n@app.task\ndef work(): ...\n"
    )
    ports = {unit: free_port() for unit in ("api", "inspector", "reconcile", "worker@")}
    running = {}
    environment = {
        "PATH": os.environ["PATH"],
        "FAULTLINE_DATABASE_URL": database,
        "FAULTLINE_HOME": str(tmp_path),
    }
    subprocess.run(command("migrate"), env=environment, check=True, timeout=DEADLINE_SECONDS)
    try:
        for unit, port in ports.items():
            option = "--metrics-port" if unit in ROUNDS else "--port"
            words = command(unit, APP="shop:app", OPTIONS=f"{option} {port}")
            running[unit] = subprocess.Popen(words, env=environment, cwd=tmp_path)
        for unit, port in ports.items():
            until(lambda unit=unit, port=port: at_work(unit, port), f"{unit} is at work")
        for process in running.values():
            process.send_signal(signal.SIGTERM)
        assert {unit: p.wait(DEADLINE_SECONDS) for unit, p in running.items()} == dict.fromkeys(
            ports, 0
        )
    finally:
        for process in running.values():
            process.kill()
            process.wait()
