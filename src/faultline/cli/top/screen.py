"""The screen of `faultline top`.

A thread looks once a second and tells the screen what it saw, or why it saw nothing; the screen
never waits for the database. Without an answer it keeps what it has, and says since when.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import ClassVar
from uuid import UUID

from psycopg import Error as DriverError
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import ContentSwitcher, DataTable, Footer, Static

from faultline.access import Access
from faultline.cli.display import moment
from faultline.cli.jobs.drawing import UNICODE, Line, Piece
from faultline.cli.jobs.story import Evidence, page
from faultline.cli.top import acting
from faultline.cli.top.look import LOOK_SECONDS, Frame, Looks
from faultline.cli.top.table import Rows
from faultline.cli.top.views import JOBS, LEASES, RISK_STYLES, TABLES, overview
from faultline.errors import FaultlineError
from faultline.log import duration
from faultline.states import State

VIEWS = ("overview", *(view.name for view in TABLES))
STATES: tuple[str | None, ...] = (None, *State)
_OVERDUE_SECONDS = 2.5  # without an answer


class Seen(Message):
    """What a look found."""

    def __init__(self, frame: Frame, jobs_of: str | None) -> None:
        super().__init__()
        self.frame = frame
        self.jobs_of = jobs_of


class Trouble(Message):
    """Why a look found nothing."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words = words


class Said(Message):
    """What became of something that was asked for; or a job to be shown."""

    def __init__(self, words: str, evidence: Evidence | None = None) -> None:
        super().__init__()
        self.words = words
        self.evidence = evidence


class Question(ModalScreen[bool]):
    """Yes or no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,q", "answer(False)", "no"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        yield Static(Text(f"{self._question}\n\ny  yes     n  no"), id="question")

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


class Page(ModalScreen[None]):
    """One job, as `faultline jobs show` has it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "dismiss", "back")]

    def __init__(self, evidence: Evidence) -> None:
        super().__init__()
        self._evidence = evidence

    def compose(self) -> ComposeResult:
        lines = page(self._evidence, max(self.app.size.width - 6, 40), UNICODE)
        with VerticalScroll(id="page"):
            yield Static(rendered(lines))
        yield Footer()


class Top(App[None]):
    """The screen."""

    CSS = """
    #head, #tabs { height: 1; }
    #said { height: auto; max-height: 3; color: $warning; }
    ContentSwitcher { height: 1fr; }
    Question, Page { align: center middle; }
    #question { width: 70; height: auto; padding: 1 2; background: $surface; }
    #question { border: round $warning; }
    #page { width: 100%; height: 1fr; border: round $primary; padding: 0 1; background: $surface; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("tab", "next", "next view", priority=True),
        *(Binding(str(n), f"view({n - 1})", show=False) for n in range(1, len(VIEWS) + 1)),
        Binding("p", "pause", "pause"),
        Binding("s", "state", "state of jobs"),
        Binding("r", "ask('retry')", "retry"),
        Binding("c", "ask('cancel')", "cancel"),
    ]

    def __init__(self, looks: Looks, frame: Frame) -> None:
        super().__init__()
        self.looks = looks
        self._view = 0
        self._state: str | None = None
        self._paused = False
        self._frame = frame
        self._seen_at = time.monotonic()
        self._trouble = ""
        self._again = threading.Event()
        self._ended = threading.Event()
        # Kept, since a query looks at the topmost screen only, which may be a question.
        self._heading = Static(id="head")
        self._tabs = Static(id="tabs")
        self._facts = Static(id="facts")
        self._said = Static(id="said")
        self._tables = {view.name: Rows(view) for view in TABLES}

    def compose(self) -> ComposeResult:
        yield self._heading
        yield self._tabs
        with ContentSwitcher(initial=VIEWS[0]) as self._switcher:
            with VerticalScroll(id=VIEWS[0]) as self._overview:
                yield self._facts
            yield from self._tables.values()
        yield self._said
        yield Footer()

    def on_mount(self) -> None:
        self._draw()
        self.set_interval(LOOK_SECONDS, self._draw_head)
        threading.Thread(target=self._look_on, name="faultline-top", daemon=True).start()

    def on_unmount(self) -> None:
        self._ended.set()
        self._again.set()

    # ── looking, in a thread of its own ──────────────────────────────────────────────────────────

    def _look_on(self) -> None:
        while not self._ended.is_set():
            if not self._paused:
                self._tell(self._looked())
            self._again.wait(LOOK_SECONDS)
            self._again.clear()

    def _looked(self) -> Message:
        state = self._state
        try:
            frame = self.looks.frame(jobs=VIEWS[self._view] == JOBS.name, state=state)
        except Exception as error:  # whatever it is: the next look may be better
            return Trouble(words_of(error))
        return Seen(frame, state)

    def _tell(self, message: Message) -> None:
        with suppress(RuntimeError):  # the screen is gone
            self.post_message(message)

    def _in_background(self, deed: Callable[[], Said]) -> None:
        def run() -> None:
            try:
                self._tell(deed())
            except Exception as error:  # said, as whatever else became of it
                self._tell(Said(words_of(error)))
            self._again.set()

        threading.Thread(target=run, name="faultline-top-deed", daemon=True).start()

    # ── what came of it ──────────────────────────────────────────────────────────────────────────

    def on_seen(self, seen: Seen) -> None:
        if self._is_blind():
            self._say("the database answers again")
        self._trouble = ""
        self._seen_at = time.monotonic()
        if seen.jobs_of == self._state:  # else the state was changed meanwhile
            self._frame = seen.frame
            self._draw()

    def on_trouble(self, trouble: Trouble) -> None:
        self._trouble = trouble.words
        self._say(trouble.words)
        self._draw_head()

    def on_said(self, said: Said) -> None:
        self._say(said.words)
        if said.evidence is not None:
            self.push_screen(Page(said.evidence))

    def _say(self, words: str) -> None:
        self._said.update(Text(words))

    def on_resize(self) -> None:
        self._draw()

    def on_data_table_row_selected(self, selected: DataTable.RowSelected) -> None:
        table = selected.data_table
        if isinstance(table, Rows) and (job := table.chosen) is not None:
            self._in_background(lambda: self._told_of(UUID(job)))

    def _told_of(self, job_id: UUID) -> Said:
        found = self.looks.evidence(job_id)
        return Said("" if found else f"there is no job {job_id} any more", found)

    # ── keys ─────────────────────────────────────────────────────────────────────────────────────

    def action_next(self) -> None:
        self.action_view((self._view + 1) % len(VIEWS))

    def action_view(self, number: int) -> None:
        self._view = number
        self._switcher.current = VIEWS[number]
        table = self._shown()
        (self._overview if table is None else table).focus()
        self._again.set()
        self._draw()

    def action_pause(self) -> None:
        self._paused = not self._paused
        self._seen_at = time.monotonic()  # nobody has asked meanwhile
        self._again.set()
        self._draw_head()

    def action_state(self) -> None:
        self._state = STATES[(STATES.index(self._state) + 1) % len(STATES)]
        self._again.set()
        self._draw_head()

    def action_ask(self, verb: str) -> None:
        job = self._chosen()
        if job is None:
            self._say("choose a job first: in leases (2), refusals (4) or jobs (5)")
            return
        deeds: dict[str, Callable[[Access, UUID], str]]
        deeds = {"retry": acting.retry, "cancel": acting.cancel}

        def answered(yes: bool | None) -> None:
            if yes:
                deed = deeds[verb]
                self._in_background(lambda: Said(deed(self.looks.access, UUID(job))))

        self.push_screen(Question(f"{verb} job {job}?"), answered)

    def check_action(
        self,
        action: str,
        parameters: tuple[object, ...],  # noqa: ARG002 - Textual's signature
    ) -> bool | None:
        """While something is asked or shown, only its own keys count."""
        own = {"next", "view", "pause", "state", "ask", "quit"}
        return not (action in own and isinstance(self.screen, ModalScreen))

    def _chosen(self) -> str | None:
        table = self._shown()
        return None if table is None else table.chosen

    def _shown(self) -> Rows | None:
        """The table of this view; None for the overview."""
        return self._tables.get(VIEWS[self._view])

    # ── drawing ──────────────────────────────────────────────────────────────────────────────────

    def _draw(self) -> None:
        self._draw_head()
        if (table := self._shown()) is None:
            self._facts.update(rendered(overview(self._frame, self.size.width - 2)))
        else:
            table.show(self._frame, self.size.width - 2)

    def _draw_head(self) -> None:
        self._heading.update(rendered([list(self._head())]))
        self._tabs.update(rendered([list(self._tab_line())]))

    def _head(self) -> Iterator[Piece]:
        yield "faultline ", "bold"
        yield f"{self.looks.where}  ", ""
        if self._paused:
            yield "PAUSED, p goes on  ", "yellow"
        elif self._is_blind():
            yield f"NO ANSWER for {duration(time.monotonic() - self._seen_at)}", "bold red"
            return
        risk = self._frame.risk.stale_risk
        yield f"{moment(self._frame.now)}  risk ", ""
        yield risk.upper(), RISK_STYLES[risk]

    def _is_blind(self) -> bool:
        """Whether what is shown is not what is the case."""
        silent = time.monotonic() - self._seen_at > _OVERDUE_SECONDS
        return bool(self._trouble) or (silent and not self._paused)

    def _tab_line(self) -> Iterator[Piece]:
        for number, name in enumerate(VIEWS):
            of = f" {self._state}" if name == JOBS.name and self._state else ""
            yield f" {number + 1} {name}{of} ", "reverse" if number == self._view else "dim"
        table = self._shown()
        if table is None or (table.view is JOBS and self._frame.jobs is None):
            return
        if not table.row_count:
            yield f"  {table.view.empty}", ""
        elif table.view is LEASES and self._frame.more_leases:
            yield f"  the next {table.row_count} to expire", ""


def rendered(lines: Iterable[Line]) -> Text:
    """The lines as one text; what comes from the database is never mark-up."""
    found = Text()
    for line in lines:
        for piece, style in line:
            found.append(piece, style)
        found.append("\n")
    found.rstrip()
    return found


def words_of(error: Exception) -> str:
    """One line."""
    if isinstance(error, FaultlineError):
        return " ".join(str(error).split())
    if isinstance(error, DriverError):
        said = str(error).strip().partition("\n")[0] or type(error).__name__
        return f"the database says: {said}"
    return f"unexpected {type(error).__name__}"
