"""A table of the screen: rows that are looked at again and again, and a cursor that stays with its
row."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.coordinate import Coordinate
from textual.widgets import DataTable

from faultline.cli.display import STATE_STYLES, Column, fitting, text
from faultline.cli.top.look import Frame
from faultline.cli.top.views import View

_SHORT = 12  # of an id where there is no room for it: its end, which is the random part


class Rows(DataTable[Text]):
    """The rows of one view."""

    def __init__(self, view: View) -> None:
        super().__init__(id=view.name, cursor_type="row", show_row_labels=False)
        self.view = view
        self._keys: list[str] = []
        self._jobs: dict[str, str] = {}
        self._shown: list[tuple[str, ...]] = []
        self._titles: list[str] = []

    @property
    def chosen(self) -> str | None:
        """The id of the job at the cursor; None, where there is none."""
        if not self._keys or self.view.job is None:
            return None
        return self._jobs[self._keys[min(self.cursor_row, len(self._keys) - 1)]]

    def show(self, frame: Frame, width: int) -> None:
        """Show what the frame has; what is the same stays untouched."""
        rows, columns = self.view.rows(frame), self.view.columns(frame)
        keys = [str(row[self.view.key]) for row in rows]
        if self.view.job is not None:
            ids = (str(row[self.view.job]) for row in rows)
            self._jobs = dict(zip(keys, ids, strict=True))
        cells = [[text(column.read(row)) for column in columns] for row in rows]
        cells = _shortened(cells, columns, width)
        places = fitting(cells, columns, width) if cells else list(range(len(columns)))
        titles = [columns[place].title for place in places]
        shown = [tuple(row[place] for place in places) for row in cells]
        if keys == self._keys and titles == self._titles:
            self._mend(shown, [columns[place] for place in places])
        else:
            self._anew(keys, titles, shown, [columns[place] for place in places])
        self._shown = shown

    def _mend(self, shown: list[tuple[str, ...]], columns: list[Column]) -> None:
        for row, (now, before) in enumerate(zip(shown, self._shown, strict=True)):
            for place, (cell, was) in enumerate(zip(now, before, strict=True)):
                if cell != was:
                    at = Coordinate(row, place)
                    self.update_cell_at(at, _styled(cell, columns[place]), update_width=True)

    def _anew(
        self,
        keys: list[str],
        titles: list[str],
        shown: list[tuple[str, ...]],
        columns: list[Column],
    ) -> None:
        at = self._keys[self.cursor_row] if self.cursor_row < len(self._keys) else None
        place = self.cursor_row
        offset = self.scroll_y
        self.clear(columns=True)
        for title in titles:
            self.add_column(title)
        for key, row in zip(keys, shown, strict=True):
            styled = [_styled(cell, column) for cell, column in zip(row, columns, strict=True)]
            self.add_row(*styled, key=key)
        self._keys, self._titles = keys, titles
        if keys:
            self.move_cursor(row=keys.index(at) if at in keys else min(place, len(keys) - 1))
            self.scroll_to(y=offset, animate=False)


def _shortened(cells: list[list[str]], columns: Sequence[Column], width: int) -> list[list[str]]:
    """With ids cut short, if whole ones leave no room for the rest."""
    widths = [
        max(len(column.title), *(len(row[place]) for row in cells)) + 2
        for place, column in enumerate(columns)
        if cells and not column.optional
    ]
    if sum(widths) <= width:
        return cells
    return [
        [
            f"…{cell[-_SHORT:]}" if column.whole and cell else cell
            for cell, column in zip(row, columns, strict=True)
        ]
        for row in cells
    ]


def _styled(cell: str, column: Column) -> Text:
    style = STATE_STYLES.get(cell, "") if column.state else ""
    return Text(cell, style=style, justify="right" if column.number else "left", no_wrap=True)
