"""`docker`, as far as docs/how-to/containers.md and `make migrate` type it, played by podman.

Differences that are bridged here: podman 4.3 does not wait for a health check and starts anew what
has completed, so what `depends_on` says is done in `up`; nothing can be pulled, so Grafana is left
out; without a terminal, none is asked for.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import yaml

from proofs.containers.engine import HOME, ROOT, build_options, environment, podman, run

PROJECT = "faultline"
LEFT_OUT = "grafana"
PATIENCE_SECONDS = 300.0


def command() -> Path:
    """A directory whose `docker` is this module."""
    folder = HOME / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "docker"
    file.write_text(
        f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec {sys.executable} -m proofs.containers.docker "$@"\n'
    )
    file.chmod(0o755)
    return folder


def containers(service: str) -> list[str]:
    """The ids of those of a service that run."""
    labels = {"io.podman.compose.project": PROJECT, "com.docker.compose.service": service}
    filters = [f"--filter=label={name}={value}" for name, value in labels.items()]
    return podman("ps", "--quiet", "--no-trunc", *filters).split()


def compose(*arguments: str) -> int:
    """podman-compose on compose.yml, with what it needs here."""
    program = str(Path(sys.executable).parent / "podman-compose")
    options = [
        f"--podman-build-args={' '.join(build_options())}",
        "--file",
        str(ROOT / "compose.yml"),
    ]
    done = subprocess.run([program, *options, *arguments], env=environment(), check=False)
    return done.returncode


def well(service: str) -> bool:
    """Whether all of its containers are there and pass their health checks."""
    names = containers(service)
    checks = [run("podman", "healthcheck", "run", name, check=False) for name in names]
    return bool(names) and all(check.returncode == 0 for check in checks)


def up(arguments: list[str]) -> int:
    """All but what is left out, each when what it depends on is as compose.yml wants it."""
    services = yaml.safe_load((ROOT / "compose.yml").read_text())["services"]
    built = [name for name, service in services.items() if "build" in service]
    if "--build" in arguments and compose("build", *built) != 0:
        return 1
    given = [argument for argument in arguments if argument != "--build"]
    waiting = [name for name in services if name != LEFT_OUT]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while waiting:
        for name in [*waiting]:
            wanted = services[name].get("depends_on", {})
            if all(_is(other, how["condition"]) for other, how in wanted.items()):
                if compose("up", *given, "--no-build", "--no-deps", name) != 0:
                    return 1
                waiting.remove(name)
        if time.monotonic() > deadline:
            print(f"still waiting: {', '.join(waiting)}", file=sys.stderr)
            return 1
        time.sleep(0.2)
    return 0


def _is(service: str, condition: str) -> bool:
    if condition == "service_healthy":
        return well(service)
    assert condition == "service_completed_successfully"
    form = "--format={{.State.Status}} {{.State.ExitCode}}"
    asked = run("podman", "inspect", form, f"{PROJECT}_{service}_1", check=False)
    return asked.stdout.strip() == "exited 0"


def forget() -> None:
    """Everything of the project, also what it no longer knows of, such as a third worker."""
    run("podman", "pod", "rm", "--force", "--time=5", f"pod_{PROJECT}", check=False)
    for name in ("postgres", "prometheus"):
        run("podman", "volume", "rm", "--force", f"{PROJECT}_{name}", check=False)
    run("podman", "network", "rm", "--force", f"{PROJECT}_default", check=False)


def main(arguments: list[str]) -> int:
    """As docker would."""
    match arguments:
        case ["compose", "up", *rest]:
            return up(rest)
        case ["compose", "ps", "--quiet", "--status=running", service]:
            print("\n".join(containers(service)))
            return 0
        case ["compose", "exec" | "run" as verb, *rest]:
            return compose(verb, "-T", *rest)
        case ["compose", *rest]:
            return compose(*rest)
        case _:
            return subprocess.run(["podman", *arguments], env=environment(), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
