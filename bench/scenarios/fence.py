"""What the comparison of tokens costs: `swap` as it is, against a copy that does not compare.

The copy is the same installation in another database, where `complete` has lost its two conditions:
that the token is the caller's, and that the lease has not run out. Blocks alternate; each is a
loop inside the server in one transaction, timed by the server's clock: no client and no commit,
whose noise would hide the difference.
"""

from __future__ import annotations

import statistics

from psycopg import sql

from bench.arena import BATCH, Arena, Ground
from bench.blocks import Say, alternated, medians
from bench.plan import Plan
from bench.rows import Bar, Row

BLOCKS = 31
CALLS = 8  # of swap in a block
COMPARISON = " and l.fencing_token = u.token and l.expires_at > v_now"

LOOP = """do $$
declare
    s record; v_ids uuid[] := '{{}}'; v_tokens bigint[] := '{{}}'; v_cursors bigint[];
    v_lanes integer[] := array(select lane from {schema}.lane);
    t timestamptz := clock_timestamp();
begin
    for i in 0..{calls} loop
        select * into strict s
          from {schema}.swap(v_ids, v_tokens, null, 'fence', v_lanes, {batch}, v_cursors);
        v_ids := coalesce(s.claimed_ids, '{{}}'); v_tokens := coalesce(s.claimed_tokens, '{{}}');
        v_cursors := array[(select min(q) from unnest(s.seqs) q)];
    end loop;
    perform set_config('bench.seconds',
                       extract(epoch from clock_timestamp() - t)::text, false);
end $$"""


def run(ground: Ground, plan: Plan, say: Say) -> list[Row]:
    """Blocks of both, in turn."""
    calls, blocks = plan.number(CALLS), max(3, plan.number(BLOCKS))
    with ground.arena() as fenced, ground.arena() as unfenced:
        remove_comparison(unfenced)
        kinds = {
            "fenced": lambda: microseconds(fenced, calls),
            "unfenced": lambda: microseconds(unfenced, calls),
        }
        alternated(2, kinds, lambda _: None)  # the first calls of a session plan
        seen = alternated(blocks, kinds, lambda _: None)
    us = medians(seen)
    # Paired, since neighbours in time share the machine's mood.
    pairs = zip(seen["fenced"], seen["unfenced"], strict=True)
    percent = 100 * (statistics.median(a / b for a, b in pairs) - 1)
    say(f"  {us['fenced']:.2f} and, without, {us['unfenced']:.2f} µs a job: {percent:+.1f} %")
    facts: dict[str, float] = {"calls": calls, "batch": BATCH, "blocks": blocks}
    facts |= {f"{kind}_us_per_job": round(median, 2) for kind, median in us.items()}
    told = f"{us['fenced']:.2f} to {us['unfenced']:.2f} µs a job"
    return [Row("fence", "what the fence adds to swap", percent, "%", Bar(most=5), facts, told)]


def remove_comparison(arena: Arena) -> None:
    """`complete` without its fence; an error if it is not there to be removed, just once."""
    text = arena.value(
        "select pg_get_functiondef(p.oid) from pg_proc p "
        "where p.proname = 'complete' and p.pronamespace = '{schema}'::regnamespace"
    )
    assert text.count(COMPARISON) == 1, "the fence of complete is not where it was"
    arena.conn.execute(sql.SQL(text.replace(COMPARISON, "")))


def microseconds(arena: Arena, calls: int) -> float:
    """Microseconds a job, to claim and to complete."""
    jobs = calls * BATCH
    arena.empty()
    arena.enqueue(jobs)
    arena.conn.execute("vacuum analyze")
    arena.run(LOOP, calls=calls, batch=BATCH)
    left = arena.value(
        "select (select count(*) from {schema}.ready) + count(*) from {schema}.lease"
    )
    assert left == 0, f"{left} jobs are left"
    return float(arena.value("select current_setting('bench.seconds')")) / jobs * 1e6
