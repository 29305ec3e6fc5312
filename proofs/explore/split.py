"""Split a function between its statements: after each it stops until it is told to go on.

Only in the explorer's own databases, and only the functions that a scenario names. The function
that is installed is read from the server, and put back with a call of explore.stop() after every
statement of its body that another one follows; nothing else is changed, FOUND included.
"""

from __future__ import annotations

import re
from typing import Any

from psycopg import Connection

STOP = "if explore.stop() then end if;"  # PERFORM would set FOUND, which the next may read
_BODY = re.compile(r"(?P<head>.*?\bbegin\n)(?P<body>.*)(?P<tail>\nend\s*\$function\$.*)", re.DOTALL)


def split(conn: Connection[Any], name: str) -> str:
    """The definition of this function with the stops in it."""
    row = conn.execute(
        "select pg_get_functiondef(p.oid) from pg_proc p where p.pronamespace = "
        "'faultline'::regnamespace and p.proname = %s",
        (name,),
    ).fetchone()
    assert row is not None, name
    return with_stops(row[0])


def with_stops(definition: str) -> str:
    """A stop after each statement, but for what only opens, closes or leaves a block."""
    whole = _BODY.fullmatch(definition)
    assert whole is not None, definition
    lines = whole["body"].split("\n")
    out = []
    for n, line in enumerate(lines):
        out.append(line)
        code = line.split("--")[0].rstrip()
        last = not any(rest.strip() for rest in lines[n + 1 :])
        if code.endswith(";") and not last and not re.match(r"\s*return;", code):
            out.append("    " + STOP)
    return whole["head"] + "\n".join(out) + whole["tail"]
