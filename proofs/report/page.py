"""The page: plain text templates over the digest; everything from a file is escaped.

One file without any request to anywhere: styles and pictures are in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from proofs.report import plots
from proofs.report.sources import Json

STYLE = Path(__file__).with_name("page.css")
SINCE = {"after_fault": "the fault", "after_expiry": "the lease's expiry"}
_KEY = (
    '<p class="key"><b style="background: var(--ink)"></b>half of the recoveries took no longer'
    '<b style="background: var(--hit)"></b>95 % took no longer</p>'
)


def page(report: Json) -> str:
    """The whole document."""
    sections = "\n".join(
        [
            tiles(report),
            takeover(report["takeover"]),
            duplicates(report["duplicates"]),
            recovery(report["recovery"]),
            scenarios(report["scenarios"]),
            duel(report["duel"]),
            demo(report["demo"]),
        ]
    )
    made = f"Faultline {_text(report['version'])}, commit {_text(report['commit'])}"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Faultline: the proofs</title>
<style>
{STYLE.read_text("utf-8")}</style>
</head>
<body>
<h1>A worker stalls, another takes over, the first one wakes up and writes.</h1>
<p class="lead">What happened, each time it was tried: with real processes, real signals and a real
PostgreSQL. {made}; written by <code>{_text(report["command"])}</code>. Every figure is read from a
file that its own command has left in reports/latest.</p>
{sections}
</body>
</html>
"""


# ── sections ─────────────────────────────────────────────────────────────────────────────────────


def tiles(report: Json) -> str:
    """The sums, for who reads no further."""
    drawn = []
    drills = report["scenarios"]
    if "run" not in drills:
        total = drills["total"]
        words = {
            "scenarios": "scenarios",
            "faults": "faults injected",
            "jobs": "jobs",
            "stale_refused": "stale writes refused",
        }
        drawn += [_tile(f"{total[key]:,}", label) for key, label in words.items()]
        for key in ("violations", "duplicates", "lost"):
            drawn.append(_tile(f"{total[key]:,}", _words(key), is_bad=total[key] > 0))
    compared = report["duplicates"]
    if "run" not in compared:
        times = {
            side: sum(rate[side]["duplicates"] for rate in compared["rates"])
            for side in ("faultline", "naive")
        }
        label = "duplicates, Faultline : a naive queue, compared"
        value = f"{times['faultline']:,} : {times['naive']:,}"
        drawn.append(_tile(value, label, is_bad=times["faultline"] > 0))
    return f'<div class="tiles">{"".join(drawn)}</div>' if drawn else ""


def takeover(section: Json) -> str:
    """One story, as it went."""
    title = "A takeover, as it went"
    if "run" in section:
        return _missing(title, section)
    events = []
    for number, line in enumerate(section["timeline"], 1):
        colour = plots.VARIABLES[plots.tone(line["what"])]
        events.append(
            f'<li><i style="background: var(--{colour})">{number}</i>'
            f"<time>{line['at']:.3f} s</time><span>{_text(line['who'])}</span>"
            f"<span>{_text(line['what'])}</span></li>"
        )
    lead = (
        f"Scenario <code>{_text(section['scenario'])}</code>, with a lease of "
        f"{section['lease_seconds']:g} s. To see it again: "
        f"<code>faultline drill replay {_text(section['scenario'])}</code>."
    )
    body = f'{plots.takeover(section)}<ol class="events">{"".join(events)}</ol>'
    return _section(title, lead, body, section)


def duplicates(section: Json) -> str:
    """Both queues under the same faults."""
    title = "The same faults for Faultline and for a naive queue"
    if "run" in section:
        return _missing(title, section)
    rows = []
    for rate in section["rates"]:
        for side, name in (("faultline", "Faultline"), ("naive", "naive queue")):
            found = rate[side]
            keys = ("jobs", "faults", "effects", "duplicates", "lost", "stale_refused")
            rows.append([f"{rate['fault_rate']:.0%}", name, *(found[key] for key in keys)])
    heads = ["hit", "queue", "jobs", "faults", "effects", "duplicates", "lost", "stale refused"]
    lead = (
        "The same jobs, seeds and fault schedule; effects are counted in a table that neither "
        "queue owns. The naive queue has leases, heartbeats and reclaims, but no fencing token."
    )
    caution = "".join(_caution(f"invalid: {text}") for text in section["invalid"])
    body = plots.duplicates(section) + _table(heads, rows, texts=2) + caution
    return _section(title, lead, body, section)


def recovery(section: Json) -> str:
    """How long until somebody else has committed."""
    title = "Recovery, by kind of fault"
    if "run" in section or not section["rows"]:
        return _missing(title, {"run": "make drills", **section})
    drawn, rows = [], []
    for lease_seconds in sorted({row["lease_seconds"] for row in section["rows"]}):
        drawn.append(f"<h3>With a lease of {lease_seconds:g} s</h3>")
        for which, since in SINCE.items():
            caption = f"From {since} to the successor's commit"
            if plot := plots.recovery(section, lease_seconds, which, caption):
                drawn.append(f"<figure><figcaption>{caption}</figcaption>{plot}</figure>")
    for row in section["rows"]:
        for which, since in SINCE.items():
            if (found := row[which]) is not None:
                times = [f"{found[part]:.3f}" for part in ("p50", "p95", "max")]
                lease = f"{row['lease_seconds']:g} s"
                rows.append([row["kind"], lease, since, found["count"], *times])
    heads = ["kind", "lease", "since", "count", "p50, s", "p95, s", "max, s"]
    table = f"<details><summary>in figures</summary>{_table(heads, rows, texts=3)}</details>"
    lead = "Until a successor has committed. Each dot is one recovery, by the database's clock."
    body = _KEY + "".join(drawn) + table
    return _section(title, lead, body, section)


def scenarios(section: Json) -> str:
    """What was run, and what came out."""
    title = "All scenarios"
    if "run" in section:
        return _missing(title, section)
    keys = ["scenarios", "faults", "jobs", "violations", "duplicates", "lost", "vacuous"]
    keys += ["void", "stale_refused"]
    rows = [[row["kind"], *(row[key] for key in keys)] for row in section["rows"]]
    rows.append(["together", *(section["total"][key] for key in keys)])
    lead = (
        "A scenario that is vacuous (its fault did not happen, nothing committed) is a failed one. "
        "A void one could not be staged in three tries, and shows nothing."
    )
    heads = ["kind", *(_words(key) for key in keys)]
    left_out = [f"{kind}: {reason}" for kind, reason in section["not_played"].items()]
    cautions = "".join(_caution(f"not played here, {text}") for text in left_out)
    body = _table(heads, rows, texts=1, has_total=True) + cautions
    return _section(title, lead, body, section)


def duel(section: Json) -> str:
    """The same duel with other queues."""
    title = "The duel, with other queues"
    if "run" in section:
        return _missing(title, section)
    points = list(dict.fromkeys(p for row in section["rows"] for p in row["late_effects"] or ()))
    rows = []
    for row in section["rows"]:
        name = f"{row['peer']} {row['version'] or ''}".strip()
        void = "; ".join(row["void"] or [])
        if not row["duels"]:
            blank = [""] * (len(points) + 3)
            rows.append([(name, f"not run: {row['skipped'] or void}"), *blank])
            continue
        late = [row["late_effects"][point] for point in points]
        rows.append(
            [
                (
                    name,
                    f"{row['settings']}. Recovery: {row['recovery']}{void and '. Void: '}{void}",
                ),
                *(f"{found['landed']} of {found['duels']}" for found in late),
                *(f"{row[key]} of {row['duels']}" for key in ("ran_again", "told")),
                f"{row['takeover_seconds']['median']:g}",
            ]
        )
    heads = ["queue", *(f"late effect landed ({point})" for point in points)]
    heads += ["finished job ran again", "worker told", "takeover, s (median)"]
    lead = (
        "A worker is stopped inside its handler (early, or at its write) until another has "
        "finished the job, then continued. Each queue with its own documented settings."
    )
    return _section(title, lead, _table(heads, rows, texts=1), section)


def demo(section: Json) -> str:
    """Its summary, as it printed it."""
    title = "The last demo"
    if "run" in section:
        return _missing(title, section)
    left_out = ("made_by", *section["made_by"])
    rows = [[key, json.dumps(value)] for key, value in section.items() if key not in left_out]
    lead = "What <code>make demo</code> left in benchmark_summary.json."
    return _section(title, lead, _table(["figure", "value"], rows, texts=1), section)


# ── pieces ───────────────────────────────────────────────────────────────────────────────────────


def _section(title: str, lead: str, body: str, section: Json) -> str:
    return (
        f'<section><h2>{title}</h2><p class="lead">{lead}</p><figure>{body}</figure>'
        f"{made_by(section['made_by'])}</section>"
    )


def _missing(title: str, section: Json) -> str:
    return (
        f'<section><h2>{title}</h2><p class="missing">Not run here yet: '
        f"<code>{_text(section['run'])}</code> makes these figures.</p></section>"
    )


def made_by(made: Json) -> str:
    """The command, seed and commit under a figure, and what the reader should beware of."""
    facts = [f"made by <code>{_text(made['command'])}</code>"] if "command" in made else []
    for key, label in (("seed", "seed"), ("commit", "commit"), ("version", "version")):
        if key in made:
            facts.append(f"{label} {_text(made[key])}")
    if "postgresql" in made:
        facts.append(f"PostgreSQL {_text(made['postgresql'])}")
    caution = _caution(f"Beware: {made['caution']}.") if made["caution"] else ""
    return f'<p class="made">{" · ".join(facts)}</p>{caution}'


def _caution(text: str) -> str:
    return f'<p class="caution">{_text(text)}</p>'


def _tile(value: str, label: str, *, is_bad: bool = False) -> str:
    colour = ' class="bad"' if is_bad else ""
    return f'<div class="tile"><b{colour}>{value}</b><span>{_text(label)}</span></div>'


def _table(
    heads: Sequence[str], rows: Sequence[Sequence[Any]], *, texts: int, has_total: bool = False
) -> str:
    """The first `texts` columns are words, the others figures; a pair has a smaller second line."""

    def cell(place: int, value: Any, tag: str) -> str:
        kind = "" if place < texts else ' class="number"'
        if isinstance(value, tuple):
            return f"<{tag}{kind}>{_text(value[0])}<small>{_text(value[1])}</small></{tag}>"
        shown = f"{value:,}" if isinstance(value, int) else _text(value)
        return f"<{tag}{kind}>{shown}</{tag}>"

    head = "".join(cell(place, value, "th") for place, value in enumerate(heads))
    body = []
    for number, row in enumerate(rows, 1):
        total = ' class="total"' if has_total and number == len(rows) else ""
        cells = "".join(cell(place, value, "td") for place, value in enumerate(row))
        body.append(f"<tr{total}>{cells}</tr>")
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _words(key: str) -> str:
    return key.replace("_", " ")


def _text(value: Any) -> str:
    return "" if value is None else escape(str(value))
