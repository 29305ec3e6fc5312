"""`make image-check`: the image is built and run, as a stranger's engine would.

Linted with hadolint, built on a stand-in for its base, and run with a read-only root as its own
user; on top of it an image of a user's own, as docs/how-to/containers.md shows it. Then, against an
embedded PostgreSQL: migrate, the example's tables and logins, api, a worker of the example's image.
A job goes in over HTTP and is completed by the container; the health check is asked with the
database there and away; SIGTERM lets a running job end. The last line on stdout is one JSON object;
the exit status is 0 when all of it is true.
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from configparser import RawConfigParser
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from faultline import __version__
from faultline.launcher import Server
from faultline.provenance import provenance
from proofs.containers import stand_ins
from proofs.containers.engine import HOME, IMAGE, ROOT, build, podman, prepare, run, say
from proofs.pictures.prometheus import free_port
from proofs.serving import Caller
from proofs.stopwatch import finish
from tests.documents import blocks

EXAMPLE, OWN = "localhost/faultline-example", "localhost/faultline-own"
PAGE = ROOT / "docs/how-to/containers.md"
IMPORTS = "import humanize; from shop.jobs import charge; print(charge.name)"
PATIENCE_SECONDS = 60.0
LINTER = Path(sys.executable).parent / "hadolint"
# As strict as an orchestrator can be; the network is this machine's, for the embedded server.
STRICT = (
    *("--net=host", "--pull=never", "--read-only", "--tmpfs=/tmp", "--cap-drop=all"),
    *("--security-opt=no-new-privileges",),
)


class Wrong(Exception):
    """Something is not as it should be."""


def expect(true: bool, what: str) -> None:
    """Say what was seen to be true, or end here."""
    if not true:
        raise Wrong(what)
    say(f"  {what}")


def until(true: Callable[[], Any], what: str) -> None:
    """Wait for it; Wrong if it does not come."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        if time.monotonic() > deadline:
            raise Wrong(f"not within {PATIENCE_SECONDS:.0f} s: {what}")
        time.sleep(0.1)
    say(f"  {what}")


def lint() -> None:
    """Both Dockerfiles."""
    for file in (ROOT / "Dockerfile", ROOT / "deploy/example/Dockerfile"):
        done = subprocess.run([LINTER, file], capture_output=True, text=True, check=False)
        expect(done.returncode == 0, f"hadolint finds nothing in {file.relative_to(ROOT)}")


def look_inside() -> dict[str, Any]:
    """What kind of image it is, without a database."""
    inspected = json.loads(podman("image", "inspect", IMAGE))[0]
    labels, user = inspected["Labels"], inspected["Config"]["User"]
    expect(user == "10001:10001", f"its user is a number, {user}")
    expect(labels["org.opencontainers.image.version"] == __version__, "its label has the version")
    base = json.loads(podman("image", "inspect", stand_ins.python()))[0]
    added = (inspected["Size"] - base["Size"]) / 1e6
    said = podman("run", "--rm", *STRICT, IMAGE, "--version")
    expect(__version__ in said, f"`--version` says {said}")
    expect(_inside("id", "-u") == "10001", "it runs as 10001")
    touched = run("podman", "run", "--rm", *STRICT, "--entrypoint=touch", IMAGE, "/x", check=False)
    expect("Read-only file system" in touched.stderr, "its root can be read only")
    expect("faultline-queue" in _inside("pip", "list"), "`pip` acts where faultline is installed")
    settings = _inside("sh", "-c", "cat /etc/pip.conf 2>/dev/null; ls /build 2>/dev/null; true")
    expect(settings == "", "nothing of the build's settings or sources is in it")
    return {"megabytes_on_the_base": round(added, 1)}


def _inside(*command: str) -> str:
    first, *rest = command
    return podman("run", "--rm", *STRICT, f"--entrypoint={first}", IMAGE, *rest)


@contextmanager
def container(image: str, env: dict[str, str], *arguments: str) -> Iterator[str]:
    """One that runs in the background, until the end of the block."""
    given = [f"--env={name}={value}" for name, value in env.items()]
    name = podman("run", "--detach", *STRICT, *given, image, *arguments)
    try:
        yield name
    except BaseException:
        say(run("podman", "logs", name, check=False).stdout[-3000:])
        raise
    finally:
        run("podman", "rm", "--force", "--time=1", name, check=False)


def health(name: str) -> int:
    """What the image's own check says: 0 or 1."""
    return run("podman", "healthcheck", "run", name, check=False).returncode


def answered(caller: Caller, method: str, path: str, body: Any = None) -> Any:
    """The body of an answer; None while nobody answers."""
    try:
        answer = caller(method, path, body)
    except (OSError, HTTPException):
        return None
    return answer.body if answer.status < 400 else None


def play(server: Server) -> None:
    """Migrate, serve, work, drain."""
    address = urlsplit(server.url)
    place = f"{address.hostname}:{address.port}{address.path}"
    admin = {"FAULTLINE_DATABASE_URL": server.url}
    passwords = {
        name: secrets.token_urlsafe(16) for name in ("api", "inspector", "reconciler", "worker")
    }
    mounts = [f"--volume={ROOT}/deploy/{part}:/{part}:ro" for part in ("compose", "example")]
    given = {**admin, **{f"{name.upper()}_PASSWORD": p for name, p in passwords.items()}}
    env = [f"--env={name}={value}" for name, value in given.items()]
    said = podman("run", "--rm", *STRICT, *env, IMAGE, "migrate")
    expect("applied" in said, "`migrate` made the installation")
    said = podman("run", "--rm", *STRICT, *env, IMAGE, "migrate")
    expect("already" in said, "`migrate` again has nothing to do")
    script = ("/compose/prepare.py", "/example/tables.sql")
    podman("run", "--rm", *STRICT, *env, *mounts, "--entrypoint=python", IMAGE, *script)

    def login(name: str) -> dict[str, str]:
        url = f"postgresql://{name}@{place}"
        return {"FAULTLINE_DATABASE_URL": url, "PGPASSWORD": passwords[name]}

    port, metrics, token = free_port(), free_port(), secrets.token_urlsafe(32)
    served = {**login("api"), "FAULTLINE_API_TOKEN": token}
    options = ("--metrics-host=0.0.0.0", "--metrics-port", str(metrics), "--log=json")
    with (
        container(IMAGE, served, "api", "--host=0.0.0.0", "--port", str(port)) as api,
        container(EXAMPLE, login("worker"), "worker", "shop:app", *options) as worker,
    ):
        caller = Caller(port, token)
        until(lambda: answered(caller, "GET", "/health"), "`api` answers")
        until(lambda: health(api) == 0 and health(worker) == 0, "both health checks say: well")
        work(caller)
        drain(caller, worker)
        server.stop()
        until(lambda: health(api) == 1, "the health check of `api` says that the database is away")
        podman("stop", "--time=20", api)
        expect(_exit_status(api) == 0, "SIGTERM ends `api` with 0")


def work(caller: Caller) -> None:
    """A job, in over HTTP and done by the container."""
    job = answered(caller, "POST", "/jobs", {"task": "charge", "payload": {"order_id": 7}})
    until(lambda: state(caller, job) == "succeeded", "the worker completed a job, its row fenced")


def drain(caller: Caller, worker: str) -> None:
    """SIGTERM in the middle of a job: it ends well, under its first token."""
    slow = {"task": "charge", "payload": {"order_id": 8, "takes_seconds": 4}}
    job = answered(caller, "POST", "/jobs", slow)
    until(lambda: state(caller, job) == "running", "a job of some seconds runs")
    podman("stop", "--time=45", worker)
    found = answered(caller, "GET", f"/jobs/{job['id']}")
    expect(found["state"] == "succeeded", "SIGTERM let it end")
    expect(found["fencing_token"] == 1, "in its first attempt")
    expect(_exit_status(worker) == 0, "the worker ended with 0")


def state(caller: Caller, job: Any) -> str:
    """Of this job, now."""
    return str(answered(caller, "GET", f"/jobs/{job['id']}")["state"])


def _exit_status(name: str) -> int:
    return int(podman("inspect", "--format={{.State.ExitCode}}", name))


def make() -> None:
    """The image, and the example's on top of it."""
    stand_ins.python()
    say("building the image …")
    build(ROOT, IMAGE, f"--build-arg=VERSION={__version__}")
    build(ROOT / "deploy/example", EXAMPLE)


def build_as_the_page_says() -> None:
    """The Dockerfile of docs/how-to/containers.md, with a requirement and a package of one task."""
    [shown] = [block.text for block in blocks(PAGE) if block.language == "dockerfile"]
    with tempfile.TemporaryDirectory(dir=HOME) as name:
        folder = Path(name)
        (folder / "Dockerfile").write_text(shown)
        (folder / "requirements.txt").write_text("humanize\n")
        (folder / "shop").mkdir()
        shutil.copy(ROOT / "deploy/example/shop.py", folder / "shop/jobs.py")
        settings = RawConfigParser()
        settings.read(HOME / "pip.conf")
        # Only this image, which stays here, may know how this machine reaches PyPI.
        known = [
            f"--env=PIP_{k.upper().replace('-', '_')}={v}" for k, v in settings["global"].items()
        ]
        build(folder, OWN, *known)
    said = podman("run", "--rm", *STRICT, "--entrypoint=python", OWN, "-c", IMPORTS)
    expect(said == "charge", "an image as the page shows it has its requirements and its tasks")


def main() -> int:
    """0 when all of it is true."""
    prepare()
    verdict: dict[str, Any] = {"ok": False}
    with Server.temporary() as server:
        try:
            lint()
            make()
            verdict |= look_inside()
            build_as_the_page_says()
            play(server)
            verdict["ok"] = True
        except Wrong as wrong:
            verdict["wrong"] = str(wrong)
    finish("image-check", {**verdict, **provenance("make image-check", server_version())})
    return 0 if verdict["ok"] else 1


def server_version() -> int:
    """Of the embedded server, as libpq writes it."""
    from faultline.launcher import find

    major, _, minor = find().version.partition(".")
    return int(major) * 10_000 + int(minor or 0)


if __name__ == "__main__":
    sys.exit(main())
