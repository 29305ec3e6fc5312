"""`make compose-check`: compose.yml is run as it is, by doing what the page on containers says.

Then, in the same installation: a worker's container is stopped (SIGSTOP) in the middle of a job,
the other one takes the job over, the first wakes up, and the order is charged once. Prometheus has
found every component and loaded the rules, and no component can do more than its login may.

The last line on stdout is one JSON object; the exit status is 0 when all of it is true.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import urllib.parse
import urllib.request
from contextlib import suppress
from typing import Any

from faultline.provenance import provenance
from proofs.containers import docker, stand_ins
from proofs.containers.engine import IMAGE, ROOT, environment, podman, prepare, run, say
from proofs.containers.image import Wrong, answered, expect, server_version, state, until
from proofs.serving import Caller
from proofs.stopwatch import finish
from tests.documents import Reader, blocks

PAGE = ROOT / "docs/how-to/containers.md"
PATIENCE_SECONDS = 900.0  # for a command of the page; one of them builds the image
PORTS = (8000, 8001, 9090)
TOKEN, READ_TOKEN = "not-a-secret-token", "not-a-secret-read-token"


def take_over() -> dict[str, Any]:
    """The worker that has a job is stopped; the other one does it."""
    api, inspector = Caller(8000, TOKEN), Caller(8001, READ_TOKEN)
    slow = {"task": "charge", "payload": {"order_id": 9, "takes_seconds": 3}}
    job = answered(api, "POST", "/jobs", slow)
    until(lambda: state(api, job) == "running", "a worker runs a job of some seconds")
    owner = answered(api, "GET", f"/jobs/{job['id']}")["lease_owner"]
    holder = next(c for c in docker.containers("worker") if owner.startswith(c[:12]))
    podman("kill", "--signal=STOP", holder)
    say("  its container is stopped in the middle of it")
    try:
        until(lambda: state(api, job) == "succeeded", "the other worker took it over and is done")
    finally:
        podman("kill", "--signal=CONT", holder)
    found = answered(api, "GET", f"/jobs/{job['id']}")
    expect(found["fencing_token"] == 2, "under a higher token")
    path = f"/api/refusals?job_id={job['id']}"
    until(
        lambda: answered(inspector, "GET", path)["refusals"],
        "the first one woke up, and the inspector shows what it was refused",
    )
    expect(
        rows("select count(*) from charge where order_id = 9") == "1", "the charge is there once"
    )
    expect(rows("select count(*) from faultline.violations") == "0", "no invariant is violated")
    refused = answered(inspector, "GET", path)["refusals"]
    return {"token": found["fencing_token"], "refused": [r["operation"] for r in refused]}


def rows(query: str) -> str:
    """What the superuser sees."""
    server = docker.containers("postgres")[0]
    psql = ("psql", "--host=127.0.0.1", "--username=postgres", "-XAt", "faultline")
    return podman("exec", "--env=PGPASSWORD=not-a-secret", server, *psql, f"--command={query}")


def watched() -> None:
    """Prometheus sees all of it."""
    until(lambda: ask("sum(up)") == [4.0], "Prometheus has found two workers, reconciler and api")
    until(lambda: ask("sum(faultline_jobs_succeeded_total) >= bool 3") == [1.0], "three successes")
    until(lambda: ask("sum(faultline_recoveries_total) >= bool 1") == [1.0], "a recovery")
    with urllib.request.urlopen("http://127.0.0.1:9090/api/v1/rules", timeout=10) as answer:
        groups = json.load(answer)["data"]["groups"]
    healthy = {rule["health"] for group in groups for rule in group["rules"]}
    expect(healthy <= {"ok", "unknown"} and bool(groups), "it has loaded the rules")


def ask(query: str) -> list[float]:
    """The values of a query."""
    url = f"http://127.0.0.1:9090/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with suppress(OSError), urllib.request.urlopen(url, timeout=10) as answer:
        return [float(found["value"][1]) for found in json.load(answer)["data"]["result"]]
    return []


def least() -> None:
    """Nobody has more than its part."""
    for login in ("api", "inspector", "reconciler", "worker"):
        may = f"select has_table_privilege('{login}', 'faultline.job', 'select, insert, update')"
        expect(rows(may) == "f", f"{login} cannot touch the tables")
    enqueue = Caller(8001, READ_TOKEN)("POST", "/jobs", {"task": "charge"})
    expect(enqueue.status in (403, 404, 405), "the inspector takes no jobs")
    worker = docker.containers("worker")[0]
    expect(podman("exec", worker, "id", "-u") == "10001", "a worker is user 10001")
    touched = run("podman", "exec", worker, "touch", "/x", check=False)
    expect("Read-only" in touched.stderr, "its root is read only")
    for service in ("api", "inspector", "worker", "reconciler"):
        expect(docker.well(service), f"the health check of {service} says: well")


def play() -> dict[str, Any]:
    """The page, and between its last two steps what it does not show."""
    given = {**environment(), "PATH": f"{docker.command()}{os.pathsep}{os.environ['PATH']}"}
    given = {name: value for name, value in given.items() if not name.startswith("MAKE")}
    *first, last = [block for block in blocks(PAGE) if block.language == "console"]
    with Reader(PAGE, ROOT, given) as reader:
        reader.port, reader.patience_seconds = 8000, PATIENCE_SECONDS
        for block in first:
            say(f"the page, line {block.line} …")
            reader.do(block)
        outcome = take_over()
        watched()
        least()
        say(f"the page, line {last.line} …")
        reader.do(last)
    return outcome


def main() -> int:
    """0 when all of it is true."""
    prepare()
    for port in PORTS:
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if free.connect_ex(("127.0.0.1", port)) == 0:
                sys.exit(f"somebody listens on port {port}, which compose.yml needs")
    verdict: dict[str, Any] = {"ok": False}
    try:
        stand_ins.postgres(), stand_ins.prometheus()
        verdict |= {**play(), "ok": True}
    except (Wrong, AssertionError) as wrong:
        verdict["wrong"] = str(wrong)
        for service in ("postgres", "api", "inspector", "worker", "reconciler", "prometheus"):
            for name in docker.containers(service):
                logs = run("podman", "logs", "--tail=20", name, check=False)
                say(f"── {service}\n{logs.stdout}{logs.stderr}")
    finally:
        docker.forget()
    image = podman("image", "inspect", "--format={{.Id}}", IMAGE)[:12]
    origin = provenance("make compose-check", server_version())
    finish("compose-check", {**verdict, "image": image, **origin})
    return 0 if verdict["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
