"""What a proof ends with: how long it took, on stderr and in its last line."""

from __future__ import annotations

import json
import re

import pytest

from proofs.stopwatch import finish


def test_a_proof_ends_with_its_figures_and_its_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    finish("model", {"states": 3})
    said = capsys.readouterr()
    assert re.fullmatch(r"model took [0-9.]+ s\n", said.err)
    line = json.loads(said.out)
    assert line == {"states": 3, "seconds": line["seconds"]}
    assert line["seconds"] >= 0
