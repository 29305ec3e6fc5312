"""The navigation is what docs/index.md lists: no second list, and no syntax of a generator's.

A section of the index whose heading is followed by a list of links to pages is a part of the
navigation, in the order in which it stands there. A list in another page named index.md does the
same for the pages of its folder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HEADING = re.compile(r"^## (.+)$")
ENTRY = re.compile(r"^- \[([^\]]+)\]\(([^)#:]+)\.md\)")


@dataclass(frozen=True)
class Part:
    """A heading of the navigation, and the pages below it."""

    title: str
    entries: tuple[tuple[str, str], ...]  # as it is called there, and its path without .md


def parts(text: str) -> list[Part]:
    """The parts that an index has, in order; what stands before the first heading has no title."""
    title, found = "", []
    entries: list[tuple[str, str]] = []
    for line in [*text.splitlines(), "## end"]:
        if heading := HEADING.match(line):
            if entries:
                found.append(Part(title, tuple(entries)))
            title, entries = heading[1], []
        elif entry := ENTRY.match(line):
            entries.append((entry[1], entry[2]))
    return found


def toctrees(text: str) -> str:
    """The same for Sphinx, to be put behind the page; not to be seen on it."""
    return "".join(
        "\n```{toctree}\n:hidden:\n"
        + (f":caption: {part.title}\n\n" if part.title else "\n")
        + "".join(f"{title} <{path}>\n" for title, path in part.entries)
        + "```\n"
        for part in parts(text)
    )


def listed(docs: Path) -> set[Path]:
    """Every page that the navigation leads to, itself included."""
    found = {docs / "index.md"}
    for index in docs.rglob("index.md"):
        for part in parts(index.read_text()):
            found |= {(index.parent / f"{path}.md").resolve() for _, path in part.entries}
    return found
