"""The TLA+ model of the lease protocol: it speaks of the verbs there are, holds, and can fail.

Method: TLC checks the small configuration; then each guard is taken out of the model in turn, and
the property named for it has to break, by the very steps that docs/model.md shows.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from faultline.protocol import Protocol
from proofs.model import run
from proofs.model.run import BROKEN, Broken

ROOT = Path(__file__).parent.parent
SQL = ROOT / "src" / "faultline" / "sql"

# Verbs without an action of their own, and why the model loses nothing by it.
NOT_MODELLED = {
    "enqueue_many": "several enqueues in one commit",
    "claim_one": "claim, of one job",
    "swap": "complete and claim in one commit; the model has every interleaving of the two",
    "reconcile": "reclaim and promote in one commit; the model has every interleaving of the two",
    "decline": "snooze; how long a job is put off is left open in the model",
    "reclaim_dead": "an expiry, which may come at any moment in the model, and the reclaim of it",
    "release_others": "release; of an expired lease reclaim, which takes the same two steps",
    "adopt": "renew by another process of the same attempt; the model knows tokens, not processes",
    "retry": "promote; when a job becomes due is left open in the model",
    "progress": "a report, which decides nothing and is shown beside the lease",
    "pause": "claims less; a claim that does not happen is always possible in the model",
    "rescue": "for restores from a dump, which the model does not have",
    "epoch_bump": "for restores from a disk snapshot, which the model does not have",
    "compact": "rewrites the same rows",
    "compact_if_bloated": "compact, or nothing",
    "spare_vacuum": "how often dead rows are looked for",
    "create_partitions": "moves no job",
    "drop_partitions": "forgets jobs that have ended long ago",
    "apply_retention": "forgets jobs that have ended long ago",
    "set_retention": "a setting",
    "report_refusal": "records evidence; refuse is in the model",
    "beat": "about workers; decides nothing",
    "leave": "about workers; decides nothing",
    "sleep": "a hint about waking up",
    "awake": "a hint about waking up",
    "status": "only reads",
    "outcomes": "outcome, of many attempts",
    "backlog": "only reads",
    "sleeping": "only reads, about workers",
    "shown_bytes": "only reads",
    "know_tasks": "promote, of jobs that wait for a worker that has their task",
    "busy": "only reads; how long a verb waits for a lock is left open in the model",
    "lanes": "only reads",
    "new_id": "makes an id",
    "begin_step": "fence; whether the step is done is only read",
    "record_step": "assert_fence, and a row that lives or dies with that commit",
    "same_transaction": "only reads",
    "commit_status": "how LoseAck is resolved; only reads",
    "guard": "a trigger on a user's table, which asks for a fence; fence is in the model",
    "unguard": "takes that trigger away",
    "guard_tree": "only reads",
    "check_guard": "only reads",
    "schema_version": "only reads",
}


def verbs() -> set[str]:
    """What anybody may call: the methods of Protocol, and what roles.sql grants."""
    methods = {name for name in vars(Protocol) if not name.startswith("_")}
    grants = re.sub(r"--.*", "", (SQL / "roles.sql").read_text())
    granted = {
        name
        for functions in re.findall(r"grant execute on function(.*?)\bto\b", grants, re.DOTALL)
        for name in re.findall(r"\{schema\}\.(\w+)", functions)
    }
    assert {"claim", "requeue", "swap"} <= granted
    return methods | granted


def documented() -> dict[str, Any]:
    """The last line of `make model`, as the document shows it."""
    (line,) = re.findall(r"^\{.*\}$", (ROOT / "docs" / "model.md").read_text(), re.MULTILINE)
    return json.loads(line)


@pytest.fixture
def tlc() -> None:
    try:
        run.command()
    except run.Unavailable as missing:
        pytest.skip(str(missing))


def test_every_verb_is_an_action_of_the_model_or_says_why_not() -> None:
    assert verbs() - run.actions() == NOT_MODELLED.keys()


def test_every_action_in_lower_case_is_a_function_of_the_database() -> None:
    functions = {
        name
        for path in (SQL / "functions").glob("*.sql")
        for name in re.findall(r"create or replace function \{schema\}\.(\w+)", path.read_text())
    }
    called = {action for action in run.actions() if action.islower()}
    assert called <= functions
    assert run.actions() - called == {
        *("Commit", "LoseAck", "CutOff", "Expire", "Stall", "Return", "Crash"),
        *("Replicate", "Failover"),
    }


def test_the_protocol_keeps_its_invariants_and_every_action_is_taken(tlc: None) -> None:
    checked = run.faithful("small")
    assert checked.finished, checked.output[-6000:]
    assert checked.violated is None
    assert {action for action, times in checked.taken.items() if times} == run.actions()
    assert documented()["states_by_configuration"]["small"] == checked.distinct_states


def test_a_check_reads_no_module_that_another_one_may_be_removing(tlc: None) -> None:
    checked = run.check("small", (run.HERE / "small.cfg").read_text(), quick=True)
    read = re.findall(r"Parsing file (\S+)/\w+\.tla", checked.output)
    assert len(read) > 4
    assert len(set(read)) == 1


def test_every_job_ends_if_one_worker_keeps_trying(tlc: None) -> None:
    checked = run.faithful("live")
    assert checked.finished, checked.output[-6000:]
    assert documented()["states_by_configuration"]["live"] == checked.distinct_states


def test_if_nobody_keeps_trying_a_job_may_never_end(tlc: None) -> None:
    fair = (run.HERE / "live.cfg").read_text()
    checked = run.check("unfair", fair.replace("FairSpec", "Spec"), quick=True)
    assert checked.violated == "a temporal property"


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.variant)
def test_without_a_guard_the_model_shows_what_goes_wrong_as_the_documents_tell_it(
    tlc: None, broken: Broken
) -> None:
    told = run.timeline(broken)  # says so if another property breaks, or none
    assert told in (ROOT / "docs" / "model.md").read_text()


@pytest.mark.parametrize("variant", ["frozen_clock", "renew_dead"])
def test_without_the_expiry_the_token_still_keeps_the_effect_single(
    tlc: None, variant: str
) -> None:
    broken = next(broken for broken in BROKEN if broken.variant == variant)
    assert run.break_it(broken, "EffectAtMostOnce").finished


def test_a_token_given_out_twice_is_seen_as_that_too(tlc: None) -> None:
    no_epoch = next(broken for broken in BROKEN if broken.variant == "no_epoch")
    assert run.break_it(no_epoch, "TokensOnlyGrow").violated == "TokensOnlyGrow"


def test_without_java_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(run.Unavailable, match="needs Java"):
        run.command()
