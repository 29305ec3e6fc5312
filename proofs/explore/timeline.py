"""A schedule told as a table: one column a session, one line a turn, time going down."""

from __future__ import annotations

import textwrap

from proofs.explore.play import Played

WIDTH = 34


def timeline(played: Played) -> str:
    """The whole schedule, and what is wrong with it."""
    names = [actor.name for actor in played.scenario.actors]
    lines = [
        f"{played.id}   ({played.scenario.about})",
        "     " + "".join(f"{name:<{WIDTH}}" for name in names).rstrip(),
    ]
    for n, line in enumerate(played.lines, 1):
        text = line.text + (f" → {line.outcome}" if line.outcome else "")
        indent = " " * WIDTH * names.index(line.actor)
        for m, part in enumerate(textwrap.wrap(text, WIDTH - 2, subsequent_indent="    ")):
            lines.append(f"{n if m == 0 else '':>3}  {indent}{part}")
    lines += [f"  BROKEN  {what}" for what in played.broken]
    if played.deadlocks:
        lines.append("  DEADLOCK")
    return "\n".join(lines)
