"""Templates, and how values are shown: everything escaped, times in the viewer's zone."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from faultline import __version__
from faultline.log import duration
from faultline.story import error_line

# Scripts, styles and pictures of this page only; no frame around it, no form to elsewhere.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
NONE = "\u2013"  # for what there is not
STATES = ("running", "queued", "scheduled", "succeeded", "failed", "quarantined", "cancelled")


@cache
def environment() -> Environment:
    """The templates; escaping is not a choice of theirs."""
    env = Environment(
        loader=PackageLoader("faultline.service.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {
        "when": when,
        "lasting": lasting,
        "number": number,
        "pretty": pretty,
        "short": short,
        "error_line": error_line,
        "query": urlencode,
    }
    env.globals |= {"version": __version__, "states": STATES}
    return env


def rendered(template: str, **values: Any) -> str:
    """The page, or the part of one."""
    return environment().get_template(template).render(**values)


@cache
def static_files() -> dict[str, bytes]:
    """The files of the pages' own, by name."""
    folder = resources.files("faultline.service.dashboard").joinpath("static")
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def when(moment: datetime | None) -> Markup:
    """A moment: the page's script writes it in the viewer's zone, with the exact one beside it."""
    if moment is None:
        return Markup('<span class="none">{}</span>').format(NONE)
    exact = moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{0}" title="{0}">{0}</time>').format(exact)


def lasting(seconds: Any) -> str:
    """How long; below a second in milliseconds."""
    if seconds is None:
        return NONE
    value = float(seconds)
    if not 0 < value < 0.9995:
        return duration(value)
    return f"{value * 1000:.0f} ms" if value >= 0.01 else f"{value * 1000:.1f} ms"


def number(value: float | None) -> str:
    """With thousands apart; rates below ten with one decimal."""
    if value is None:
        return NONE
    if isinstance(value, float) and value < 10 and value != int(value):
        return f"{value:.1f}"
    return f"{round(value):,}"


def pretty(value: Any) -> str:
    """JSON to read."""
    try:
        return json.dumps(value, indent=2, ensure_ascii=False, default=str)
    except RecursionError:
        return "(nested too deeply to be shown)"


def short(job_id: Any) -> Markup:
    """An id by its end, which differs; whole when one points at it."""
    text = str(job_id)
    # The end, since ids of one moment begin alike.
    return Markup('<code class="id" title="{}">…{}</code>').format(escape(text), text[-12:])
