"""How a process finds an app: "module:app" or "path/file.py:app", and back.

Every way in which that can go wrong is an AppNotFound with one sentence. What the module itself
raises is chained, so that its traceback can be shown. Only what the user typed is imported.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from faultline.app import App
from faultline.errors import AppNotFound

_EXAMPLE = "give module:attribute or path/file.py:attribute, e.g. shop.tasks:app"


def import_app(reference: str) -> App:
    """The app that the reference names; the current directory is on the path as for `python -m`."""
    where, colon, attribute = reference.rpartition(":")
    if not colon or not where or not attribute:
        raise AppNotFound(f"{reference!r} does not name an app: {_EXAMPLE}")
    _put_on_path(Path.cwd())
    module = _import(where)
    found: Any = module
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise AppNotFound(f"{where!r} has no {attribute!r}{_instead(module)}") from None
    if not isinstance(found, App):
        kind = type(found).__qualname__
        raise AppNotFound(f"{reference!r} is of type {kind}, not an App{_instead(module)}")
    return found


def reference_of(app: App) -> str | None:
    """How another process can import this same app; None if no module has it under a name."""
    # First the script: what it has imported before it runs a worker is what the tasks need.
    modules = {"__main__": sys.modules.get("__main__"), **sys.modules}
    for name, module in list(modules.items()):
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is app and (where := _importable(name, module)) is not None:
                return f"{where}:{attribute}"
    return None


def _import(where: str) -> ModuleType:
    is_file = where.endswith(".py") or "/" in where
    name = _module_of(Path(where)) if is_file else where
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise AppNotFound(
                f"there is no module {error.name!r}, seen from {str(Path.cwd())!r}: {_EXAMPLE}"
            ) from None
        raise AppNotFound(_raised(where, error)) from error
    except (Exception, SystemExit) as error:
        raise AppNotFound(_raised(where, error)) from error
    if is_file and not _is_file_of(module, Path(where)):
        raise AppNotFound(
            f"{where!r} cannot be imported as {name!r}, which is the name of "
            f"{getattr(module, '__file__', None) or 'a built-in module'}: rename the file"
        )
    return module


def _module_of(path: Path) -> str:
    """The module that a file is; the directory it is imported from is put on the path."""
    if not path.is_file():
        raise AppNotFound(f"there is no file {str(path)!r}: {_EXAMPLE}")
    path = path.resolve()
    names, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    _put_on_path(folder)
    return ".".join(names).removesuffix(".__init__")


def _put_on_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _is_file_of(module: ModuleType, path: Path) -> bool:
    return Path(getattr(module, "__file__", None) or "").resolve() == path.resolve()


def _raised(where: str, error: BaseException) -> str:
    """Where it broke, in the user's own code: the last step that is not of the import system."""
    steps = [
        step
        for step in traceback.extract_tb(error.__traceback__)
        if "importlib" not in step.filename and step.filename != __file__
    ]
    place = f" in {steps[-1].filename}:{steps[-1].lineno}" if steps else ""
    said = f"{type(error).__name__}: {error}".partition("\n")[0]
    if isinstance(error, SyntaxError):
        place, said = f" in {error.filename}:{error.lineno}", f"SyntaxError: {error.msg}"
    return f"importing {where!r} failed{place} with {said}"


def _instead(module: ModuleType) -> str:
    apps = [name for name, value in vars(module).items() if isinstance(value, App)]
    return f": its apps are {', '.join(apps)}" if apps else ": it has no App at all"


def _importable(name: str, module: Any) -> str | None:
    if name != "__main__":
        return name
    if (spec := getattr(module, "__spec__", None)) is not None:  # python -m
        return str(spec.name)
    path = getattr(module, "__file__", None)
    return str(Path(path).resolve()) if path and path.endswith(".py") else None
