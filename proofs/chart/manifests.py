"""deploy/k8s: the chart as plain manifests, for who has no Helm; and the table of its values.

    python -m proofs.chart.manifests        `make manifests`

What is only Helm's is taken out. Each file says from which state of the chart it was made, so that
a test without Helm can tell when it is out of date.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import yaml

from proofs.chart.rendering import CHART, ROOT, Object, rendered, values_of
from proofs.chart.values import page

FOLDER = ROOT / "deploy" / "k8s"
VALUES = FOLDER / "values.yaml"
RELEASE = "faultline"
# In the order in which `kubectl apply` shall have them.
FILES = {
    "migrate.yaml": ("migrate",),
    "network.yaml": ("",),
    "api.yaml": ("api",),
    "inspector.yaml": ("inspector",),
    "reconciler.yaml": ("reconciler",),
    "workers.yaml": ("worker",),
}
COMPONENT = "app.kubernetes.io/component"


def state() -> str:
    """Of all that the manifests are made from."""
    digest = hashlib.sha256()
    sources = [CHART / "Chart.yaml", CHART / "values.yaml", VALUES]
    for path in [*sources, *sorted((CHART / "templates").iterdir())]:
        if path.suffix != ".txt":
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def plain(item: Object) -> Object:
    """Without what is only Helm's."""
    meta = dict(item["metadata"])
    meta.pop("namespace", None)
    meta.pop("annotations", None)
    found = {**item, "metadata": {**meta, "labels": _ours(meta["labels"])}}
    template = item.get("spec", {}).get("template")
    if template is not None:
        labels = _ours(template["metadata"]["labels"])
        changed = {**template, "metadata": {**template["metadata"], "labels": labels}}
        found["spec"] = {**item["spec"], "template": changed}
    return found


def _ours(labels: dict[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in labels.items()
        if name not in ("helm.sh/chart", "app.kubernetes.io/managed-by")
    }


def manifests() -> dict[str, str]:
    """Every file's text by its name."""
    objects = sorted(
        rendered(values_of(VALUES), release=RELEASE).installed,
        key=lambda item: (item["kind"], item["metadata"]["name"]),
    )
    head = (
        f"# Made from the chart, state {state()}, by `make manifests`; change the chart instead.\n"
    )
    files = {}
    for name, components in FILES.items():
        chosen = [o for o in objects if o["metadata"]["labels"].get(COMPONENT, "") in components]
        files[name] = head + yaml.safe_dump_all(map(plain, chosen), sort_keys=False)
    resources = [name for name in FILES if name != "migrate.yaml"]
    whole = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": resources,
    }
    files["kustomization.yaml"] = head + yaml.safe_dump(whole, sort_keys=False)
    return files


def main() -> None:
    """Write them."""
    for name, text in manifests().items():
        (FOLDER / name).write_text(text)
    (CHART / "README.md").write_text(page())
    print(f"{Path('deploy/k8s')}: {len(FILES) + 1} files; the chart's README.md")


if __name__ == "__main__":
    main()
