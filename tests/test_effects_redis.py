"""Fenced Redis commands, on a real server: late attempts are refused, whatever the order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

from faultline import App, Context, StaleLease
from faultline.effects.redis import TTL_SECONDS, afenced_command, fenced_command
from tests.sinks import HUGE, attempts, needs_redis, race, redis_server
from tests.stage import until

pytestmark = needs_redis


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with redis_server() as url:
        yield url


@pytest.fixture(params=[2, 3], ids=["RESP2", "RESP3"])
def client(url: str, request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(url, protocol=request.param) as client:
        client.flushall()
        yield client


def test_an_attempt_that_was_overtaken_cannot_write(client: redis.Redis) -> None:
    first, second = attempts(1, 2)
    fenced_command(client, first, "SET", "report", "of the first")
    fenced_command(client, second, "SET", "report", "of the second")
    with pytest.raises(StaleLease) as refused:
        fenced_command(client, first, "SET", "report", "late")
    stale = refused.value
    assert (stale.job_id, stale.token, stale.current_token) == (first.job_id, 1, 2)
    assert stale.reason == "token_mismatch"
    assert client.get("report") == b"of the second"


@pytest.mark.parametrize(("low", "high"), [(9, 10), (HUGE, HUGE + 1), (2**40, 2**62 - 1)])
def test_tokens_of_any_size_are_in_order(client: redis.Redis, low: int, high: int) -> None:
    first, second = attempts(low, high)
    fenced_command(client, second, "SET", "report", "new")
    with pytest.raises(StaleLease) as refused:
        fenced_command(client, first, "SET", "report", "late")
    assert refused.value.current_token == high
    fenced_command(client, second, "APPEND", "report", "er")
    assert client.get("report") == b"newer"


def test_a_later_attempt_may_always_write(client: redis.Redis) -> None:
    for ctx in attempts(9, 10, HUGE, HUGE + 1):
        fenced_command(client, ctx, "SET", "report", ctx.token)
        assert client.get("report") == str(ctx.token).encode()


def test_the_same_attempt_may_repeat_itself(client: redis.Redis) -> None:
    [ctx] = attempts(HUGE)
    for _ in range(3):
        fenced_command(client, ctx, "SET", "report", "mine")
    assert client.get("report") == b"mine"


def test_two_jobs_do_not_disturb_each_other(client: redis.Redis) -> None:
    [one], [other] = attempts(1000), attempts(1)
    fenced_command(client, one, "SET", "report", "of one")
    fenced_command(client, other, "SET", "report", "of the other")
    fenced_command(client, one, "APPEND", "report", ", and of one")
    assert client.get("report") == b"of the other, and of one"


def test_a_read_shuts_out_whoever_came_before(client: redis.Redis) -> None:
    first, second = attempts(1, 2)
    fenced_command(client, first, "SET", "report", "of the first")
    assert fenced_command(client, second, "GET", "report") == b"of the first"
    with pytest.raises(StaleLease):
        fenced_command(client, first, "SET", "report", "late")
    with pytest.raises(StaleLease):
        fenced_command(client, first, "DEL", "report")
    assert client.get("report") == b"of the first"


def test_no_lower_token_lands_after_a_higher_one(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        client.flushall()
        [ctx] = attempts(1)
        passed = race(
            lambda ctx: fenced_command(client, ctx, "RPUSH", "log", ctx.token), ctx.job_id, 400
        )
        landed = [int(token) for token in client.lrange("log", 0, -1)]
    assert landed == passed  # in rising order, and the highest is the last
    assert len(landed) > 1


def test_the_answer_is_the_servers(client: redis.Redis) -> None:
    [ctx] = attempts(1)
    assert fenced_command(client, ctx, "SET", "a", "1", "NX") in (b"OK", True)
    assert fenced_command(client, ctx, "SET", "a", "1", "NX") is None
    assert fenced_command(client, ctx, "INCRBY", "a", 41) == 42
    assert fenced_command(client, ctx, "HSET", "h", "field", b"\x00\xff") == 1
    assert fenced_command(client, ctx, "HMGET", "h", "field", "none") == [b"\x00\xff", None]
    assert fenced_command(client, ctx, "GET", "nothing") is None


def test_a_command_that_fails_says_so_and_leaves_the_fence_up(client: redis.Redis) -> None:
    first, second = attempts(1, 2)
    client.set("report", "text")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        fenced_command(client, second, "RPUSH", "report", "x")
    with pytest.raises(StaleLease):
        fenced_command(client, first, "SET", "report", "late")


def test_a_fence_is_forgotten_after_its_time_and_not_before(client: redis.Redis) -> None:
    [ctx] = attempts(1)
    fenced_command(client, ctx, "SET", "report", "x")
    [fence] = client.keys("faultline:*")
    assert TTL_SECONDS - 100 <= client.ttl(fence) <= TTL_SECONDS
    fenced_command(client, ctx, "SET", "report", "x", ttl_seconds=1000)
    assert 900 <= client.ttl(fence) <= 1000
    assert client.ttl("report") == -1  # the value is the user's


def test_clients_that_decode_and_clients_of_asyncio_are_served(url: str) -> None:
    first, second = attempts(HUGE, HUGE + 1)

    async def story() -> None:
        async with redis.asyncio.Redis.from_url(url, decode_responses=True) as client:
            await client.flushall()
            await afenced_command(client, second, "SET", "report", "new")
            with pytest.raises(StaleLease) as refused:
                await afenced_command(client, first, "SET", "report", "late")
            assert refused.value.current_token == HUGE + 1
            assert await afenced_command(client, second, "GET", "report") == "new"

    asyncio.run(story())


# ── clusters ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of one: it has all slots, and is as strict about them as any."""
    with redis_server("--cluster-enabled", "yes") as url:
        with redis.Redis.from_url(url) as one:
            one.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
            until(
                lambda: b"cluster_state:ok" in one.execute_command("CLUSTER", "INFO"), "it serves"
            )
        with redis.RedisCluster.from_url(url) as client:
            yield client


@pytest.mark.parametrize("key", ["report", "report:{7}:x", "{7}", "ü{ü}", b"\xff\x00", "{{7}}"])
def test_the_fence_is_in_the_slot_of_the_key(cluster: Any, key: str | bytes) -> None:
    first, second = attempts(1, 2)
    fenced_command(cluster, second, "SET", key, "new")
    with pytest.raises(StaleLease):
        fenced_command(cluster, first, "SET", key, "late")
    assert cluster.get(key) == b"new"


def test_a_key_whose_slot_cannot_be_shared_is_refused_by_a_cluster(cluster: Any) -> None:
    [ctx] = attempts(1)
    with pytest.raises(redis.exceptions.RedisClusterException, match="slot"):
        fenced_command(cluster, ctx, "SET", "a{}", "unfenced?")
    assert cluster.get("a{}") is None


# ── a job ────────────────────────────────────────────────────────────────────────────────────────


def test_a_handler_that_comes_back_from_a_stall_is_refused_and_that_is_recorded(
    server_url: str, client: redis.Redis
) -> None:
    app = App()
    with app.testing(server_url) as testing:

        @app.task
        def publish(ctx: Context) -> str:
            if ctx.token == 1:  # stalls here, and another worker does the job
                testing.expire_lease(ctx.job_id)
                assert testing.run(ctx.job_id).state == "succeeded"
            fenced_command(client, ctx, "SET", "report", f"of token {ctx.token}")
            return f"published under token {ctx.token}"

        job = publish.enqueue()
        status = testing.run(job)
        assert (status.state, status.result) == ("succeeded", "published under token 2")
        assert client.get("report") == b"of token 2"
        [refusal] = testing.refusals(job)
        assert (refusal["stale_token"], refusal["current_token"]) == (1, 2)
        assert refusal["operation"] == "redis"
        assert testing.connection.execute("select * from faultline.violations").fetchall() == []
