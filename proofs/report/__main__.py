"""`make report`: reports/latest/report.html and report.json, from what the proofs have left."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from faultline import __version__
from faultline.provenance import commit
from proofs.report.digest import digest
from proofs.report.page import page
from proofs.report.sources import read

FOLDER = Path("reports/latest")


def write(folder: Path) -> dict[str, Any]:
    """Both files; answers with the report."""
    head = commit()
    report = {
        "command": "make report",
        "version": __version__,
        "commit": head,
        **digest(read(folder, head)),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    (folder / "report.html").write_text(page(report), "utf-8")
    return report


def main() -> int:
    """Write, and say what is in it and what is not."""
    report = write(FOLDER)
    sections = {name: section for name, section in report.items() if isinstance(section, dict)}
    missing = sorted({section["run"] for section in sections.values() if "run" in section})
    for command in missing:
        print(f"not in the report: run `{command}` first", file=sys.stderr)
    cautions = sorted(
        f"{name}: {section['made_by']['caution']}"
        for name, section in sections.items()
        if section.get("made_by", {}).get("caution")
    )
    for caution in cautions:
        print(f"beware: {caution}", file=sys.stderr)
    line = {"report": str(FOLDER / "report.html"), "missing": missing, "cautions": len(cautions)}
    print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
