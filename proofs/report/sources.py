"""The files that the proofs leave, and where their figures come from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]
_FACTS = ("command", "seed", "commit", "version", "postgresql", "at")


@dataclass(frozen=True)
class Sources:
    """What is there; None: its command has not been run."""

    head: str | None
    drills: Json | None
    scenarios: list[Json] | None
    comparison: Json | None
    duel: Json | None
    demo: Json | None

    def made_by(self, made: Json) -> Json:
        """Command, seed and commit of a file, and what is wrong with the commit, if anything."""
        facts: Json = {key: made[key] for key in _FACTS if made.get(key) is not None}
        return {**facts, "caution": _caution(facts.get("commit"), self.head)}


def read(folder: Path, head: str | None) -> Sources:
    """Everything in the folder; `head` is the commit of the checkout."""

    def load(name: str) -> Json | None:
        path = folder / name
        return json.loads(path.read_text("utf-8")) if path.exists() else None

    lines = folder / "drills.jsonl"
    scenarios = None
    if lines.exists():
        scenarios = [json.loads(line) for line in lines.read_text("utf-8").splitlines() if line]
    return Sources(
        head,
        load("drills.json"),
        scenarios,
        load("comparison.json"),
        load("duel.json"),
        load("benchmark_summary.json"),
    )


def _caution(made: str | None, head: str | None) -> str | None:
    if made is None:
        return "it is not recorded which commit made this"
    clean = made.removesuffix("-dirty")
    if head is not None:
        current = head.removesuffix("-dirty")
        if not (clean.startswith(current) or current.startswith(clean)):
            return f"made by another commit than this checkout's, which is {current}"
    return "made with changes that were not committed" if made != clean else None
