"""How a process finds an app: what each wrong reference says, and that a right one leads back.

Each case is a project of its own in a directory, and a process started there.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

APP = "from faultline import App\napp = App('postgresql://there')\nother = 7\n"
ASK = """
import sys
from faultline.errors import AppNotFound
from faultline.reference import import_app, reference_of
try:
    app = import_app(sys.argv[1])
except AppNotFound as error:
    print(error)
else:
    print("found", app.url, reference_of(app), import_app(reference_of(app)) is app)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "plain.py").write_text(APP)
    (tmp_path / "my-app.py").write_text(APP)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "json.py").write_text(APP)
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "broken.py").write_text("x = 1\nraise ValueError('no\\nsuch thing')\n")
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit('bye')\n")
    (tmp_path / "typo.py").write_text("def f(:\n")
    (tmp_path / "needy.py").write_text("import missing_library\n")
    (tmp_path / "holder.py").write_text(APP + "class Box:\n    app = app\n")
    shop = tmp_path / "src" / "shop"
    shop.mkdir(parents=True)
    (shop / "__init__.py").write_text("")
    (shop / "names.py").write_text("URL = 'postgresql://shop'\n")
    (shop / "tasks.py").write_text(
        "from faultline import App\nfrom .names import URL\napp = App(URL)\n"
    )
    return tmp_path


def ask(reference: str, project: Path) -> str:
    command = [sys.executable, "-W", "error", "-c", ASK, reference]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    (line,) = done.stdout.splitlines()
    return line


@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        ("plain:app", "found postgresql://there plain:app True"),
        ("plain.py:app", "found postgresql://there plain:app True"),
        ("./plain.py:app", "found postgresql://there plain:app True"),
        ("my-app.py:app", "found postgresql://there my-app:app True"),
        ("holder:Box.app", "found postgresql://there holder:app True"),
        ("src/shop/tasks.py:app", "found postgresql://shop shop.tasks:app True"),
    ],
)
def test_a_reference_leads_to_the_app_and_back(reference: str, answer: str, project: Path) -> None:
    assert ask(reference, project) == answer


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        ("plain", "'plain' does not name an app: give module:attribute"),
        (":app", "':app' does not name an app"),
        ("plain:", "'plain:' does not name an app"),
        ("nowhere:app", "there is no module 'nowhere', seen from '{project}'"),
        ("shop.nowhere:app", "there is no module 'shop', seen from"),
        ("nowhere.py:app", "there is no file 'nowhere.py'"),
        ("src:app", "'src' has no 'app': it has no App at all"),
        ("plain:ap", "'plain' has no 'ap': its apps are app"),
        ("plain:other", "'plain:other' is of type int, not an App: its apps are app"),
        ("empty:app", "'empty' has no 'app': it has no App at all"),
        ("broken:app", "importing 'broken' failed in {project}/broken.py:2 with ValueError: no"),
        ("leaving:app", "importing 'leaving' failed in {project}/leaving.py:2 with SystemExit:"),
        ("typo:app", "importing 'typo' failed in {project}/typo.py:1 with SyntaxError:"),
        ("needy:app", "importing 'needy' failed in {project}/needy.py:1 with ModuleNotFoundError: "
                      "No module named 'missing_library'"),
        ("sub/json.py:app", "'sub/json.py' cannot be imported as 'json', which is the name of"),
    ],
)  # fmt: skip
def test_a_reference_that_leads_nowhere_is_one_sentence(
    reference: str, sentence: str, project: Path
) -> None:
    assert sentence.replace("{project}", str(project)) in ask(reference, project)


SCRIPT = """
from faultline import App
from faultline.reference import reference_of
here = App()
if __name__ == "__main__":
    print(reference_of(here), reference_of(App()))
"""


def said(project: Path, *arguments: str) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_app_of_a_script_is_found_by_its_file_and_that_of_a_module_by_its_name(
    project: Path,
) -> None:
    (project / "script.py").write_text(SCRIPT)
    (project / "src" / "shop" / "run.py").write_text(SCRIPT)
    assert said(project, "script.py") == f"{project}/script.py:here None"
    assert said(project / "src", "-m", "shop.run") == "shop.run:here None"
    assert said(project, "-c", SCRIPT) == "None None"


def test_a_script_that_gathers_the_tasks_is_preferred_to_the_module_of_the_app(
    project: Path,
) -> None:
    """A child process has to import what its parent had imported, or it lacks tasks."""
    (project / "gather.py").write_text(
        textwrap.dedent("""
        from plain import app
        from faultline.reference import reference_of
        @app.task
        def work(): ...
        print(reference_of(app))
        """)
    )
    assert said(project, "gather.py") == f"{project}/gather.py:app"
