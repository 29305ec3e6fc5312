"""A copy of docs/ that a generator can take as it is.

Pages from outside docs/ come in beside the others, links are turned to where things then are, and
a file of the repository that a page points at is copied too, so that a reader can have it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from website.contents import listed, toctrees
from website.links import links

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
FRONT = ROOT / "README.md"  # the site has a front page of its own
FROM_OUTSIDE = {  # what the navigation has of the pages beside it
    page: Path("project") / "-".join(page.relative_to(ROOT).parts).lower()
    for page in listed(DOCS)
    if not page.is_relative_to(DOCS)
}
FILES = Path("files")  # what is linked, and is no page


def stage(to: Path) -> None:
    """Fill `to` anew."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(DOCS, to)
    for source in [*DOCS.rglob("*.md"), *FROM_OUTSIDE]:
        page = place_of(source)
        text = turned(source, to)
        (to / page).parent.mkdir(exist_ok=True)
        if page.name == "index.md":
            text += toctrees(text)
        (to / page).write_text(text)


def place_of(source: Path) -> Path:
    """Where a page of the repository is in the copy."""
    if source == FRONT:
        return Path("index.md")
    return FROM_OUTSIDE.get(source) or source.relative_to(DOCS)


def turned(source: Path, to: Path) -> str:
    """The page's text, with its links as they are in the copy."""
    text, parts, at = source.read_text(), [], 0
    for link in links(text):
        if link.is_outside or not link.path:
            continue
        target = (source.parent / link.path).resolve()
        if not target.exists():
            continue  # Sphinx says so, with the line
        parts += [text[at : link.at], _turned(target, place_of(source), to) + _behind(link.target)]
        at = link.at + len(link.target)
    return "".join([*parts, text[at:]])


def _turned(target: Path, page: Path, to: Path) -> str:
    if target in (FRONT, *FROM_OUTSIDE) or target.is_relative_to(DOCS):
        place = place_of(target)
    else:
        if target.suffix == ".md":
            other = target.relative_to(ROOT)
            raise LookupError(f"{page} links to {other}, which docs/index.md does not list")
        place = FILES / target.relative_to(ROOT)
        _bring(target, to / place)
        place = place / "index.md" if target.is_dir() else place
    return os.path.relpath(place, page.parent)


def _bring(source: Path, place: Path) -> None:
    """A file as it is; a folder as a page that lists what is in it."""
    if not source.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, place)
        return
    place.mkdir(parents=True, exist_ok=True)
    names = sorted(f.name for f in source.iterdir() if f.is_file() and f.suffix != ".md")
    for name in names:
        shutil.copy(source / name, place / name)
    lines = "".join(f"- [{name}]({name})\n" for name in names)
    title = source.relative_to(ROOT)
    (place / "index.md").write_text(f"---\norphan: true\n---\n\n# {title}\n\n{lines}")


def _behind(target: str) -> str:
    return f"#{target.partition('#')[2]}" if "#" in target else ""
