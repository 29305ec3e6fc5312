"""CHANGELOG.md as data: a section for each version, in the form of Keep a Changelog."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from pathlib import Path

PAGE = Path(__file__).parent.parent / "CHANGELOG.md"
KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
UNRELEASED = "Unreleased"
NOT_YET = "not yet"  # where the date of a version stands that is still being made
_HEADING = re.compile(r"^## \[(?P<version>[^\]]+)\](?: - (?P<date>.+))?$", re.MULTILINE)


@dataclass(frozen=True)
class Section:
    """One version."""

    version: str
    when: str | None
    text: str

    @property
    def released(self) -> date | None:
        """The day; None while it is being made, or where there is none."""
        try:
            return date.fromisoformat(self.when or "")
        except ValueError:
            return None

    @property
    def kinds(self) -> list[str]:
        """What sorts of change it has."""
        return re.findall(r"^### (.+)$", self.text, re.MULTILINE)


def sections(page: str) -> list[Section]:
    """In the order in which they stand: the newest first."""
    body, _, _ = page.partition("\n[Unreleased]: ")
    headings = list(_HEADING.finditer(body))
    ends = [*(heading.start() for heading in headings[1:]), len(body)]
    return [
        Section(heading["version"], heading["date"], body[heading.end() : end].strip())
        for heading, end in zip(headings, ends, strict=True)
    ]


def complaints(page: str) -> list[str]:
    """What is not of the form."""
    found = []
    listed = sections(page)
    links = dict(re.findall(r"^\[([^\]]+)\]: (\S+)$", page, re.MULTILINE))
    if not listed or listed[0].version != UNRELEASED or listed[0].when is not None:
        found.append("the first section is not [Unreleased]")
    for section in listed:
        if section.version not in links:
            found.append(f"[{section.version}] has no link")
        found += [
            f"[{section.version}]: {kind} is no kind of change"
            for kind in section.kinds
            if kind not in KINDS
        ]
        if section.version != UNRELEASED and not section.kinds:
            found.append(f"[{section.version}] says nothing")
        if section.when not in (None, NOT_YET) and section.released is None:
            found.append(f"[{section.version}]: {section.when} is no date")
    days = [section.released for section in listed if section.released is not None]
    if days != sorted(days, reverse=True):
        found.append("the versions are not in order")
    return found
