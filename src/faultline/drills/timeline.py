"""What happened to the jobs that were hit, as a short story in seconds since it began."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from faultline.drills.history import Operation

_WORDS = {
    ("execute", "invoke"): "begins",
    ("write", "invoke"): "sets out to write {effect}",
    ("write", "ok"): "has committed {effect}",
    ("write", "fail"): "is refused: {why}",
    ("write", "unknown"): "does not know what became of {effect}: {why}",
}


def timeline(
    done: Sequence[Operation],
    hit: Mapping[str, str],
    attempts: Mapping[str, Sequence[Mapping[str, Any]]],
    refusals: Iterable[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Of the first job that was hit: who did what, and when."""
    job_id = next(iter(hit), None)
    if job_id is None:
        return []
    names: dict[int, str] = {}

    def name(pid: int) -> str:
        return names.setdefault(pid, f"worker {chr(ord('A') + len(names))}")

    lines = [*_told(done, job_id, name), *_recorded(attempts[job_id], refusals, job_id)]
    lines.sort(key=lambda line: line[0])
    start = lines[0][0] if lines else 0.0
    return [{"at": round(at - start, 4), "who": who, "what": what} for at, who, what in lines]


def _told(done: Sequence[Operation], job_id: str, name: Any) -> Iterator[tuple[float, str, str]]:
    workers = {item.pid for item in done if item.doing == "execute"}
    for item in done:
        at = datetime.fromisoformat(item.at).timestamp()
        if item.doing == "fault" and item.job_id.isdigit():
            pid = int(item.job_id)
            yield at, name(pid) if pid in workers else f"process {pid}", f"is hit: {item.why}"
        elif item.job_id == job_id and (item.doing, item.phase) in _WORDS:
            words = _WORDS[item.doing, item.phase].format(effect=item.effect, why=item.why)
            yield at, name(item.pid), f"{words} (token {item.token})"


def _recorded(
    attempts: Sequence[Mapping[str, Any]], refusals: Iterable[Mapping[str, Any]], job_id: str
) -> Iterator[tuple[float, str, str]]:
    for attempt in attempts:
        if attempt["lease_expired_at"] is not None:
            at = attempt["lease_expired_at"].timestamp()
            yield at, "database", f"the lease of token {attempt['fencing_token']} runs out"
        words = f"records: token {attempt['fencing_token']} {attempt['outcome']}"
        yield attempt["at"].timestamp(), "database", words
    for refusal in refusals:
        if str(refusal["job_id"]) == job_id:
            words = f"refuses a write under token {refusal['stale_token']}: {refusal['reason']}"
            yield refusal["at"].timestamp(), "database", words
