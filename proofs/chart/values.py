"""The table of the chart's values, from the comments of values.yaml: there is no second copy.

A comment belongs to the key below it; a key without one has its keys described instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import yaml

from proofs.chart.rendering import CHART

HEAD = """# The Helm chart of Faultline

[How to use it](../../../docs/how-to/kubernetes.md). Below are all values; `make manifests` makes
this page from the comments of values.yaml, values.schema.json refuses any other, and `ci` has three
sets that `make chart-check` tries.

| value | default | |
|---|---|---|
"""


class Value(NamedTuple):
    """One that can be set."""

    path: str
    default: str
    meaning: str


def values() -> list[Value]:
    """All of them, in the order of the file."""
    text = (CHART / "values.yaml").read_text()
    root = yaml.compose(text)
    assert isinstance(root, yaml.MappingNode)
    return list(_described(root, "", text.splitlines()))


def _described(node: yaml.MappingNode, above: str, lines: list[str]) -> Iterator[Value]:
    for key, value in node.value:
        path = f"{above}{key.value}"
        is_group = isinstance(value, yaml.MappingNode) and value.value and not value.flow_style
        meaning = _comment(lines, key.start_mark.line)
        if is_group and (not meaning or path == "workers.defaults"):
            yield from _described(value, f"{path}.", lines)
        else:
            default = yaml.safe_load(yaml.serialize(value))
            yield Value(path, json.dumps(default), meaning)


def _comment(lines: list[str], line: int) -> str:
    found: list[str] = []
    while line > 0 and lines[line - 1].strip().startswith("#"):
        line -= 1
        found.insert(0, lines[line].strip().removeprefix("#").strip())
    return " ".join(found)


def page() -> str:
    """README.md of the chart."""
    rows = [f"| `{v.path}` | `{v.default}` | {v.meaning} |" for v in values()]
    return HEAD + "\n".join(rows) + "\n"
