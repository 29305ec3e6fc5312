"""The playground's app as a user has it who traces: with an SDK that exports over OTLP.

OTEL_EXPORTER_OTLP_ENDPOINT says where to, OTEL_TRACES_SAMPLER what of it.
"""

from __future__ import annotations

import os
from typing import Any

from opentelemetry import baggage, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import Sampler

from faultline import Backoff, Context, Message
from tests.playground import app, hold, write_effect

tracer = trace.get_tracer("shop")


def set_up() -> None:
    resource = Resource.create({"process.pid": os.getpid()})
    sampler = Broken() if "BROKEN_SAMPLER" in os.environ else None
    provider = TracerProvider(sampler, resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


class Broken(Sampler):
    """A user's own code, with a mistake in it."""

    def should_sample(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("a mistake")

    def get_description(self) -> str:
        return "broken"


set_up()


@app.task(queue="shop")
async def greet(name: str) -> str:
    with tracer.start_as_current_span("greeting"):
        return f"hello {name}"


@app.task(queue="shop")
def shout(name: str) -> str:
    with tracer.start_as_current_span("shouting"):
        return name.upper()


@app.task(queue="shop", transactional=True)
def keep(ctx: Context, name: str) -> str:
    ctx.tx.execute("insert into effect values (%s, %s, %s)", (ctx.job_id, ctx.token, name))
    ctx.tx.emit("kept", {"name": name})
    return name


@app.relay("kept")
def tell(message: Message) -> None:
    pass


@app.task(queue="shop", retry=Backoff(base=0.01, cap=0.01))
async def stumble(ctx: Context, secret: str) -> None:
    if ctx.attempt == 1:
        raise ValueError("stumbled")


@app.task(queue="shop")
async def fan_out(names: list[str]) -> None:
    await greet.aenqueue_many({"name": name} for name in names)


@app.task(queue="shop")
def carry(ctx: Context) -> str:
    shout.enqueue(str(baggage.get_baggage("customer")))
    return format(trace.get_current_span().get_span_context().span_id, "016x")


@app.task(queue="shop", lease_seconds=90)
def write_late(ctx: Context) -> None:
    if ctx.token == 1:
        hold(ctx)
        write_effect(ctx, "late")
