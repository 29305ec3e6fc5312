"""What a dashboard is made of, and how Grafana wants it written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24
SELECTOR = re.compile(r"\b(faultline_\w+)(?:\{([^}]*)\})?")


@dataclass(frozen=True)
class Panel:
    """One picture: a title, a unit of Grafana's, and queries by what their lines are called."""

    title: str
    unit: str
    queries: dict[str, str]
    says: str = ""
    kind: Literal["timeseries", "stat"] = "timeseries"
    width: int = 12
    red_from: float | None = None


@dataclass(frozen=True)
class Row:
    """A heading, and what stands below it."""

    title: str
    panels: tuple[Panel, ...]


def rate(metric: str, by: str = "", where: str = "") -> str:
    """How many a second, of all processes."""
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{where}[$__rate_interval]))"


def increase(metric: str, by: str = "", where: str = "") -> str:
    """How many more in an interval, of all processes."""
    return f"sum{f' by ({by})' if by else ''} (increase({metric}{where}[$__rate_interval]))"


def quantile(share: float, metric: str, by: str = "", where: str = "") -> str:
    """Of a histogram, over all processes."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, {rate(f'{metric}_bucket', labels, where)})"


def oldest(metric: str) -> str:
    """For how long it has not happened in the namespace where that is the longest."""
    return f"max(time() - max by (namespace) ({metric}))"


def chosen(query: str) -> str:
    """The query, of the chosen namespaces only. All are `.*`, which also fits where there is no
    such label."""
    return SELECTOR.sub(
        lambda found: "".join(
            (found[1], "{", f"{found[2]}, " if found[2] else "", 'namespace=~"$namespace"}')
        ),
        query,
    )


def number(
    title: str, query: str, unit: str = "short", *, red_from: float = 1, says: str = ""
) -> Panel:
    """One number, and from when on it is red."""
    return Panel(title, unit, {title: query}, says, "stat", 4, red_from)


def dashboard(uid: str, title: str, rows: tuple[Row, ...]) -> dict[str, Any]:
    """As Grafana provisions it."""
    return {
        "uid": uid,
        "title": title,
        "tags": ["faultline"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource(), *_choices()]},
        "annotations": {"list": []},
        "panels": list(_panels(rows)),
    }


def _datasource() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
    }


def _choices() -> list[dict[str, Any]]:
    return [
        _choice("namespace", "Namespace", "faultline_database_up"),
        _choice("queue", "Queue", chosen("faultline_queue_depth")),
    ]


def _choice(name: str, label: str, series: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": f"label_values({series}, {name})", "refId": name},
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
    }


def _panels(rows: tuple[Row, ...]) -> Any:
    ids = iter(range(1, 1000))
    top = 0
    for row in rows:
        place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
        yield {"id": next(ids), "type": "row", "title": row.title, "gridPos": place, "panels": []}
        top, left, height = top + 1, 0, 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                top, left = top + height, 0
            height = 4 if panel.kind == "stat" else 8
            place = {"x": left, "y": top, "w": panel.width, "h": height}
            yield _panel(next(ids), panel, place)
            left += panel.width
        top += height


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.red_from is not None:
        steps.append({"color": "red", "value": panel.red_from})
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.says,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": 0,
                "thresholds": {"mode": "absolute", "steps": steps},
            },
            "overrides": [],
        },
        "targets": [
            {
                "refId": chr(ord("A") + n),
                "datasource": SOURCE,
                "expr": chosen(query),
                "legendFormat": legend,
            }
            for n, (legend, query) in enumerate(panel.queries.items())
        ],
    }
