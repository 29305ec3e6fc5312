"""A migrate in the middle of the work of the previous code, which is taken from the history.

`make upgrade-check` runs the same play; where there is no history (an archive of the sources, a
shallow clone) it is skipped.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from faultline.script import OLDEST_CLIENT, SCHEMA_VERSION
from proofs.upgrade.play import Play
from proofs.upgrade.previous import current, previous, why_not


def test_workers_and_producers_of_the_previous_code_go_on_after_a_migrate(
    empty_database: str, tmp_path: Path
) -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    old = previous(tmp_path)
    assert OLDEST_CLIENT <= old.schema_version <= SCHEMA_VERSION
    outcome = Play(empty_database, "faultline", tmp_path, old, current()).run()
    assert outcome.wrong == []
    assert outcome.by_old_workers_afterwards >= 40
    assert outcome.refusals >= 1
    assert outcome.told.startswith("faultline: the installation in schema 'faultline'")
    assert outcome.told.count("\n") == 0
