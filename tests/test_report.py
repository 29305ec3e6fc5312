"""The report from made-up files: what it shows is what they say, and what is missing it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from proofs.report.digest import digest, spread
from proofs.report.page import duplicates, made_by, page
from proofs.report.sources import read

ROOT = Path(__file__).parent.parent
HEAD = "abc1234"
MADE = {"seed": 41, "commit": HEAD, "version": "9.8.7", "postgresql": "18.5"}


def scenario(kind: str, number: int, **facts: object) -> dict[str, object]:
    usual = {
        "id": f"{kind}-{number}",
        "kind": kind,
        "seed": number,
        "faults": [{"what": "SIGSTOP", "pid": 1, "at": "then", "worker": "a"}],
        "jobs": 3,
        "committed": 3,
        "tokens": {},
        "stale_refused": 0,
        "duplicates": 0,
        "lost": 0,
        "violations": [],
        "vacuous": None,
        "lease_seconds": 1.0,
        "recovery_seconds": [],
        "after_expiry_seconds": [],
        "seconds": 1.5,
        "timeline": [],
    }
    return {**usual, **facts}


TIMELINE = [
    {"at": 0.0, "who": "worker A", "what": "begins (token 1)"},
    {"at": 1.017, "who": "database", "what": "the lease of token 1 runs out"},
    {"at": 1.251, "who": "worker B", "what": "has committed row 5 (token 2)"},
    {"at": 2.613, "who": "worker A", "what": "is refused: token_mismatch (token 1)"},
]
SCENARIOS = [
    scenario("crash", 1, recovery_seconds=[1.125, 1.375], jobs=1234),
    scenario("crash", 2, recovery_seconds=[1.75], lost=5, violations=["one", "two"]),
    scenario("takeover", 3, timeline=TIMELINE[:1]),
    scenario("takeover", 4, timeline=TIMELINE, stale_refused=6, after_expiry_seconds=[0.234]),
    scenario("poison", 5, vacuous="its fault did not happen", void="the standby does not lag"),
]


def side(**facts: int | None) -> dict[str, int | None]:
    usual: dict[str, int | None] = {"jobs": 300, "faults": 31, "effects": 300, "duplicates": 0}
    return {**usual, "lost": 0, "stale_refused": 0, "violations": 0, **facts}


COMPARISON = {
    "command": "make comparison",
    **MADE,
    "rates": [
        {
            "fault_rate": 0.1,
            "jobs": 300,
            "invalid": [],
            "faultline": side(stale_refused=17),
            "naive": side(effects=313, duplicates=13, stale_refused=None),
        }
    ],
}
DUEL = {
    "command": "make duel RUNS=9",
    **MADE,
    "rows": [
        {
            "peer": "Peerless",
            "version": "3.2.1",
            "settings": "lease 1 s",
            "recovery": "by itself",
            "skipped": None,
            "duels": 9,
            "void": [],
            "late_effects": {
                "early": {"landed": 3, "duels": 4},
                "write": {"landed": 5, "duels": 5},
            },
            "ran_again": 7,
            "told": 2,
            "told_how": ["never"],
            "takeover_seconds": {"min": 0.9, "median": 1.93, "max": 2.0},
        },
        {"peer": "Absent", "version": None, "skipped": "no Node here", "duels": 0, "void": []},
    ],
}


DEMO = {"fault_rate": 0.2, "naive_duplicates": 77, "command": "make demo", **MADE}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of proofs that have all been run."""
    not_played = {"failover": "no standby here"}
    drills = {"command": "make drills", "not_played": not_played, **MADE}
    write(tmp_path, "drills.json", drills)
    lines = "\n".join(json.dumps(one) for one in SCENARIOS)
    (tmp_path / "drills.jsonl").write_text(f"{lines}\n")
    write(tmp_path, "comparison.json", COMPARISON)
    write(tmp_path, "duel.json", DUEL)
    write(tmp_path, "benchmark_summary.json", DEMO)
    return tmp_path


def write(folder: Path, name: str, content: object) -> None:
    (folder / name).write_text(json.dumps(content))


def shown(folder: Path, head: str = HEAD) -> str:
    report = {"command": "make report", "version": "9.8.7", "commit": head}
    return page({**report, **digest(read(folder, head))})


class Reader(HTMLParser):
    """The page as a reader sees it: its words, and the rows of its tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag, *_) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        self._in_cell = tag in ("td", "th") or (self._in_cell and tag == "small")
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data) -> None:
        self.words.append(data)
        if self._in_cell:
            self.rows[-1][-1] += data

    def handle_endtag(self, tag) -> None:
        if tag in ("td", "th"):
            self._in_cell = False

    def row(self, *start: str) -> list[str]:
        (found,) = [row for row in self.rows if tuple(row[: len(start)]) == start]
        return found[len(start) :]


def test_the_tables_say_what_the_files_say(folder: Path) -> None:
    reader = Reader(shown(folder))
    assert reader.row("crash", "2") == ["2", "1,237", "2", "0", "5", "0", "0", "0"]
    assert reader.row("poison", "1") == ["1", "3", "0", "0", "0", "1", "1", "0"]
    assert reader.row("together") == ["5", "5", "1,246", "2", "0", "5", "1", "1", "6"]
    assert reader.row("10%", "Faultline") == ["300", "31", "300", "0", "0", "17"]
    assert reader.row("10%", "naive queue") == ["300", "31", "313", "13", "0", ""]
    assert reader.row("crash", "1 s", "the fault") == ["3", "1.375", "1.750", "1.750"]
    assert reader.row("takeover", "1 s", "the lease's expiry") == ["1", *["0.234"] * 3]
    assert reader.row("Peerless 3.2.1lease 1 s. Recovery: by itself") == [
        "3 of 4",
        "5 of 5",
        "7 of 9",
        "2 of 9",
        "1.93",
    ]
    assert reader.row("naive_duplicates") == ["77"]
    assert "not played here, failover: no standby here" in reader.words
    assert reader.row("Absentnot run: no Node here") == [""] * 5


def test_the_plots_say_what_the_files_say(folder: Path) -> None:
    text = shown(folder)
    assert text.count("13 (4.3 %)") == 2, "for a wide and for a narrow screen"
    assert "worker B" in text
    assert "2.613 s" in text
    assert "is refused: token_mismatch (token 1)" in text
    assert "drill replay takeover-4" in text, "the first in which a stale write was refused"


def test_another_figure_in_a_file_is_another_figure_on_the_page(folder: Path) -> None:
    (rate,) = COMPARISON["rates"]
    changed = {**rate, "naive": side(effects=308, duplicates=8, stale_refused=None)}
    write(folder, "comparison.json", {**COMPARISON, "rates": [changed]})
    text = page_of_duplicates(folder)
    assert Reader(text).row("10%", "naive queue") == ["300", "31", "308", "8", "0", ""]
    assert "8 (2.7 %)" in text
    assert "13" not in Reader(text).words


def page_of_duplicates(folder: Path) -> str:
    return duplicates(digest(read(folder, HEAD))["duplicates"])


def test_every_section_names_the_command_seed_and_commit_that_made_it(folder: Path) -> None:
    text = shown(folder)
    made = re.findall(r'<p class="made">(.*?)</p>', text)
    drills = "make drills"
    commands = [drills, "make comparison", drills, drills, "make duel RUNS=9", "make demo"]
    seeds = [4, 41, 41, 41, 41, 41]  # of the takeover: the scenario's own
    assert made == [
        f"made by <code>{command}</code> · seed {seed} · commit {HEAD} · version 9.8.7 · "
        "PostgreSQL 18.5"
        for command, seed in zip(commands, seeds, strict=True)
    ]
    assert "Beware" not in text


@pytest.mark.parametrize(
    ("commit", "caution"),
    [
        (None, "it is not recorded which commit made this"),
        ("fed9876", f"made by another commit than this checkout's, which is {HEAD}"),
        (f"{HEAD}-dirty", "made with changes that were not committed"),
        (f"{HEAD}56789", None),
    ],
)
def test_figures_of_another_commit_are_not_passed_off_as_this_ones(
    folder: Path, commit: str | None, caution: str | None
) -> None:
    write(folder, "comparison.json", {**COMPARISON, "commit": commit})
    section = digest(read(folder, HEAD))["duplicates"]
    words = " ".join(Reader(made_by(section["made_by"])).words)
    assert ("Beware" in words) == (caution is not None)
    assert caution is None or caution in words


def test_what_was_not_run_names_its_command_instead_of_an_empty_plot(tmp_path: Path) -> None:
    text = shown(tmp_path)
    assert "<svg" not in text
    assert "<table" not in text
    commands = re.findall(r'class="missing">Not run here yet: <code>(.*?)</code>', text)
    assert commands == [
        "make drills",
        "make comparison",
        "make drills",
        "make drills",
        "make duel",
        "make demo",
    ]


def test_drills_without_a_takeover_or_a_recovery_do_not_break_the_report(folder: Path) -> None:
    (folder / "drills.jsonl").write_text(json.dumps(SCENARIOS[4]))
    text = shown(folder)
    assert text.count("make drills</code> makes these figures") == 2
    assert Reader(text).row("together") == ["1", "1", "3", "0", "0", "0", "1", "1", "0"]


def test_an_invalid_comparison_is_called_so(folder: Path) -> None:
    (rate,) = COMPARISON["rates"]
    invalid = {**rate, "invalid": ["naive: SIGKILL of job 3 did not happen"]}
    write(folder, "comparison.json", {**COMPARISON, "rates": [invalid]})
    assert "invalid: naive: SIGKILL of job 3 did not happen" in page_of_duplicates(folder)


def test_markup_in_a_name_is_only_text_on_the_page(folder: Path) -> None:
    nasty = '<script>alert("$x$ & y")</script>'
    told = [{"at": 0.0, "who": nasty, "what": nasty}]
    lines = [
        scenario(f"takeover {nasty}", 1, timeline=told, recovery_seconds=[1.0]),
        *SCENARIOS,
    ]
    (folder / "drills.jsonl").write_text("\n".join(json.dumps(one) for one in lines))
    write(folder, "drills.json", {"command": nasty, **MADE, "seed": nasty})
    write(folder, "comparison.json", {**COMPARISON, "command": nasty})
    first = {**DUEL["rows"][0], "peer": nasty, "settings": nasty, "version": nasty}
    write(folder, "duel.json", {**DUEL, "rows": [first], "command": nasty})
    reader = Reader(shown(folder))
    assert "script" not in reader.tags
    assert any(nasty in word for word in reader.words)


def test_the_page_asks_nobody_for_anything(folder: Path) -> None:
    text = shown(folder)
    asked = re.findall(r'(?:src|href)="(?!#)([^"]*)|url\((?!#)([^)]*)|@import', text)
    assert asked == []
    assert {"script", "link", "img", "iframe"}.isdisjoint(Reader(text).tags)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids)), "two plots share an id"


def test_the_spread_is_by_nearest_rank() -> None:
    assert spread([]) is None
    found = spread(float(n) for n in range(100, 0, -1))
    assert (found["count"], found["p50"], found["p95"], found["max"]) == (100, 50, 95, 100)


def test_the_command_writes_both_files_and_says_what_is_missing(tmp_path: Path) -> None:
    latest = tmp_path / "reports" / "latest"
    latest.mkdir(parents=True)
    write(latest, "comparison.json", COMPARISON)
    done = subprocess.run(
        [sys.executable, "-m", "proofs.report"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    line = json.loads(done.stdout)
    assert line["report"] == "reports/latest/report.html"
    assert line["missing"] == ["make demo", "make drills", "make duel"]
    assert "run `make drills` first" in done.stderr
    report = json.loads((latest / "report.json").read_text())
    assert report["duplicates"]["rates"][0]["naive"]["duplicates"] == 13
    assert "13 (4.3 %)" in (latest / "report.html").read_text()
