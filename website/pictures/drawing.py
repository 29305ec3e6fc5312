"""A drawing in SVG: lines of text with a few shapes, legible on a light and on a dark page.

The colours are those of docs/pictures/back-from-the-dead.svg, which is drawn by hand.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

STYLE = (Path(__file__).parent / "style.css").read_text()
MARKER = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path class="head" d="M0 0 8 4 0 8z"/></marker></defs>'
)


class Drawing:
    """Shapes in the order in which they are added; `str` is the file."""

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        self._lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            'aria-labelledby="t d">',
            f'<title id="t">{escape(title)}</title>',
            f'<desc id="d">{escape(description)}</desc>',
            f"<style>\n{STYLE}</style>",
            MARKER,
            f'<rect class="page" width="{width}" height="{height}" rx="8"/>',
        ]

    def __str__(self) -> str:
        return "\n".join([*self._lines, "</svg>", ""])

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        self._lines.append(
            f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def lane(self, y: float, name: str, x1: float = 110, x2: float = 980) -> None:
        """A line of time with somebody's name."""
        self.text(20, y + 5, name, "name")
        self._lines.append(f'<line class="lane" x1="{x1:g}" y1="{y:g}" x2="{x2:g}" y2="{y:g}"/>')

    def tick(self, x: float, y1: float, y2: float) -> None:
        """A moment, through all lanes."""
        self._lines.append(f'<line class="tick" x1="{x:g}" y1="{y1:g}" x2="{x:g}" y2="{y2:g}"/>')

    def box(
        self, kind: str, x1: float, x2: float, y: float, label: str = "", height: float = 32
    ) -> None:
        """A rectangle around y, with its label in the middle."""
        self._lines.append(
            f'<rect class="{kind}" x="{x1:g}" y="{y - height / 2:g}" width="{x2 - x1:g}" '
            f'height="{height:g}" rx="4"/>'
        )
        if label:
            self.text((x1 + x2) / 2, y + 5, label, anchor="middle")

    def path(self, d: str, kind: str = "arrow") -> None:
        self._lines.append(f'<path class="{kind}" d="{d}"/>')

    def arrow(self, x1: float, y1: float, x2: float, y2: float, kind: str = "arrow") -> None:
        self.path(f"M{x1:g} {y1:g}L{x2:g} {y2:g}", kind)

    def cross(self, x: float, y: float, size: float = 7) -> None:
        """Refused, or lost."""
        self.path(
            f"M{x - size:g} {y - size:g}L{x + size:g} {y + size:g}"
            f"M{x - size:g} {y + size:g}L{x + size:g} {y - size:g}",
            "no",
        )

    def dot(self, x: float, y: float) -> None:
        self._lines.append(f'<circle class="beat" cx="{x:g}" cy="{y:g}" r="3.5"/>')
