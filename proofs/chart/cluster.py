"""A stand-in for the API server of a cluster: it keeps what it is given, and says it is well.

As much of the Kubernetes API as Helm asks for: discovery, objects by path, lists by label, watches.
Nothing runs in it: a Job is complete and a Pod has succeeded as soon as it is there. It judges
nothing either; what was given to it is judged by the schemas afterwards.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

# group/version: the kinds in it, with their plural.
KINDS = {
    "v1": {
        "ConfigMap": "configmaps",
        "Namespace": "namespaces",
        "Pod": "pods",
        "Secret": "secrets",
        "Service": "services",
        "ServiceAccount": "serviceaccounts",
    },
    "apps/v1": {"Deployment": "deployments"},
    "autoscaling/v2": {"HorizontalPodAutoscaler": "horizontalpodautoscalers"},
    "batch/v1": {"Job": "jobs"},
    "keda.sh/v1alpha1": {
        "ScaledObject": "scaledobjects",
        "TriggerAuthentication": "triggerauthentications",
    },
    "monitoring.coreos.com/v1": {
        "PodMonitor": "podmonitors",
        "PrometheusRule": "prometheusrules",
        "ServiceMonitor": "servicemonitors",
    },
    "networking.k8s.io/v1": {"Ingress": "ingresses", "NetworkPolicy": "networkpolicies"},
    "policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
}
DONE: dict[str, dict[str, Any]] = {
    "Job": {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]},
    "Pod": {"phase": "Succeeded"},
}
WATCH_SECONDS = 60.0
Object = dict[str, Any]


class Cluster:
    """What was put into it, in order."""

    def __init__(self, version: str = "1.34.0") -> None:
        self.version = version
        self.given: list[Object] = []  # all that was created or changed, but Helm's own records
        self._objects: dict[str, Object] = {}
        self._count = 0
        self._lock = threading.Lock()
        self.address = ""
        self.closed = threading.Event()

    @property
    def kubeconfig(self) -> str:
        """For whoever wants to reach it."""
        return yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "here",
                "clusters": [{"name": "here", "cluster": {"server": self.address}}],
                "users": [{"name": "nobody", "user": {}}],
                "contexts": [{"name": "here", "context": {"cluster": "here", "user": "nobody"}}],
            }
        )

    @contextmanager
    def running(self) -> Iterator[Cluster]:
        """Answer on a port of this machine for the duration of a block."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), _Asked)
        server.daemon_threads = True
        server.cluster = self  # type: ignore[attr-defined]
        self.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.closed.set()
            server.shutdown()
            server.server_close()

    # ── what it answers ──────────────────────────────────────────────────────────────────────────

    def discovery(self, path: str) -> Object | None:
        """Which versions and kinds there are."""
        groups = sorted({gv.rpartition("/")[0] for gv in KINDS} - {""})
        match path.strip("/").split("/"):
            case ["version"]:
                major, minor, _ = self.version.split(".")
                return {"major": major, "minor": minor, "gitVersion": f"v{self.version}"}
            case ["api"]:
                return {"kind": "APIVersions", "versions": ["v1"]}
            case ["apis"]:
                return {"kind": "APIGroupList", "groups": [_group(name) for name in groups]}
            case ["openapi", "v3"]:
                names = {gv: f"api{'s' if '/' in gv else ''}/{gv}" for gv in KINDS}
                paths = {n: {"serverRelativeURL": f"/openapi/v3/{n}"} for n in names.values()}
                return {"paths": paths}
            case ["openapi", "v3", _, *parts]:
                return _checks_fields("/".join(parts))
            case ["api", version] | ["apis", *_, version] as parts:
                name = version if parts[0] == "api" else "/".join(parts[1:])
                return _resources(name) if name in KINDS else None
        return None

    def put(self, path: str, given: Object) -> Object:
        """Create or replace."""
        with self._lock:
            self._count += 1
            kept: Object = json.loads(json.dumps(given))
            kept["metadata"] |= {"uid": f"uid-{path}", "resourceVersion": str(self._count)}
            if (status := DONE.get(given["kind"])) is not None:
                kept["status"] = status
            if given.get("type") != "helm.sh/release.v1":
                self.given.append(given)
            self._objects[path] = kept
            return kept

    def get(self, path: str) -> Object | None:
        """One object."""
        return self._objects.get(path)

    def delete(self, path: str) -> Object | None:
        """And forget it."""
        with self._lock:
            return self._objects.pop(path, None)

    def kind_of(self, path: str) -> tuple[str, str]:
        """What a collection is of: kind and version."""
        plural = path.rpartition("/")[2]
        return next((k, gv) for gv, kinds in KINDS.items() for k, p in kinds.items() if p == plural)

    def listed(self, path: str, labels: str) -> list[Object]:
        """Those of a collection with all these labels."""
        wanted = {tuple(one.split("=", 1)) for one in labels.split(",") if "=" in one}
        with self._lock:
            found = [o for p, o in self._objects.items() if p.rpartition("/")[0] == path]
        return [o for o in found if wanted <= set(o["metadata"].get("labels", {}).items())]


def _group(name: str) -> Object:
    versions = [
        {"groupVersion": gv, "version": gv.rpartition("/")[2]}
        for gv in KINDS
        if gv.rpartition("/")[0] == name
    ]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _resources(group_version: str) -> Object:
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    found = [
        {
            "name": plural,
            "singularName": kind.lower(),
            "namespaced": kind != "Namespace",
            "kind": kind,
            "verbs": verbs,
        }
        for kind, plural in KINDS[group_version].items()
    ]
    return {"kind": "APIResourceList", "groupVersion": group_version, "resources": found}


def _checks_fields(group_version: str) -> Object:
    """That the server looks at fields itself, so that the client need not: which is not true, but
    the schemas do that later, and strictly."""
    group, _, version = group_version.rpartition("/")
    paths = {
        f"/{plural}/{{name}}": {
            "patch": {
                "parameters": [{"name": "fieldValidation", "in": "query"}],
                "responses": {},
                "x-kubernetes-group-version-kind": {
                    "group": group,
                    "version": version,
                    "kind": kind,
                },
            }
        }
        for kind, plural in KINDS[group_version].items()
    }
    return {"openapi": "3.0.0", "info": {"title": "", "version": ""}, "paths": paths}


class _Asked(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Discovery, an object, a list or a watch."""
        path, question = self._asked()
        cluster = self._cluster
        if (known := cluster.discovery(path)) is not None:
            self._say(200, known)
        elif path.rpartition("/")[2] in {p for kinds in KINDS.values() for p in kinds.values()}:
            labels, fields = question.get("labelSelector", ""), question.get("fieldSelector", "")
            found = cluster.listed(path, labels)
            if fields.startswith("metadata.name="):
                found = [o for o in found if fields.endswith(f"={o['metadata']['name']}")]
            if question.get("watch"):
                self._watch(found)
            else:
                kind, version = cluster.kind_of(path)
                meta = {"resourceVersion": "1"}
                whole = {"kind": f"{kind}List", "apiVersion": version, "metadata": meta}
                self._say(200, {**whole, "items": found})
        else:
            self._say_found(cluster.get(path))

    def do_POST(self) -> None:
        """Create."""
        path, _ = self._asked()
        given = self._body()
        self._say(201, self._cluster.put(f"{path}/{given['metadata']['name']}", given))

    def do_PUT(self) -> None:
        """Replace."""
        path, _ = self._asked()
        self._say(200, self._cluster.put(path, self._body()))

    do_PATCH = do_PUT  # noqa: N815 - server-side apply brings the whole object

    def do_DELETE(self) -> None:
        """Forget."""
        path, _ = self._asked()
        self._body()
        self._say_found(self._cluster.delete(path))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing to write down."""

    @property
    def _cluster(self) -> Cluster:
        cluster: Cluster = self.server.cluster  # type: ignore[attr-defined]
        return cluster

    def _asked(self) -> tuple[str, dict[str, str]]:
        parts = urlsplit(self.path)
        return parts.path, {name: values[0] for name, values in parse_qs(parts.query).items()}

    def _body(self) -> Object:
        read = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        given: Object = yaml.safe_load(read) or {}
        return given

    def _say_found(self, found: Object | None) -> None:
        missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}
        self._say(404 if found is None else 200, found or {**missing, "reason": "NotFound"})

    def _say(self, status: int, answer: Object) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _watch(self, found: list[Object]) -> None:
        """All there is, that this is all, and then nothing more."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        for item in found:
            self.wfile.write(json.dumps({"type": "ADDED", "object": item}).encode() + b"\n")
        kind, version = self._cluster.kind_of(self._asked()[0])
        done = {"resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"}}
        bookmark = {"kind": kind, "apiVersion": version, "metadata": done}
        self.wfile.write(json.dumps({"type": "BOOKMARK", "object": bookmark}).encode() + b"\n")
        self.wfile.flush()
        self._cluster.closed.wait(WATCH_SECONDS)
        self.close_connection = True
