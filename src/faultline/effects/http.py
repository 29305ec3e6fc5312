"""The headers that let an HTTP service recognise a repeated request, or refuse a late one.

    requests.post(url, json=order, headers=fenced_headers(ctx, "charge"))

    Idempotency-Key: 01a1e1da-c41c-7f17-a3a0-8a32b3b5afca:charge     the same in every attempt
    Fencing-Job: 01a1e1da-c41c-7f17-a3a0-8a32b3b5afca                whose token it is
    Fencing-Token: 2                                                 rises with every claim

The key is for services that answer a repeated request with their first answer; most payment
providers do. The token is for a service of your own, which keeps the highest one for each job and
refuses what is lower; there is no standard for it. It is below 2^53, so a number of JavaScript
holds it exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.errors import InvalidArgument

if TYPE_CHECKING:
    from faultline.context import Context

KEY_LIMIT = 255  # Stripe's; longer ones are refused there, or cut off elsewhere


def fenced_headers(ctx: Context, name: str, *, quoted: bool = False) -> dict[str, str]:
    """The three headers for one request; `name` says which of the job's requests it is.

    The key is bare, as the services that came before the IETF's draft expect it; `quoted` writes
    it as the draft does, as a structured field. Do not change between them for one service: a key
    with quotes may be another key.
    """
    key = ctx.idempotency_key(name)
    if not (key.isascii() and key.isprintable()) or len(key) > KEY_LIMIT:
        raise InvalidArgument(
            f"an idempotency key in a header has at most {KEY_LIMIT} printable ASCII characters, "
            f"this one is {key!r}: choose another name"
        )
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return {
        "Idempotency-Key": f'"{escaped}"' if quoted else key,
        "Fencing-Job": str(ctx.job_id),
        "Fencing-Token": str(ctx.token),
    }
