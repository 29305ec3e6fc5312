"""Helm itself, without its command: the Go library that `helm-sdkpy` carries, called directly.

Its Python part wants a newer Python than ours; the library does not care. It has no
`helm template`: a chart is installed in a `Cluster` that only writes down what it is given, and
that is what would reach a real one, hooks and their order included.
"""

from __future__ import annotations

import ctypes
import json
import platform
import sys
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

from proofs.chart.cluster import Cluster

PACKAGE = "helm-sdkpy"
TIMEOUT_SECONDS = 30


class HelmFailed(Exception):
    """What Helm said."""


def library() -> Path | None:
    """Where it is, if it is installed and this machine can run it."""
    try:
        found = files(PACKAGE) or []
    except PackageNotFoundError:
        return None
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    for path in found:
        is_library = path.name in ("libhelm_sdkpy.so", "libhelm_sdkpy.dylib")
        if is_library and path.parent.name == f"{sys.platform}-{machine}":
            return Path(str(path.locate()))
    return None


class Helm:
    """One installation of charts: a namespace of a cluster."""

    def __init__(self, cluster: Cluster, namespace: str = "jobs") -> None:
        path = library()
        assert path is not None, "make chart-check installs it"
        self._library = ctypes.CDLL(str(path))
        self._library.helm_sdkpy_last_error.restype = ctypes.c_char_p
        self._handle = ctypes.c_ulonglong()
        self._call(
            "config_create",
            _text(namespace),
            _text(cluster.kubeconfig),
            None,
            _text("{}"),
            ctypes.byref(self._handle),
        )

    def lint(self, chart: Path) -> list[dict[str, Any]]:
        """What Helm has to say about the chart, with the values it comes with."""
        answer = self._ask("lint", _text(str(chart)))
        return list(answer.get("Messages") or answer.get("messages") or [])

    def install(self, release: str, chart: Path, values: dict[str, Any]) -> None:
        """helm install, without waiting for what is not a hook."""
        self._release("install", release, chart, values)

    def upgrade(self, release: str, chart: Path, values: dict[str, Any]) -> None:
        """helm upgrade."""
        self._release("upgrade", release, chart, values)

    def test(self, release: str) -> None:
        """helm test."""
        self._ask("test", _text(release))

    def _release(self, verb: str, release: str, chart: Path, values: dict[str, Any]) -> None:
        options = {
            "wait": False,
            "timeout_seconds": TIMEOUT_SECONDS,
            "server_side_apply": "true",
            "disable_openapi_validation": True,
        }
        given = (release, str(chart), json.dumps(values), "", json.dumps(options))
        self._ask(verb, *map(_text, given))

    def _ask(self, verb: str, *arguments: ctypes.c_char_p) -> dict[str, Any]:
        answer = ctypes.c_void_p()
        self._call(verb, self._handle, *arguments, ctypes.byref(answer))
        assert answer.value is not None
        text = ctypes.string_at(answer.value)
        self._library.helm_sdkpy_free(answer)
        found = json.loads(text)
        return found if isinstance(found, dict) else {"Messages": found}

    def _call(self, verb: str, *arguments: Any) -> None:
        if getattr(self._library, f"helm_sdkpy_{verb}")(*arguments) != 0:
            raise HelmFailed((self._library.helm_sdkpy_last_error() or b"").decode())


def _text(value: str) -> ctypes.c_char_p:
    return ctypes.c_char_p(value.encode())
