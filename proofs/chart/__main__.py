"""`make chart-check`: the chart, linted, installed, upgraded and tested with each set of values.

Ends with one line of JSON; exit status 1 if anything is wrong.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator

from proofs.chart import judging
from proofs.chart.helm import library
from proofs.chart.manifests import FOLDER, VALUES
from proofs.chart.rendering import SETS, Object, Refused, rendered, values_of
from proofs.stopwatch import finish

# What values.schema.json, or the chart, has to refuse, and the word that tells why.
WRONG: list[tuple[Object, str]] = [
    ({"wrokers": {}}, "wrokers"),
    ({"api": {"replicas": "two"}}, "replicas"),
    ({"image": {"repository": "shop", "digest": "sha256:short"}}, "digest"),
    ({"workers": {"pools": [{"app": "shop:app"}]}}, "name"),
    ({"workers": {"pools": [{"name": "a", "queues": ["it's"]}]}}, "queues"),
    ({"workers": {"pools": [{"name": "a", "concurency": 5}]}}, "concurency"),
    ({"workers": {"pools": [{"name": "a"}, {"name": "a"}]}}, "twice"),
    ({"workers": {"pools": [{"name": "a", "nodeSelector": {"gpu": True}}]}}, "gpu"),
    ({"workers": {"pools": [{"name": "a", "database": {"url": "postgresql://…"}}]}}, "url"),
    ({"workers": {"defaults": {"keda": {"enabled": True}}}}, "names of its queues"),
    (
        {
            "workers": {
                "defaults": {
                    "queues": ["a"],
                    "keda": {"enabled": True},
                    "autoscaling": {"enabled": True},
                }
            }
        },
        "not both",
    ),
    ({"api": {"autoscaling": {"enabled": True, "minReplicas": 9}}}, "more than its maxReplicas"),
    (
        {
            "workers": {
                "defaults": {"queues": ["a"], "keda": {"enabled": True, "minReplicas": 21}},
            }
        },
        "keda.minReplicas is more",
    ),
]


def wrong_values() -> Iterator[str]:
    """Which of them were taken, or refused for another reason."""
    for values, why in WRONG:
        try:
            rendered(values)
            yield f"{values} was accepted"
        except Refused as error:
            if why not in str(error):
                yield f"{values} was refused, but for: {error}"


def judged(objects: list[Object]) -> Iterator[str]:
    """All that is wrong with them."""
    for version in judging.VERSIONS:
        yield from judging.schemas(objects, version)
    yield from judging.hardened(objects)
    if judging.can_judge_custom():
        yield from judging.custom(objects)
    if shutil.which("promtool"):
        yield from judging.rules(objects)


def lets_the_migration_through(item: Object) -> bool:
    """The policy that it needs where everything is denied, which has to be there before it."""
    component = item["metadata"].get("labels", {}).get("app.kubernetes.io/component")
    return (item["kind"], component) == ("NetworkPolicy", "migrate")


def kustomized() -> list[str]:
    """Whether kubectl, where there is one, can put the plain manifests together."""
    done = subprocess.run(
        ["kubectl", "kustomize", FOLDER], capture_output=True, text=True, check=False
    )
    return [] if done.returncode == 0 else [done.stderr]


def main() -> int:
    """Everything, with what could not be tried said plainly."""
    if library() is None:
        print("Helm's library is not made for this machine: nothing was tried", file=sys.stderr)
        return 2
    wrong, count = [], 0
    for path in [*SETS, VALUES]:
        found = rendered(values_of(path))
        problems = [*map(str, found.lint), *judged(found.objects)]
        for objects in (found.installed, found.upgraded):
            first = next(item for item in objects if not lets_the_migration_through(item))
            if first["kind"] != "Job":
                problems.append("the migration is not the first thing that happens")
        print(f"  {path.parent.name}/{path.name:<24} {len(found.objects):3} objects")
        wrong += [f"{path.name}: {problem}" for problem in problems]
        count += len(found.objects)
    wrong += wrong_values()
    print(f"  {len(WRONG)} sets of wrong values, each to be refused")
    unchecked = []
    if not judging.can_judge_custom():
        unchecked.append("custom resources (no npm)")
    if not shutil.which("promtool"):
        unchecked.append("rules (no promtool)")
    if shutil.which("kubectl"):
        wrong += kustomized()
    else:
        unchecked.append("kustomize (no kubectl)")
    for problem in wrong:
        print(f"  WRONG  {problem}", file=sys.stderr)
    for what in unchecked:
        print(f"  not checked: {what}", file=sys.stderr)
    said = {"sets": len(SETS) + 1, "objects": count, "versions": judging.VERSIONS}
    said |= {"refused": len(WRONG), "unchecked": unchecked, "wrong": len(wrong)}
    finish("chart-check", said)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
