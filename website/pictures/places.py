"""Drawings of what is where: inside one commit, inside the fence, in which state."""

from __future__ import annotations

from faultline.states import FINAL, MOVES, State
from website.pictures.drawing import Drawing

PLACES = {  # where each state stands: its middle
    State.SCHEDULED: (420, 90),
    State.QUEUED: (250, 240),
    State.RUNNING: (590, 240),
    State.SUCCEEDED: (890, 240),
    State.CANCELLED: (890, 90),
    State.QUARANTINED: (420, 390),
    State.FAILED: (890, 390),
}
START = (70, 240)  # a job that does not exist yet
# The arrows, as drawn, and where their verbs stand. A test holds them to the moves.
ARROWS: dict[tuple[State | None, State], tuple[str, int, int]] = {
    (None, State.QUEUED): ("M82 240L190 240", 135, 232),
    (None, State.SCHEDULED): ("M76 230C120 120 240 90 360 90", 160, 110),
    (State.SCHEDULED, State.QUEUED): ("M390 108C350 150 310 190 280 222", 228, 160),
    (State.QUEUED, State.RUNNING): ("M310 232L530 232", 420, 224),
    (State.RUNNING, State.QUEUED): ("M530 250L310 250", 420, 268),
    (State.RUNNING, State.SCHEDULED): ("M560 222C530 180 490 140 455 108", 612, 140),
    (State.RUNNING, State.SUCCEEDED): ("M650 240L830 240", 700, 232),
    (State.RUNNING, State.FAILED): ("M640 258C690 320 760 370 830 388", 715, 345),
    (State.RUNNING, State.QUARANTINED): ("M570 258C540 300 500 340 455 372", 548, 325),
    (State.RUNNING, State.CANCELLED): ("M645 222C700 170 770 130 830 108", 736, 174),
    (State.SCHEDULED, State.CANCELLED): ("M480 90L830 90", 640, 82),
    (State.QUEUED, State.CANCELLED): ("M232 222C220 20 560 20 840 72", 400, 40),
    (State.QUARANTINED, State.CANCELLED): ("M480 386C720 380 800 240 870 108", 660, 400),
    (State.QUEUED, State.QUARANTINED): ("M285 258C310 300 345 340 385 372", 386, 322),
    (State.QUARANTINED, State.QUEUED): ("M362 380C310 360 270 310 255 258", 262, 340),
    (State.FAILED, State.QUEUED): ("M850 408C650 470 240 470 238 258", 560, 462),
}


def states() -> Drawing:
    """From `faultline.states.MOVES`."""
    verbs: dict[tuple[State | None, State], list[str]] = {}
    for start, end, verb in sorted(MOVES, key=lambda move: (move[0] or "", move[1], move[2])):
        verbs.setdefault((start, end), []).append(verb)
    told = "; ".join(
        f"from {start or 'nothing'} to {end} by {' or '.join(names)}"
        for (start, end), names in verbs.items()
    )
    d = Drawing(1000, 480, "The states of a job", f"The moves: {told}.")
    for move, names in verbs.items():
        way, x, y = ARROWS[move]
        d.path(way, "quiet" if move[1] is State.CANCELLED else "arrow")
        d.text(x, y, ", ".join(names), "small", "middle")
    d.dot(*START)
    for state, (x, y) in PLACES.items():
        kind = "b" if state is State.SUCCEEDED else "a" if state is State.RUNNING else "plain"
        d.box(kind, x - 60, x + 60, y, state, 36)
        if state in FINAL:
            d.text(x, y + 34, "final", "small", "middle")
    return d


def one_commit() -> Drawing:
    """Two systems and a crash in between, beside one commit."""
    d = Drawing(
        *(1000, 330, "Two systems, and one commit"),
        "On the left an application writes its row to a database and a message to a broker; if it "
        "dies between the two, one exists without the other. On the right the row and the job are "
        "in one transaction of one database: both are there, or neither.",
    )
    d.text(30, 32, "a database and a broker", "title")
    d.box("a", 60, 190, 165, "your program")
    d.box("plain", 320, 450, 85, "database")
    d.box("plain", 320, 450, 245, "broker")
    d.arrow(190, 155, 318, 92)
    d.text(232, 106, "1  the order", "small", "middle")
    d.arrow(190, 175, 318, 238)
    d.text(232, 232, "2  the message", "small", "middle")
    d.cross(254, 165, 9)
    d.text(272, 162, "dies here:", "bad")
    d.text(272, 179, "an order that nobody ships", "bad")
    d.text(60, 290, "The other way round: a message about an order", "small")
    d.text(60, 307, "that was rolled back.", "small")
    d.tick(500, 30, 310)
    d.text(530, 32, "one database", "title")
    d.box("a", 560, 690, 165, "your program")
    d.box("plain", 790, 960, 165, "", 150)
    d.text(875, 112, "database", "name", "middle")
    d.box("b", 805, 945, 150, "the order")
    d.box("b", 805, 945, 195, "the job")
    d.arrow(690, 165, 788, 165)
    d.text(738, 157, "COMMIT", "mono", "middle")
    d.text(560, 275, "Both, or neither.", "good")
    d.text(560, 295, "And at the end of the job again: its success and its rows.", "small")
    return d


def boundary() -> Drawing:
    """What the fence reaches."""
    d = Drawing(
        *(1000, 330, "What the fence reaches, and what it does not"),
        "Three areas. First, transactions in the database of the jobs that are fenced, by a fenced "
        "transaction, the gate or a guarded table: the database refuses what is late. Second, "
        "other systems that can compare a token or recognise a key: they refuse what is late. "
        "Third, everything else: an unfenced connection, a mail, a superuser: nothing refuses it.",
    )
    areas = (
        (
            *("b", 20, "the database refuses it", "good"),
            "in the database of the jobs",
            *("every verb of the queue", "ctx.transaction()", "assert_fence(job, token)"),
            *("a guarded table", "exact: late means rolled back"),
        ),
        (
            *("a", 345, "the other side refuses it", "name"),
            "systems that can compare",
            *("another PostgreSQL: fence()", "Redis, S3: a token", "HTTP: a key or a token"),
            *("the outbox: a stable key", "as good as the other side"),
        ),
        (
            *("open", 670, "nothing refuses it", "bad"),
            "everything else",
            *("a mail, a phone call", "a connection without a fence", "a superuser, the owner"),
            *("a worker's login in wrong hands", "at least once"),
        ),
    )
    for kind, x, title, title_kind, where, *lines, last in areas:
        d.box(str(kind), float(x), float(x) + 310, 165, "", 290)
        d.text(float(x) + 20, 55, str(title), f"title {title_kind}")
        d.text(float(x) + 20, 80, str(where), "small")
        for n, line in enumerate(lines):
            d.text(float(x) + 20, 125 + 30 * n, str(line))
        d.text(float(x) + 20, 285, str(last), "name")
    return d
