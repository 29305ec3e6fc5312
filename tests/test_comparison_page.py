"""docs/comparison.md, docs/how-to/sizing.md and the migration guides say what was measured, of the
versions that were."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from faultline import __version__
from proofs.peers import pins
from proofs.peers.environment import Node, Python

DOCS = Path(__file__).parent.parent / "docs"
PINNED: dict[str, Python | Node] = {
    "Procrastinate": pins.PROCRASTINATE,
    "PGQueuer": pins.PGQUEUER,
    "Chancy": pins.CHANCY,
    "DBOS": pins.DBOS,
    "pg-boss": pins.PGBOSS,
    "Graphile Worker": pins.GRAPHILE,
    "Celery": pins.CELERY,
    "BullMQ": pins.BULLMQ,
}


def pinned(environment: Python | Node) -> str:
    """The version of the peer, which is the first of what is installed."""
    if isinstance(environment, Python):
        return environment.requirements[0].partition("==")[2]
    return next(iter(environment.dependencies.values()))


def rows(page: str, *columns: str) -> dict[str, dict[str, str]]:
    """The table that has these columns, by its first; what stands in brackets is left out."""
    lines = (DOCS / page).read_text().splitlines()
    for at, line in enumerate(lines):
        head = cells(line)
        if set(columns) <= set(head):
            found = {}
            for row in lines[at + 2 :]:
                if not row.startswith("|"):
                    return found
                shown = [re.sub(r" \(.*?\)", "", cell) for cell in cells(row)]
                found[shown[0]] = dict(zip(head, shown, strict=True))
    raise AssertionError(f"{page} has no table with {columns}")


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


FENCED = "ctx.transaction() with one INSERT and tx.complete()"
LATE = {
    "its row landed, stopped early": "late effect landed, stopped early",
    "its row landed, stopped at its write": "late effect landed, stopped at its write",
    "worker told": "worker told",
    "version": "version",
}
SPEED = {
    name: name
    for name in (
        *("version", "bulk enqueue/s", "drain/s, 1 worker", "drain/s, 2 workers"),
        *("pickup p50, ms", "pickup p99, ms"),
    )
}


@pytest.mark.parametrize(
    ("page", "columns"), [("duel.md", LATE), ("benchmarks.md", SPEED)], ids=["duel", "speed"]
)
def test_every_figure_of_the_comparison_is_the_one_that_was_measured(
    page: str, columns: dict[str, str]
) -> None:
    ours = rows("comparison.md", "queue", *columns)
    measured = rows(page, "peer", *columns.values())
    assert set(measured) - set(ours) <= {"naive lease queue", "Faultline, sync handlers"}
    for queue, row in ours.items():
        for column, theirs in columns.items():
            assert row[column] == measured[queue][theirs], (queue, column)


@pytest.mark.parametrize(
    ("said", "what", "column"),
    [
        (r"make bench`: ([\d,]+) async", "drain of no-op async jobs, 1 process", "measured"),
        (r"async, ([\d,]+) sync", "drain of no-op sync jobs, 1 process", "measured"),
        (r"are ([\d,]+) a second", f"{FENCED}, one job at a time", "measured"),
        (r"twenty at once ([\d,]+)", FENCED, "measured"),
        (r"reached ([\d.]+) of", "jobs that suspend for 1 to 50 ms, concurrency 500", "figure"),
        (r"takes ([\d.]+) MB", "idle worker: memory", "figure"),
        (r"([\d.]+) % of a core", "idle worker: processor", "figure"),
        (r"([\d.]+) statements a second", "idle worker: statements", "figure"),
    ],
)
def test_every_figure_of_the_sizing_page_is_the_one_that_was_measured(
    said: str, what: str, column: str
) -> None:
    (figure,) = re.findall(said, (DOCS / "how-to" / "sizing.md").read_text())
    measured = rows("benchmarks.md", "what", "figure", "measured")[what][column]
    assert measured.split()[0] == figure


def test_the_versions_are_the_ones_that_are_pinned_and_ours() -> None:
    for columns in (LATE, SPEED):
        for queue, row in rows("comparison.md", "queue", *columns).items():
            name = queue.partition(",")[0]
            expected = __version__ if name == "Faultline" else pinned(PINNED[name])
            assert row["version"] == expected, queue


def test_every_peer_that_was_measured_is_weighed_up() -> None:
    weighed = rows("comparison.md", "has, and we have not", "choose it when")
    assert {queue.strip("*") for queue in weighed} == set(PINNED)


@pytest.mark.parametrize("name", ["Celery", "Procrastinate"])
def test_a_migration_guide_names_the_version_that_it_was_run_with(name: str) -> None:
    page = (DOCS / "how-to" / f"from-{name.lower()}.md").read_text()
    assert re.findall(rf"{name} (\d+\.\d+\.\d+)", page) == [pinned(PINNED[name])]
