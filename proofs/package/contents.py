"""What has to be in the files that are released, and what must not: complaints, or none."""

from __future__ import annotations

import re
import tarfile
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

from proofs.package.building import ROOT

PACKAGE = ROOT / "src" / "faultline"
LICENCES = ("LICENSE", "THIRD-PARTY-NOTICES.md")
BESIDE = {"CHANGELOG.md", "README.md", "pyproject.toml", "PKG-INFO", ".gitignore", *LICENCES}
LINK = re.compile(r"\]\((?!#)([^)]+)\)")
REPOSITORY = re.compile(r"https://(?:raw\.githubusercontent|github)\.com/[\w-]+/[\w-]+/(.*)")


def wanted() -> set[str]:
    """Every file of the package as it stands in the checkout; caches are no files of it."""
    return {
        str(path.relative_to(PACKAGE.parent))
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def in_wheel(wheel: Path) -> list[str]:
    """The package, whole, and nothing else; its licences and what it says of itself."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        said = message_from_string(archive.read(metadata).decode())
    folder = metadata.removesuffix("METADATA")
    found = _difference({name for name in names if not name.startswith(folder)}, wanted())
    for name in LICENCES:
        if f"{folder}licenses/{name}" not in names:
            found.append(f"{name} is missing")
    return [f"wheel: {text}" for text in [*found, *of_metadata(said)]]


def in_sdist(sdist: Path) -> list[str]:
    """What it takes to build the wheel, and the papers."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    source = {name.removeprefix("src/") for name in names if name.startswith("src/")}
    beside = _difference({name for name in names if not name.startswith("src/")}, BESIDE)
    return [f"sdist: {text}" for text in [*_difference(source, wanted()), *beside]]


def of_metadata(said: Message) -> list[str]:
    """Complete, and its pictures and links lead somewhere on a page that is not the checkout."""
    found = [
        f"{name} is not said"
        for name in ("Summary", "License-Expression", "Requires-Python", "Project-URL", "Keywords")
        if not said.get_all(name)
    ]
    version = said["Version"]
    for target in LINK.findall(str(said.get_payload())):
        if (ours := REPOSITORY.fullmatch(target)) is None:
            if "://" not in target:
                found.append(f"{target} leads nowhere on PyPI")
            continue
        place = ours[1].removeprefix("blob/")
        path = place.partition("#")[0].removeprefix(f"v{version}/")
        if path == place.partition("#")[0] or not (ROOT / path).exists():
            found.append(f"{target} leads nowhere at the tag v{version}")
    return found


def _difference(there: set[str], expected: set[str]) -> list[str]:
    missing = [f"{name} is missing" for name in sorted(expected - there)]
    return missing + [f"{name} does not belong there" for name in sorted(there - expected)]
