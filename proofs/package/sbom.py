"""`make sbom`: dist/sbom.cdx.json, the bill of materials in CycloneDX 1.6.

Taken from a real installation of the wheel with every extra, by cyclonedx-py; what the dashboard
brings along of others (`vendored.toml`) is added, since no package manager knows of it. Validated
against the schema. The last line is one JSON object.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from faultline import __version__
from proofs.package.building import ROOT, build
from proofs.package.empty import Environment
from proofs.stopwatch import finish

OUT = Path("dist/sbom.cdx.json")
VENDORED = ROOT / "src" / "faultline" / "service" / "dashboard" / "vendored.toml"
NAME = "faultline-queue"


def main() -> int:
    """Install, list, add, validate, write."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        environment = Environment(folder / "all")
        environment.install(f"{build(folder / 'built').wheel}[all]")
        bill = listed(environment)
    bill = completed(bill, vendored())
    if (wrong := invalid(bill)) is not None:
        print(f"the bill of materials is not valid: {wrong}", file=sys.stderr)
        return 1
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(bill, indent=2) + "\n")
    unlicensed = [part["name"] for part in bill["components"] if not part.get("licenses")]
    figures = {"components": len(bill["components"]), "without_licence": unlicensed}
    finish("sbom", {"sbom": str(OUT), **figures})
    return 1 if unlicensed else 0


def listed(environment: Environment) -> dict[str, Any]:
    """What is installed there, as cyclonedx-py sees it; no serial number and no time of day."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment"]
    said = subprocess.run(
        [*command, "--output-reproducible", "--spec-version", "1.6", str(environment.python)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    bill: dict[str, Any] = json.loads(said)
    return bill


def vendored() -> list[dict[str, Any]]:
    """What of the dashboard others wrote, as components."""
    return [
        {
            "type": "library",
            "bom-ref": f"pkg:npm/{library['name']}@{library['version']}",
            "name": library["name"],
            "version": library["version"],
            "purl": f"pkg:npm/{library['name']}@{library['version']}",
            "licenses": [{"license": {"id": library["licence"]}}],
            "externalReferences": [{"type": "vcs", "url": library["source"]}],
            "components": [
                {
                    "type": "file",
                    "name": name,
                    "bom-ref": f"{library['name']}/{name}",
                    "hashes": [{"alg": "SHA-256", "content": sha256}],
                }
                for name, sha256 in library["sha256"].items()
            ],
        }
        for library in tomllib.loads(VENDORED.read_text())["library"]
    ]


def completed(bill: dict[str, Any], libraries: list[dict[str, Any]]) -> dict[str, Any]:
    """The package as what the bill is of, and what it brings along among its parts."""
    (package,) = (part for part in bill["components"] if part["name"] == NAME)
    # Where the wheel lay when it was installed says nothing to anybody.
    package.pop("externalReferences", None)
    package["purl"] = f"pkg:pypi/{NAME}@{__version__}"
    own = next(d for d in bill["dependencies"] if d["ref"] == package["bom-ref"])
    own["dependsOn"] = [*own.get("dependsOn", []), *(part["bom-ref"] for part in libraries)]
    rest = [part for part in bill["components"] if part is not package]
    return {
        **bill,
        "metadata": {**bill.get("metadata", {}), "component": package},
        "components": [*rest, *libraries],
        "dependencies": [*bill["dependencies"], *({"ref": p["bom-ref"]} for p in libraries)],
    }


def invalid(bill: dict[str, Any]) -> str | None:
    """What the schema says against it."""
    found = JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bill))
    return None if found is None else str(found)


if __name__ == "__main__":
    sys.exit(main())
