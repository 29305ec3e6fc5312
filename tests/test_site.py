"""The documents as a whole: every page is in the navigation, every link leads somewhere, every name
that the failure scenarios point at exists, the pictures are as drawn, and the site builds."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from faultline.drills.kinds import KINDS
from faultline.states import MOVES
from proofs.guards import guards
from tests.browsing import browser, needs_browser
from tests.browsing import page as shown
from website import contents, links
from website.__main__ import build
from website.pictures import PICTURES
from website.pictures.places import ARROWS
from website.staging import DOCS, FROM_OUTSIDE, ROOT, stage

PACKAGE = ROOT / "src" / "faultline"
DOCUMENTS = [*DOCS.rglob("*.md"), *ROOT.glob("*.md")]
ROW = re.compile(r"^\| (?!---|what goes wrong)(.+) \| (.+) \| (.*) \| (.*) \|$", re.MULTILINE)


# ── navigation and links ─────────────────────────────────────────────────────────────────────────


def test_every_page_is_in_the_navigation_and_nothing_else_is() -> None:
    """A new page gets a line in docs/index.md."""
    assert contents.listed(DOCS) == {*DOCS.rglob("*.md"), *FROM_OUTSIDE}
    assert {ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md"} <= set(FROM_OUTSIDE)
    assert all(page.is_file() for page in FROM_OUTSIDE)


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_and_anchor_leads_somewhere(page: Path) -> None:
    assert links.wrong(page) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# What `is` *there*?\n\n```sh\n# not a heading\n```\n")
    page = tmp_path / "page.md"
    page.write_text("[a](other.md#what-is-there) [b](#none) [c](gone.md) `[d](code.md)`\n")
    assert links.wrong(page) == [
        "page.md: no heading of page.md is #none",
        "page.md: there is no gone.md",
    ]
    page.write_text("[a](other.md#not-a-heading)\n")
    assert len(links.wrong(page)) == 1


def test_the_navigation_is_read_from_lists_of_links() -> None:
    text = "# A\n\n- [First](x.md): one.\n\n## More\n\n- [Second](y/z.md)\n- no link\n\n## Empty\n"
    assert contents.parts(text) == [
        contents.Part("", (("First", "x"),)),
        contents.Part("More", (("Second", "y/z"),)),
    ]


# ── failure scenarios ────────────────────────────────────────────────────────────────────────────


def scenarios() -> list[tuple[str, str, str, str]]:
    return ROW.findall((DOCS / "explanation" / "failure-scenarios.md").read_text())


def exists(mechanism: str) -> bool:
    return any((place / mechanism).is_file() for place in (PACKAGE, PACKAGE / "sql"))


def is_proof(kind: str, name: str) -> bool:
    return {
        "drill": name in KINDS,
        "guard": name in {guard.name for guard in guards()},
        "test": (ROOT / "tests" / name).is_file(),
    }[kind]


def test_every_failure_scenario_names_a_mechanism_and_a_proof_that_exist() -> None:
    found = scenarios()
    assert len(found) > 30
    for wrong, happens, mechanisms, proofs in found:
        if "**Not covered**" in happens:
            continue
        names, shown = re.findall(r"`([^`]+)`", mechanisms), re.findall(r"(\w+) `([^`]+)`", proofs)
        assert names, wrong
        assert shown, wrong
        assert len(shown) == proofs.count("`") // 2, wrong
        assert [name for name in names if not exists(name)] == [], wrong
        assert [(kind, name) for kind, name in shown if not is_proof(kind, name)] == [], wrong


def test_every_kind_of_drill_is_a_failure_scenario() -> None:
    shown = {name for *_, proofs in scenarios() for name in re.findall(r"drill `(\w+)`", proofs)}
    assert shown == set(KINDS)


def test_every_file_of_sql_that_an_explanation_names_exists() -> None:
    for page in (DOCS / "explanation").glob("*.md"):
        named = re.findall(r"`((?:functions|migrations|worker)/[\w.]+)`", page.read_text())
        assert [name for name in named if not exists(name)] == [], page.name


# ── pictures ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_as_it_is_drawn(name: str) -> None:
    """`python -m website.pictures` draws them anew."""
    assert (DOCS / "pictures" / name).read_text() == str(PICTURES[name]())


def test_every_picture_is_shown_somewhere_and_can_be_heard() -> None:
    text = "".join(page.read_text() for page in DOCUMENTS)
    for picture in (DOCS / "pictures").glob("*.svg"):
        assert re.search(rf"!\[[^\]]{{30,}}\]\([\w./-]*{picture.name}\)", text), picture.name
        assert "prefers-color-scheme: dark" in picture.read_text()


def test_every_move_of_a_job_has_its_arrow_and_no_other() -> None:
    assert set(ARROWS) == {(start, end) for start, end, _ in MOVES}


# ── the site ─────────────────────────────────────────────────────────────────────────────────────


def test_the_copy_for_the_site_has_its_links_turned_to_where_things_are(tmp_path: Path) -> None:
    stage(tmp_path / "site")
    found = [wrong for page in (tmp_path / "site").rglob("*.md") for wrong in links.wrong(page)]
    assert found == []
    assert "](files/proofs/model/Lease.tla)" in (tmp_path / "site" / "model.md").read_text()
    assert "](project/architecture.md)" in (tmp_path / "site" / "index.md").read_text()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_spec("furo") is None:
        pytest.skip("the extra docs is not installed: make docs")
    folder = tmp_path_factory.mktemp("documents")
    assert build(folder / "source", folder / "site") == 0, "a warning is an error"
    return folder / "site"


def test_the_site_is_built_without_a_warning_and_asks_nobody_else(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|img|link|iframe)\b[^>]*(?:src|href)=\"([^\"]+)", page.read_text()
        )
        assert loaded
        assert [name for name in loaded if "//" in name] == [], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"@import|url\([\"']?(https?:)?//", style.read_text()), style.name


@needs_browser
def test_on_a_phone_nothing_is_wider_than_its_page_and_a_drawing_is_seen_to_its_end(
    site: Path,
) -> None:
    with browser() as chromium, shown(chromium, viewport={"width": 390, "height": 900}) as page:
        pages = [path for path in site.rglob("*.html") if '.svg"' in path.read_text()]
        assert len(pages) > 8
        for path in pages:
            page.goto(path.as_uri())
            wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert page.evaluate(wide) <= 0, path.name
            assert page.evaluate(CUT_OFF) == [], path.name


# The right edges of the drawings that, scrolled as far as they go, are outside of their paragraph.
CUT_OFF = """[...document.querySelectorAll('article p:has(> img[src$=".svg"])')].map(p => {
    p.scrollLeft = 9999;
    const img = p.querySelector('img'), faded = 40;
    const end = img.getBoundingClientRect().right - parseFloat(getComputedStyle(img).paddingRight);
    return end - (p.getBoundingClientRect().right - faded);
}).filter(beyond => beyond > 1)"""
