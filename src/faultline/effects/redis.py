"""One Redis command, unless a later attempt of this job has been at its key.

    fenced_command(client, ctx, "SET", "report:7", text)            # redis.Redis, RedisCluster
    await afenced_command(client, ctx, "SET", "report:7", text)     # redis.asyncio

The highest token seen is kept beside the key, in the same slot of a cluster. A script compares it,
raises it and runs the command in one go, so nothing comes in between. A read raises it as well:
reading first shuts out whatever attempt came before.

The fence is forgotten `ttl_seconds` after the last command that passed it, and by whatever else
makes Redis forget: FLUSHDB, an eviction, a failover to a replica that had not got it yet.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from faultline.errors import StaleLease

if TYPE_CHECKING:
    from faultline.context import Context

TTL_SECONDS = 30 * 24 * 3600

# Compared as text of 19 digits: numbers are doubles in Lua, which hold tokens only as long as these
# stay below 2^53. The fence is raised before the command, which may fail: a script is not undone,
# and the token has been seen all the same.
_SCRIPT = """
local seen = redis.call('GET', KEYS[2])
if seen and seen > ARGV[1] then return {0, seen} end
redis.call('SET', KEYS[2], ARGV[1], 'EX', ARGV[2])
return {1, redis.call(ARGV[3], KEYS[1], unpack(ARGV, 4))}
"""

# What a cluster hashes instead of the key: the first pair of braces, unless it is empty.
_HASH_TAG = re.compile(rb"[^{]*\{([^}]+)\}", re.DOTALL)


def fenced_command(
    client: Any,
    ctx: Context,
    command: str,
    key: str | bytes,
    *arguments: Any,
    ttl_seconds: int = TTL_SECONDS,
) -> Any:
    """Run it and give the server's answer, as a script gives it; or raise StaleLease.

    For commands whose first argument is their only key. An answer that is a whole number comes
    through Lua, and is exact up to 2^53.
    """
    return _answer(ctx, client.eval(*_script(ctx, command, key, arguments, ttl_seconds)))


async def afenced_command(
    client: Any,
    ctx: Context,
    command: str,
    key: str | bytes,
    *arguments: Any,
    ttl_seconds: int = TTL_SECONDS,
) -> Any:
    """As `fenced_command`, for a client of asyncio."""
    return _answer(ctx, await client.eval(*_script(ctx, command, key, arguments, ttl_seconds)))


def _script(
    ctx: Context, command: str, key: str | bytes, arguments: tuple[Any, ...], ttl_seconds: int
) -> tuple[Any, ...]:
    token = f"{ctx.token:019d}"
    return (_SCRIPT, 2, key, _fence_key(ctx, key), token, ttl_seconds, command, *arguments)


def _fence_key(ctx: Context, key: str | bytes) -> bytes:
    """In the slot of the key. Keys with one hash tag share a fence, which refuses no more than it
    should: who is late at one of them is late at all."""
    raw = key.encode() if isinstance(key, str) else bytes(key)
    tag = _HASH_TAG.match(raw)
    return b"faultline:{%b}:%b" % (tag[1] if tag else raw, str(ctx.job_id).encode())


def _answer(ctx: Context, reply: Any) -> Any:
    passed, answer = reply
    if not passed:
        raise StaleLease(ctx.job_id, ctx.token, int(answer), "token_mismatch", "redis")
    return answer
