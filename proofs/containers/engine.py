"""Buildah and podman, with storage and settings of their own: what this machine has is not touched.

Settings are small because the machines that check this are: containers that may not raise their
limits, and no systemd, so that nobody runs the health checks but who asks for it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from configparser import RawConfigParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".containers"
TOOLS = {  # the program, and Debian's package with it
    "buildah": "buildah",
    "podman": "podman",
    "runc": "runc",
    "mmdebstrap": "mmdebstrap",
    "iptables": "iptables",  # netavark calls it, though its package does not say so
    "prometheus": "prometheus",
}
NETWORK = {"/usr/lib/podman/netavark": "netavark", "/usr/lib/podman/aardvark-dns": "aardvark-dns"}
IMAGE = "localhost/faultline"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
# What a host's own pip is told, and what means something inside a build as well.
PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "cert")


def say(text: str) -> None:
    """Progress, on stderr: stdout is for the verdict."""
    print(text, file=sys.stderr, flush=True)


def prepare() -> None:
    """Install what is missing, and write the engine's settings; ends the program if it cannot."""
    if os.geteuid() != 0:
        sys.exit("containers are built and run as root here: run this again as root")
    missing = _missing()
    if missing and shutil.which("apt-get"):
        say(f"installing {', '.join(missing)} …")
        # RUNLEVEL=1: what is installed is not started.
        given = {**os.environ, "RUNLEVEL": "1", "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], check=False, capture_output=True)
        command = ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *missing]
        subprocess.run(command, check=False, env=given, capture_output=True)
        missing = _missing()
    if missing:
        sys.exit(f"this needs {', '.join(missing)} (packages of Debian), which are not installed")
    _write_settings()


def _missing() -> list[str]:
    """The packages that are not there."""
    programs = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    return programs + [package for file, package in NETWORK.items() if not Path(file).exists()]


def _write_settings() -> None:
    HOME.mkdir(exist_ok=True)
    driver = "overlay" if _overlays_work() else "vfs"
    (HOME / "storage.conf").write_text(
        f'[storage]\ndriver = "{driver}"\n'
        f'graphroot = "{HOME}/storage-{driver}"\nrunroot = "{HOME}/run-{driver}"\n'
    )
    (HOME / "containers.conf").write_text(
        "[containers]\n"
        'default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n'
        'log_driver = "k8s-file"\n'
        "[network]\n"
        'network_backend = "netavark"\n'
        f'network_config_dir = "{HOME}/networks"\n'
        "[engine]\n"
        'runtime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
    )
    pip = RawConfigParser()
    pip["global"] = _pip_settings()
    with (HOME / "pip.conf").open("w") as file:
        pip.write(file)


def _overlays_work() -> bool:
    """Whether this file system can lie below an overlay; without, each layer is a whole copy."""
    with tempfile.TemporaryDirectory(dir=HOME) as folder:
        parts = {name: Path(folder, name) for name in ("lower", "upper", "work", "merged")}
        for part in parts.values():
            part.mkdir()
        options = f"lowerdir={parts['lower']},upperdir={parts['upper']},workdir={parts['work']}"
        mount = ["mount", "-t", "overlay", "overlay", "-o", options, str(parts["merged"])]
        if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
            return False
        subprocess.run(["umount", str(parts["merged"])], check=True)
        return True


def _pip_settings() -> dict[str, str]:
    """What the host's pip knows of mirrors and certificates, so that the build's reaches PyPI."""
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    found: dict[str, str] = {}
    for line in asked.stdout.splitlines():
        name, _, value = line.partition("=")
        key = name.split(".")[-1].replace("default-timeout", "timeout")
        if key in PIP_SETTINGS and "file://" not in value:
            found[key] = value.strip("'\"")
    if "cert" in found:
        found["cert"] = CERTIFICATES  # where BUILD puts it
    return found


def environment() -> dict[str, str]:
    """For buildah, podman and whoever starts them."""
    return {
        **os.environ,
        "CONTAINERS_CONF": str(HOME / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(HOME / "storage.conf"),
        "DISABLE_HC_SYSTEMD": "true",
        "BUILDAH_FORMAT": "docker",  # OCI's has no health check
        "BUILDAH_ISOLATION": "chroot",
    }


def build_options() -> list[str]:
    """Nothing is pulled; pip has what the host's has, as a secret; nothing of it stays."""
    options = ["--pull=never", f"--secret=id=pip,src={HOME / 'pip.conf'}"]
    if Path(CERTIFICATES).exists():
        options.append(f"--volume={CERTIFICATES}:{CERTIFICATES}:ro")
    return options


def run(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """A command of the engine, and what it printed."""
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done


def podman(*arguments: str) -> str:
    """What `podman …` printed."""
    return run("podman", *arguments).stdout.strip()


def build(folder: Path, tag: str, *arguments: str) -> None:
    """Build a folder's Dockerfile with buildah."""
    run("buildah", "build", *build_options(), "--tag", tag, *arguments, str(folder))


def exists(image: str) -> bool:
    """Whether the store has it."""
    return run("podman", "image", "exists", image, check=False).returncode == 0
