"""What the comparison of tokens costs: `swap` as it is, against a copy that does not compare.

The copy, `swap_unfenced`, calls a `complete` that has lost its two conditions: that the token is
the caller's, and that the lease has not run out. Both are called in turn, milliseconds apart, on
the same tables, in a loop inside the server, timed by the server's clock: no client and no commit,
whose noise would hide the difference. The figure is the median of the ratios of neighbours; as a
control, the same is done with a copy that does compare, and its figure, which should be nothing, is
given too: so much is noise.
"""

from __future__ import annotations

import json
import statistics

from psycopg import sql

from bench.arena import BATCH, Arena, Ground
from bench.blocks import Say
from bench.plan import Plan
from bench.rows import Bar, Row

BLOCKS = 12
PAIRS = 12  # of calls in a block
COMPARISON = " and l.fencing_token = u.token and l.expires_at > v_now"

LOOP = """do $$
declare
    s record; t timestamptz; v_first boolean; v_ours float8[]; v_others float8[];
    v_lanes integer[] := array(select lane from {schema}.lane);
begin
    select * into strict s
      from {schema}.swap('{{}}', '{{}}', null, 'fence', v_lanes, {batch}, null);
    for i in 1..{pairs} loop
        foreach v_first in array array[i % 2 = 0, i % 2 = 1] loop
            t := clock_timestamp();
            if v_first then
                select * into strict s
                  from {schema}.swap(s.claimed_ids, s.claimed_tokens, null, 'fence', v_lanes,
                                     {batch}, null);
                v_ours := v_ours || extract(epoch from clock_timestamp() - t)::float8;
            else
                select * into strict s
                  from {schema}.{other}(s.claimed_ids, s.claimed_tokens, null, 'fence', v_lanes,
                                        {batch}, null);
                v_others := v_others || extract(epoch from clock_timestamp() - t)::float8;
            end if;
        end loop;
    end loop;
    perform {schema}.complete(s.claimed_ids, s.claimed_tokens);
    perform set_config('bench.seconds', jsonb_build_array(v_ours, v_others)::text, false);
end $$"""


def run(ground: Ground, plan: Plan, say: Say) -> list[Row]:
    """Many pairs, and as many of the control."""
    pairs, blocks = max(2, plan.number(PAIRS)), max(2, plan.number(BLOCKS))
    with ground.arena() as arena:
        copy(arena, "compared", COMPARISON)
        copy(arena, "unfenced", "")
        seen: dict[str, list[tuple[float, float]]] = {"swap_unfenced": [], "swap_compared": []}
        for number in range(blocks + 1):
            for other, found in seen.items():
                measured = block(arena, other, pairs)
                found += measured if number else []  # the first calls of a session plan
    percent, control = (100 * (statistics.median(a / b for a, b in x) - 1) for x in seen.values())
    us = [1e6 / BATCH * statistics.median(x) for x in zip(*seen["swap_unfenced"], strict=True)]
    told = f"{us[0]:.2f} to {us[1]:.2f} µs a job; noise {control:+.1f} %"
    say(f"  {percent:+.1f} %: {told}")
    facts = {"pairs": pairs * blocks, "batch": BATCH, "control_percent": round(control, 2)}
    return [Row("fence", "what the fence adds to swap", percent, "%", Bar(most=5), facts, told)]


def copy(arena: Arena, name: str, comparison: str) -> None:
    """`swap_NAME` with a `complete_NAME` of its own that compares so."""
    for verb in ("complete", "swap"):
        text = arena.value(
            "select pg_get_functiondef(p.oid) from pg_proc p "
            "where p.proname = %s and p.pronamespace = '{schema}'::regnamespace",
            verb,
        )
        if verb == "complete":
            assert text.count(COMPARISON) == 1, "the fence of complete is not where it was"
            text = text.replace(COMPARISON, comparison)
        for called in ("complete", "swap"):
            text = text.replace(f"{called}(", f"{called}_{name}(")
            text = text.replace(f"{called}.", f"{called}_{name}.")
        arena.conn.execute(sql.SQL(text))


def block(arena: Arena, other: str, pairs: int) -> list[tuple[float, float]]:
    """Seconds of each call of swap, and of its neighbour's."""
    arena.empty()
    arena.enqueue((2 * pairs + 1) * BATCH)
    arena.conn.execute("vacuum analyze")
    arena.run(LOOP, other=other, pairs=pairs, batch=BATCH)
    left = arena.value(
        "select (select count(*) from {schema}.ready) + count(*) from {schema}.lease"
    )
    assert left == 0, f"{left} jobs are left"
    ours, others = json.loads(arena.value("select current_setting('bench.seconds')"))
    return list(zip(ours, others, strict=True))
