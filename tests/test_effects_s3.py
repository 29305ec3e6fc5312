"""Fenced puts, on a real S3 server with boto3: looked at, compared, and put only if unchanged.

What happens between the look and the put is played by a hook of the client, just before the put.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from faultline import App, Context, InvalidArgument, StaleLease
from faultline.drills.proxy import Proxy
from faultline.effects.s3 import LOOKS, fenced_put
from tests.sinks import HUGE, attempts, race, s3_server

boto3 = pytest.importorskip("boto3")
botocore = pytest.importorskip("botocore")
pytest.importorskip("moto")
BUCKET = "reports"


def connect(url: str, **config: Any) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=boto3.session.Config(s3={"addressing_style": "path"}, **config),
    )


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with s3_server() as url:
        connect(url).create_bucket(Bucket=BUCKET)
        connect(url).put_bucket_versioning(
            Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"}
        )
        yield url


@pytest.fixture
def client(url: str) -> Any:
    """A client of the test's own: hooks stay with it."""
    return connect(url)


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return request.node.name


def put(client: Any, ctx: Context, key: str, body: Any, **more: Any) -> Any:
    return fenced_put(client, ctx, Bucket=BUCKET, Key=key, Body=body, **more)


def body(client: Any, key: str) -> bytes:
    return client.get_object(Bucket=BUCKET, Key=key)["Body"].read()


def versions(client: Any, key: str) -> list[int]:
    """The tokens of all objects that were ever there, oldest first."""
    found = client.list_object_versions(Bucket=BUCKET, Prefix=key)["Versions"]
    return [
        int(
            client.head_object(Bucket=BUCKET, Key=key, VersionId=version["VersionId"])["Metadata"][
                "faultline-token"
            ]
        )
        for version in reversed(found)
    ]


def before_put(client: Any, happens: Callable[[int], None]) -> None:
    """This happens between each look and its put; told which one it is, from 1 on."""
    count = 0

    def hook(**_: Any) -> None:
        nonlocal count
        count += 1
        happens(count)

    client.meta.events.register("before-call.s3.PutObject", hook)


# ── the server ───────────────────────────────────────────────────────────────────────────────────


def test_the_server_under_test_really_refuses(client: Any, key: str) -> None:
    def status(**condition: str) -> int:
        try:
            answer = client.put_object(Bucket=BUCKET, Key=key, Body=b"x", **condition)
        except client.exceptions.ClientError as error:
            answer = error.response
        return answer["ResponseMetadata"]["HTTPStatusCode"]

    assert status(IfMatch='"9dd4e461268c8034f5c8564e155c67a6"') == 404
    assert status(IfNoneMatch="*") == 200
    assert status(IfNoneMatch="*") == 412
    assert status(IfMatch='"00000000000000000000000000000000"') == 412
    assert status(IfMatch='"9dd4e461268c8034f5c8564e155c67a6"') == 200


# ── one after the other ──────────────────────────────────────────────────────────────────────────


def test_an_attempt_that_was_overtaken_cannot_put(client: Any, key: str) -> None:
    first, second = attempts(1, 2)
    put(client, first, key, b"of the first")
    answer = put(client, second, key, b"of the second", Metadata={"author": "me"})
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 200
    with pytest.raises(StaleLease) as refused:
        put(client, first, key, b"late")
    stale = refused.value
    assert (stale.job_id, stale.token, stale.current_token) == (first.job_id, 1, 2)
    assert stale.reason == "token_mismatch"
    assert body(client, key) == b"of the second"
    assert client.head_object(Bucket=BUCKET, Key=key)["Metadata"]["author"] == "me"


def test_tokens_of_any_size_are_in_order(client: Any, key: str) -> None:
    tokens = (9, 10, HUGE, HUGE + 1, 2**62 - 1)
    for low, high in zip(attempts(*tokens), attempts(*tokens)[1:], strict=False):
        first, second = Context(high.job_id, low.token), high
        place = f"{key}/{high.token}"
        put(client, second, place, b"new")
        with pytest.raises(StaleLease) as refused:
            put(client, first, place, b"late")
        assert refused.value.current_token == second.token
        assert body(client, place) == b"new"


def test_the_same_attempt_may_put_again(client: Any, key: str) -> None:
    [ctx] = attempts(HUGE)
    put(client, ctx, key, b"once")
    put(client, ctx, key, b"once")
    put(client, ctx, key, b"something else")
    assert body(client, key) == b"something else"


def test_an_object_of_another_job_is_left_alone_unless_it_may_be_overwritten(
    client: Any, key: str
) -> None:
    [one], [other] = attempts(1000), attempts(1)
    put(client, one, key, b"of one")
    with pytest.raises(InvalidArgument, match=str(one.job_id)):
        put(client, other, key, b"of the other")
    assert body(client, key) == b"of one"
    put(client, other, key, b"of the other", overwrite=True)
    assert body(client, key) == b"of the other"


def test_an_object_of_unknown_origin_is_left_alone_as_well(client: Any, key: str) -> None:
    [ctx] = attempts(1)
    client.put_object(Bucket=BUCKET, Key=key, Body=b"by hand")
    with pytest.raises(InvalidArgument, match="unknown origin"):
        put(client, ctx, key, b"mine")
    put(client, ctx, key, b"mine", overwrite=True)
    assert body(client, key) == b"mine"


def test_what_is_wrong_with_the_request_itself_is_said_at_once(client: Any, key: str) -> None:
    [ctx] = attempts(1)
    looks: list[int] = []
    before_put(client, looks.append)
    with pytest.raises(client.exceptions.ClientError, match="NoSuchBucket"):
        fenced_put(client, ctx, Bucket="no-such-bucket", Key=key, Body=b"x")
    assert looks == [1]


# ── at the same time ─────────────────────────────────────────────────────────────────────────────


def test_an_attempt_that_stalls_between_its_look_and_its_first_put_is_refused(
    client: Any, url: str, key: str
) -> None:
    first, second = attempts(1, 2)
    before_put(client, lambda _: put(connect(url), second, key, b"new"))
    with pytest.raises(StaleLease):
        put(client, first, key, b"late")
    assert body(client, key) == b"new"
    assert versions(client, key) == [2]


def test_an_attempt_that_stalls_between_its_look_and_a_later_put_is_refused(
    client: Any, url: str, key: str
) -> None:
    first, second = attempts(1, 2)
    put(client, first, key, b"old")
    before_put(client, lambda _: put(connect(url), second, key, b"new"))
    with pytest.raises(StaleLease):
        put(client, first, key, b"late")
    assert body(client, key) == b"new"
    assert versions(client, key) == [1, 2]


def test_a_job_does_not_overwrite_what_another_one_put_meanwhile(
    client: Any, url: str, key: str
) -> None:
    [one], [other] = attempts(1), attempts(1)
    before_put(client, lambda _: put(connect(url), other, key, b"of the other"))
    with pytest.raises(InvalidArgument):
        put(client, one, key, b"of one")
    assert body(client, key) == b"of the other"


@pytest.mark.parametrize("is_file", [False, True], ids=["bytes", "file"])
def test_who_loses_a_race_to_an_earlier_attempt_looks_again_and_puts_the_whole_body(
    client: Any, url: str, key: str, is_file: bool
) -> None:
    first, second = attempts(1, 2)
    file = io.BytesIO(b"header|new")
    file.seek(7)
    before_put(client, lambda look: put(connect(url), first, key, b"old") if look == 1 else None)
    put(client, second, key, file if is_file else b"new")
    assert body(client, key) == b"new"
    assert versions(client, key) == [1, 2]


def test_an_object_that_is_deleted_meanwhile_is_put_anew(client: Any, url: str, key: str) -> None:
    [ctx] = attempts(1)
    put(client, ctx, key, b"old")
    before_put(
        client,
        lambda look: connect(url).delete_object(Bucket=BUCKET, Key=key) if look == 1 else None,
    )
    put(client, ctx, key, b"new")
    assert body(client, key) == b"new"


def test_looking_again_has_an_end(client: Any, url: str, key: str) -> None:
    [ctx] = attempts(1)
    looks: list[int] = []

    def overtake(look: int) -> None:
        looks.append(look)
        if look <= LOOKS:
            put(connect(url), ctx, key, f"again {look}".encode())

    before_put(client, overtake)
    with pytest.raises(client.exceptions.ClientError, match="PreconditionFailed"):
        put(client, ctx, key, b"never")
    assert looks == list(range(1, LOOKS + 1))


def test_no_lower_token_lands_after_a_higher_one(client: Any, key: str) -> None:
    [ctx] = attempts(1)

    def attempt(ctx: Context) -> None:
        while True:
            try:
                put(client, ctx, key, str(ctx.token).encode())
                return
            except client.exceptions.ClientError:
                continue  # others were quicker, again and again

    passed = race(attempt, ctx.job_id, 64)
    assert versions(client, key) == passed
    assert body(client, key) == str(passed[-1]).encode()


@pytest.mark.parametrize("retries", [0, 3], ids=["the caller tries again", "boto3 tries again"])
def test_a_put_whose_answer_is_lost_can_be_repeated(url: str, key: str, retries: int) -> None:
    [ctx] = attempts(HUGE)
    with Proxy(url) as proxy:
        address = f"http://127.0.0.1:{urlsplit(proxy.url).port}"
        client = connect(address, retries={"total_max_attempts": 1 + retries})
        before_put(client, lambda look: proxy.lose_the_answer_with("200 OK") if look == 1 else None)
        if not retries:
            with pytest.raises(botocore.exceptions.ConnectionClosedError):
                put(client, ctx, key, b"mine")
        put(client, ctx, key, b"mine")
        assert proxy.lost.is_set()
        client.close()
    assert body(connect(url), key) == b"mine"


def test_the_limit_that_the_page_admits_the_same_bytes_have_the_same_tag(
    client: Any, url: str, key: str
) -> None:
    """If this fails, the server has tags that are better than S3's: tell the readers."""
    first, second = attempts(1, 2)
    put(client, first, key, b"the same")
    before_put(client, lambda _: put(connect(url), second, key, b"the same"))
    put(client, first, key, b"late")
    assert body(client, key) == b"late"


# ── a job ────────────────────────────────────────────────────────────────────────────────────────


def test_a_handler_that_was_taken_over_is_refused_and_that_is_recorded(
    server_url: str, client: Any, key: str
) -> None:
    app = App()
    with app.testing(server_url) as testing:

        @app.task
        def publish(ctx: Context) -> None:
            put(client, ctx, key, b"of the first")
            successor = Context(ctx.job_id, testing.take_over(ctx.job_id))
            put(client, successor, key, b"of the second")
            put(client, ctx, key, b"late")

        job = publish.enqueue()
        assert testing.run(job).state == "running"  # in the other one's hands
        assert body(client, key) == b"of the second"
        [refusal] = testing.refusals(job)
        assert (refusal["stale_token"], refusal["current_token"]) == (1, 2)
        assert refusal["operation"] == "s3"
        assert testing.connection.execute("select * from faultline.violations").fetchall() == []
