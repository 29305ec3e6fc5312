"""Links and anchors of the documents, as a forge and an editor read them: relative files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CODE = re.compile(r"^(```+).*?^\1$|(`+)[^`].*?\2", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)


@dataclass(frozen=True)
class Link:
    """Where a page says that something is; `at` is the place of the target in its text."""

    target: str
    at: int

    @property
    def path(self) -> str:
        return self.target.partition("#")[0]

    @property
    def anchor(self) -> str:
        return self.target.partition("#")[2]

    @property
    def is_outside(self) -> bool:
        return "://" in self.target or self.target.startswith("mailto:")


def without_code(text: str) -> str:
    """The text with its code blanked out, every character in its place."""
    return CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def links(text: str) -> Iterator[Link]:
    """Each link and picture, in order."""
    for found in LINK.finditer(without_code(text)):
        yield Link(found[1], found.start(1))


def anchor(heading: str) -> str:
    """What GitHub calls it; MyST does the same."""
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    """Those of all headings of a page."""
    fenced = re.compile(r"^(```+).*?^\1$", re.MULTILINE | re.DOTALL)
    return {anchor(heading) for heading in HEADING.findall(fenced.sub("", text))}


def wrong(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    found = []
    for link in links(page.read_text()):
        if link.is_outside:
            continue
        target = page if not link.path else (page.parent / link.path).resolve()
        if not target.exists():
            found.append(f"{page.name}: there is no {link.target}")
        elif link.anchor and link.anchor not in anchors(target.read_text()):
            found.append(f"{page.name}: no heading of {target.name} is #{link.anchor}")
    return found
