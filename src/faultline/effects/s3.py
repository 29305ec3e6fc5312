"""An object in S3, put only if no later attempt of this job has put it.

    fenced_put(client, ctx, Bucket="reports", Key="7.pdf", Body=pdf)          # client: boto3's

    head → refuse, if this job's higher token is there → put, if the object is still what was seen

The object's metadata say whose it is, and the put is conditional: If-Match with the tag that was
seen, or If-None-Match where there was none. Whoever loses that race looks again.

An object of another job, or of nobody, is left alone unless `overwrite`: tokens of different jobs
cannot be compared, so from then on a late put of the other job would not be noticed.

A tag is a hash of the bytes. If the object comes back to the very bytes that a stalled attempt saw
between its head and its put, that put passes. Let the bytes contain something of the attempt, or
give each attempt a key of its own and commit in the database which one counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline.errors import InvalidArgument, StaleLease

if TYPE_CHECKING:
    from faultline.context import Context

LOOKS = 10  # each that fails is a put of somebody else's, so two attempts need two or three
JOB, TOKEN = "faultline-job", "faultline-token"

# What a head has to be told as well.
_OF_BOTH = {
    *("Bucket", "Key", "ExpectedBucketOwner", "RequestPayer"),
    *("SSECustomerAlgorithm", "SSECustomerKey", "SSECustomerKeyMD5"),
}
_MISSING, _CONFLICT, _FAILED_CONDITION = 404, 409, 412


def fenced_put(client: Any, ctx: Context, *, overwrite: bool = False, **request: Any) -> Any:
    """`client.put_object(**request)` and its answer; or raise StaleLease.

    The same token may put again: that is how an attempt repeats a put whose answer was lost.
    """
    body: Any = request.get("Body")
    start = body.tell() if hasattr(body, "seek") else None
    mark = {JOB: str(ctx.job_id), TOKEN: str(ctx.token)}
    request["Metadata"] = {**request.get("Metadata", {}), **mark}
    looks = 0
    while True:
        looks += 1
        condition = _condition(ctx, _head(client, request), overwrite)
        if start is not None:
            body.seek(start)  # the put before has read it
        try:
            return client.put_object(**request, **condition)
        except client.exceptions.ClientError as error:
            changed = _status(error) in (_CONFLICT, _FAILED_CONDITION)
            deleted = _status(error) == _MISSING and "IfMatch" in condition
            if looks == LOOKS or not (changed or deleted):
                raise


def _head(client: Any, request: dict[str, Any]) -> Any:
    try:
        return client.head_object(**{name: request[name] for name in _OF_BOTH & request.keys()})
    except client.exceptions.ClientError as error:
        if _status(error) == _MISSING:
            return None
        raise


def _condition(ctx: Context, seen: Any, overwrite: bool) -> dict[str, str]:
    """Under which this attempt may put, after what was seen."""
    if seen is None:
        return {"IfNoneMatch": "*"}
    owner = seen["Metadata"].get(JOB)
    if owner == str(ctx.job_id):
        token = int(seen["Metadata"][TOKEN])
        if token > ctx.token:
            raise StaleLease(ctx.job_id, ctx.token, token, "token_mismatch", "s3")
    elif not overwrite:
        raise InvalidArgument(
            f"the object is there already, of {f'job {owner}' if owner else 'unknown origin'}: "
            "give each job a key of its own, or overwrite=True if the last one may win"
        )
    return {"IfMatch": seen["ETag"]}


def _status(error: Any) -> int:
    return int(error.response["ResponseMetadata"]["HTTPStatusCode"])
