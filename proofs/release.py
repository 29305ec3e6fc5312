"""`make release-check`: whether this checkout is a release, before its tag is made.

    python -m proofs.release check [--tag v1.2.3]     every reason why not; none: exit status 0
    python -m proofs.release notes                    what is new, for the release's page
    python -m proofs.release schema                   write sql/released.txt anew

What takes longer (the package, the bill of materials, an upgrade) has targets of its own, which
`make release-check` runs afterwards. docs/releasing.md is the whole way.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from faultline import __version__
from faultline.config import Settings
from faultline.connect import connect
from faultline.demo.ground import database
from faultline.migrate import migrate
from proofs import changelog
from proofs.race import ended_cleanly
from proofs.stopwatch import finish

ROOT = Path(__file__).parent.parent
RELEASED = ROOT / "src" / "faultline" / "sql" / "released.txt"
# Within a sentence: "is not on PyPI yet", "on PyPI from the first release on".
NOT_ON_PYPI = re.compile(r"\bnot( yet)? on PyPI\b|\bon PyPI\b[^.]*\b(yet|first release)\b")
# What a client can call: the functions granted to a role, as they are declared.
CALLABLE_BY_CLIENTS = """
select p.proname || '(' || pg_get_function_arguments(p.oid) || ') -> '
       || pg_get_function_result(p.oid)
  from pg_proc p
 where p.pronamespace = 'faultline'::regnamespace
   and exists (select from aclexplode(p.proacl) a where a.grantee <> p.proowner)
 order by 1"""


def of_version(version: str, tag: str | None) -> list[str]:
    """The number, and the tag that is to bear it."""
    found = []
    number = re.match(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}(?!\d)", version)
    if number is None:
        found.append(f"{version} is no version of a release: src/faultline/__init__.py")
    elif number[0] != version:
        found.append(
            f"{version} is a pre-release, which Helm refuses as the version of a chart: make it "
            f"{number[0]} in src/faultline/__init__.py, Chart.yaml and CHANGELOG.md, or do not tag "
            "it (make dist gives a wheel to try out)"
        )
    if tag is not None and tag != f"v{version}":
        found.append(f"the tag is {tag}, the version {version}")
    return found


def of_changelog(version: str, page: str) -> list[str]:
    """A dated section of this version, and nothing left over for the next one."""
    found = changelog.complaints(page)
    listed = {section.version: section for section in changelog.sections(page)}
    if version not in listed:
        return [*found, f"CHANGELOG.md has no section [{version}]"]
    if listed[version].when in (None, changelog.NOT_YET):
        found.append(f"CHANGELOG.md: [{version}] has no date yet")
    if changelog.UNRELEASED in listed and listed[changelog.UNRELEASED].text:
        found.append(f"CHANGELOG.md: what is under [Unreleased] belongs to [{version}]")
    return found


def of_charts(version: str, root: Path) -> list[str]:
    """Every Helm chart says this version, of itself and of the image."""
    found = []
    for path in sorted(root.glob("deploy/**/Chart.yaml")):
        for name in ("version", "appVersion"):
            said = re.search(rf'^{name}: "?([^"\s]+)"?', path.read_text(), re.MULTILINE)
            if said is None or said[1] != version:
                found.append(
                    f"{path.relative_to(root)}: {name} is {said and said[1]}, not {version}"
                )
    return found


def of_pages(root: Path) -> list[str]:
    """No page says any more that the package cannot be had; the one on releasing may quote it."""
    pages = [root / "README.md", *sorted(root.glob("docs/**/*.md"))]
    return [
        f"{path.relative_to(root)}:{line} says that the package is not on PyPI yet: take it out"
        for path in pages
        if path != root / "docs" / "releasing.md"
        for line, words in enumerate(path.read_text().splitlines(), 1)
        if NOT_ON_PYPI.search(words)
    ]


def of_schema(there: list[str], released: list[str]) -> list[str]:
    """sql/released.txt is what the clients of this release call."""
    return [
        *(f"sql/released.txt lacks {line}" for line in there if line not in released),
        *(f"sql/released.txt has {line}" for line in released if line not in there),
    ]


def of_tree(status: str) -> list[str]:
    """What is tagged is what is here."""
    return [f"not committed: {line[3:]}" for line in status.splitlines()]


def callable_by_clients(settings: Settings) -> list[str]:
    """Of the installation that this checkout makes."""
    fresh = Settings(None, "faultline", settings.home, settings.binaries)
    with database(fresh) as url, connect(url, schema=None) as conn:
        migrate(conn, "faultline")
        return [row[0] for row in conn.execute(CALLABLE_BY_CLIENTS).fetchall()]


def check(settings: Settings, tag: str | None) -> int:
    """All of it."""
    asked = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    complaints = [
        *of_version(__version__, tag),
        *of_changelog(__version__, changelog.PAGE.read_text()),
        *of_charts(__version__, ROOT),
        *of_pages(ROOT),
        *of_schema(callable_by_clients(settings), RELEASED.read_text().splitlines()),
        *of_tree(asked.stdout),
    ]
    for complaint in complaints:
        print(f"not yet: {complaint}", file=sys.stderr)
    if not complaints:
        print(f"{__version__} can be tagged v{__version__}, if what follows is in order")
    finish("release-check", {"version": __version__, "complaints": len(complaints)})
    return 1 if complaints else 0


def write_schema(settings: Settings) -> int:
    """What the clients of this release call, for the next one to keep."""
    RELEASED.write_text("\n".join(callable_by_clients(settings)) + "\n", "utf-8")
    return 0


def notes() -> int:
    """The section of this version."""
    page = changelog.PAGE.read_text()
    (section,) = (s for s in changelog.sections(page) if s.version == __version__)
    print(leading_to_the_tag(section.text, __version__))
    return 0


def leading_to_the_tag(text: str, version: str) -> str:
    """Its relative links made absolute, by the rules that pyproject.toml has for the README."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    rules = project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]
    for rule in rules:
        to = rule["replacement"].replace("$HFPR_VERSION", version)
        text = re.sub(rule["pattern"], to, text)
    return text


def main() -> int:
    """One of the three."""
    parser = argparse.ArgumentParser(prog="proofs.release", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["check", "notes", "schema"])
    parser.add_argument("--tag", help="the tag that is being released")
    arguments = parser.parse_args()
    if arguments.what == "notes":
        return notes()
    if arguments.what == "schema":
        return ended_cleanly(write_schema)
    return ended_cleanly(lambda settings: check(settings, arguments.tag or None))


if __name__ == "__main__":
    sys.exit(main())
