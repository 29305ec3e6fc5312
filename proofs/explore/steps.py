"""Steps: what an actor can do in one turn, and how its answer is to be read.

A step is one statement on the actor's connection. `begin` opens a transaction before it, which the
step COMMIT ends; a step without either commits by itself. BEGIN is no turn of its own: it takes no
snapshot and no lock, and now(), which it freezes, is frozen at the first statement just as well.

Parameters are named, and resolved when the step is sent:

    job, token      of the actor's first attempt        jobs, tokens    of all its attempts
    worker          the actor's name                    backwards_…     the same, last one first
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import Enum


class Reads(Enum):
    """How acceptance is read from the answer of a step that an attempt makes under its token."""

    NOTHING = "no attempt speaks here"
    RAISES = "accepted unless it raises"
    STALE = "accepted but for the attempts in its rows"
    RENEWED = "accepted where a row says renewed"


class Means(Enum):
    """What else a step's answer, or its success, tells about the job."""

    NOTHING = ""
    CLAIMED = "the rows are the actor's attempts from now on"
    EXPIRED = "the leases in the rows have run out"
    TAKEN = "the leases in the rows were taken from their owners"
    RECLAIMED = "the same, and they had run out"
    SETTLED = "the accepted attempts have ended"
    HANDED_BACK = "the same, and the jobs are to run again"
    SWAPPED = "the accepted attempts have ended, and the rows that say claimed are new ones"
    ASKED = "the jobs in the rows, unless finished, are not to run again"
    WROTE = "an effect of the actor's attempt, if the transaction commits"
    FENCED = "the transaction may commit only while the lease is alive"
    CHECKED = "the fences of the transaction hold their leases from now on"
    COMMIT = "the transaction ends"


@dataclass(frozen=True, slots=True)
class Step:
    """One turn."""

    name: str
    statement: str
    parameters: tuple[str, ...] = ()
    reads: Reads = Reads.NOTHING
    means: Means = Means.NOTHING
    begin: str = ""  # the statement that opens its transaction, if one does
    if_idle: bool = False  # not for an actor that has an attempt already
    besides: bool = False  # what it claims, the actor has besides what it had
    never_waits: bool = False  # it skips what others have locked
    records: bool = True  # that an attempt was refused
    takes_from: str = ""  # the worker whose leases it may take; nobody else's
    spares: bool = False  # what the actor holds is not to be taken
    holds: bool = False  # in an open transaction it holds what others wait for, within a bound

    @property
    def needs_attempt(self) -> bool:
        """Who was given no job has nothing to do here."""
        return "token" in self.parameters or any("tokens" in name for name in self.parameters)


Program = tuple[Step, ...]

COMMIT = Step("COMMIT", "commit", means=Means.COMMIT)
ROLLBACK = Step("ROLLBACK", "rollback", means=Means.COMMIT)  # for who has done nothing to judge


def transaction(*steps: Step, level: str = "read committed") -> Program:
    """These steps in one transaction; what it locks it holds between the turns."""
    return (replace(steps[0], begin=f"begin isolation level {level}"), *steps[1:], COMMIT)


def _settling(
    name: str, arguments: str = "", means: Means = Means.SETTLED, *, backwards: bool = False
) -> Step:
    way = "backwards_" if backwards else ""
    return Step(
        name + (" (other order)" if backwards else ""),
        f"select job_id, fencing_token from faultline.{name}($1::uuid[], $2::bigint[]{arguments})",
        (f"{way}jobs", f"{way}tokens"),
        Reads.STALE,
        means,
        holds=True,
    )


# ── what a worker does ───────────────────────────────────────────────────────────────────────────


def claim(jobs: int = 1) -> Step:
    return Step(
        "claim",
        "select unnest(c.job_ids), unnest(c.tokens) from faultline.claim($1, "
        f"array(select lane from faultline.lane), {jobs}) c",
        ("worker",),
        means=Means.CLAIMED,
        never_waits=True,
        holds=True,
    )


CLAIM_AGAIN = replace(claim(), if_idle=True)  # a worker that found nothing looks again
CLAIM_BESIDES = replace(claim(), besides=True)


def complete(*, backwards: bool = False) -> Step:
    return _settling("complete", backwards=backwards)


def fail(*, backwards: bool = False) -> Step:
    soon = ", null, array_fill(0.0, array[cardinality($1)])"
    return _settling("fail", soon, Means.HANDED_BACK, backwards=backwards)


def snooze(*, backwards: bool = False) -> Step:
    soon = ", array_fill(0.0, array[cardinality($1)])"
    return _settling("snooze", soon, Means.HANDED_BACK, backwards=backwards)


def decline(*, backwards: bool = False) -> Step:
    return _settling("decline", "", Means.HANDED_BACK, backwards=backwards)


def release(*, backwards: bool = False) -> Step:
    return _settling("release", "", Means.HANDED_BACK, backwards=backwards)


CANCEL_ATTEMPT = _settling("cancel_attempt", ", 'asked to'")
FAIL_DEAD = replace(
    _settling("fail", ", null, null, array_fill(true, array[cardinality($1)])"), name="fail (dead)"
)
EXECUTE = replace(_settling("execute"), means=Means.NOTHING)
EXECUTE_BACKWARDS = replace(_settling("execute", backwards=True), means=Means.NOTHING)
EXECUTE_FIRST = Step(
    "execute the first",
    "select job_id, fencing_token from faultline.execute(array[$1::uuid], array[$2::bigint])",
    ("job", "token"),
)
ADOPT = Step(
    "adopt",
    "select job_id, fencing_token from faultline.adopt('A', $1::uuid[], $2::bigint[])",
    ("jobs", "tokens"),
    Reads.STALE,
    holds=True,
)
RENEW = Step(
    "renew",
    "select job_id, fencing_token, verdict from faultline.renew($1::uuid[], $2::bigint[])",
    ("jobs", "tokens"),
    Reads.RENEWED,
    never_waits=True,
    holds=True,
)
PROGRESS = Step(
    "progress",
    "select job_id, fencing_token from explore.progress($1::uuid[], $2::bigint[])",
    ("jobs", "tokens"),
    Reads.STALE,
    records=False,
)
BUSY = Step(
    "busy",
    "select faultline.busy($1::uuid[], $2::bigint[])",
    ("jobs", "tokens"),
    never_waits=True,
)
SWAP = Step(
    "swap",
    "with s as (select * from faultline.swap($1::uuid[], $2::bigint[], null, $3, "
    "array(select lane from faultline.lane), 1)) "
    "select unnest(stale_ids), unnest(stale_tokens), 'stale' from s union all "
    "select unnest(claimed_ids), unnest(claimed_tokens), 'claimed' from s",
    ("jobs", "tokens", "worker"),
    Reads.STALE,
    Means.SWAPPED,
)
KNOW_TASKS = Step(
    "know_tasks",
    "select faultline.know_tasks($1, array(select queue from faultline.queue), "
    "array(select distinct task from faultline.job))",
    ("worker",),
    never_waits=True,
    holds=True,
)
COMPLETE_ONE = Step(
    "complete_one",
    "select faultline.complete_one($1, $2)",
    ("job", "token"),
    Reads.RAISES,
    Means.SETTLED,
    holds=True,
)

# ── the user's own writes ────────────────────────────────────────────────────────────────────────


def effect(kind: str = "many", table: str = "effect") -> Step:
    """A row of the user's. `once`: it commits with the success, so there may be only one."""
    return Step(
        f"INSERT {table}",
        f"insert into explore.{table} (job_id, token, kind) values ($1, $2, '{kind}')",
        ("job", "token"),
        means=Means.WROTE,
    )


ASSERT_FENCE = Step(
    "assert_fence",
    "select faultline.assert_fence($1, $2)",
    ("job", "token"),
    Reads.RAISES,
    holds=True,
)
FENCE = Step(
    "fence",
    "select faultline.fence($1, $2)",
    ("job", "token"),
    Reads.RAISES,
    Means.FENCED,
)
CHECK_EARLY = Step(
    "SET CONSTRAINTS",
    "set constraints all immediate",
    reads=Reads.RAISES,
    means=Means.CHECKED,
    holds=True,
)
BEGIN_STEP = replace(
    FENCE, name="begin_step", statement="select faultline.begin_step($1, $2, 'charge') ->> 'done'"
)
RECORD_STEP = Step(
    "record_step",
    "select faultline.record_step($1, $2, 'charge')",
    ("job", "token"),
    Reads.RAISES,
    holds=True,
)
CHECK_IN_CLIENT = Step(  # what a queue without a fence does
    "SELECT the token",
    "select 1 / count(*) from faultline.lease where job_id = $1 and fencing_token = $2 "
    "and expires_at > clock_timestamp()",
    ("job", "token"),
)

# ── from outside ─────────────────────────────────────────────────────────────────────────────────

# Time, by moving the rows. What an open transaction has locked is being settled: time passes there
# too, but would change nothing that others can see.
EXPIRE = Step(
    "the leases run out",
    "update faultline.lease set expires_at = clock_timestamp() where job_id "
    "in (select job_id from faultline.lease where expires_at > clock_timestamp() "
    "for no key update skip locked) returning job_id, fencing_token",
    means=Means.EXPIRED,
)
EXPIRE_FIRST = replace(
    EXPIRE,
    name="a lease runs out",
    statement=EXPIRE.statement.replace("for no key", "order by job_id limit 1 for no key"),
)
RECLAIM = Step(
    "reclaim",
    "select job_id, fencing_token from faultline.reclaim()",
    means=Means.RECLAIMED,
    never_waits=True,
    holds=True,
)
EXPIRE_AND_RECLAIM = replace(
    RECLAIM,
    name="run out, reclaim",
    statement="select job_id, fencing_token from explore.expire_and_reclaim()",
    means=Means.TAKEN,
)
RECLAIM_DEAD = Step(
    "reclaim_dead",
    "select job_id, fencing_token from faultline.reclaim_dead('A')",
    means=Means.TAKEN,
    never_waits=True,
    takes_from="A",
    holds=True,
)
RECONCILE = Step(
    "reconcile",
    "select unnest(r.job_ids), unnest(r.tokens) from faultline.reconcile() r",
    means=Means.RECLAIMED,
    never_waits=True,
    holds=True,
)
RELEASE_OTHERS = Step(
    "release_others",
    "select j, (select fencing_token from faultline.lease where job_id = j) "  # as it was before
    "from faultline.release_others('A', '{}', '{}') j",
    means=Means.TAKEN,
    never_waits=True,
    takes_from="A",
    holds=True,
)
RECLAIM_DEAD_NONE = replace(
    RECLAIM_DEAD,
    name="reclaim_dead of none",
    statement="select job_id, fencing_token from faultline.reclaim_dead('A', '{}')",
    spares=True,
)
RELEASE_UNKNOWN = replace(
    RELEASE_OTHERS,
    name="release_others but these",
    statement=RELEASE_OTHERS.statement.replace("'{}', '{}'", "$1::uuid[], $2::bigint[]"),
    parameters=("jobs", "tokens"),
    spares=True,
)
PROMOTE = Step("promote", "select faultline.promote()", never_waits=True)
CANCEL = Step(
    "cancel",
    "select job_id, verdict from faultline.cancel($1::uuid[])",
    ("every_job",),
    means=Means.ASKED,
)
CANCEL_BACKWARDS = replace(CANCEL, name="cancel (other order)", parameters=("backwards_every_job",))
RESCUE = Step("rescue", "select faultline.rescue()")
REQUEUE = Step("requeue", "select faultline.requeue($1::uuid[])", ("every_job",))
RETRY = Step("retry", "select faultline.retry($1::uuid[])", ("every_job",))
RETRY_BACKWARDS = Step("retry (other order)", RETRY.statement, ("backwards_every_job",))
RETRY_FIRST = Step(
    "retry of the first", RETRY.statement.replace("$1::uuid[]", "($1::uuid[])[:1]"), ("every_job",)
)


def enqueue(keys: str) -> Step:
    """A job under each of these keys, in this order; its payload is its key."""
    ids = ", ".join("faultline.new_id()" for _ in keys)
    return Step(
        f"enqueue_many {', '.join(keys)}",
        f"select faultline.enqueue_many('work', array[{ids}], '{json.dumps(list(keys))}', "
        f"'explore', idempotency_keys => string_to_array('{','.join(keys)}', ','))",
    )
