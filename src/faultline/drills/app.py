"""The app whose workers are hit: handlers that write effects, in every way that Faultline fences.

A job's arguments say where the arena's files are (`folder`), at which point its first attempt is
held (`hold`) and which effects it is to leave (`effects`). Each handler says in the history what it
sets out to write and what it is told, and none of them listens when it is told to stop.

    points: begin · written (in the transaction) · committed (acknowledged, the job not yet over)
            again: where the successor begins, of an attempt that is held at one of the others
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Self

import psycopg

from faultline.app import App
from faultline.context import Context
from faultline.drills.effects import INSERT, INSERT_GUARDED, WRITTEN
from faultline.drills.history import DatabaseClock, Doing, History, Phase
from faultline.drills.points import Points
from faultline.errors import CommitUnknown, FaultlineError
from faultline.retry import Backoff

SOON = Backoff(base=0, cap=0)
HISTORY = "history.jsonl"

app = App()
# A slow machine may lose a lease of one second again and again: that is no poison.
task = app.task(retry=SOON, max_attempts=50, max_crashes=50)


@cache
def _clock() -> DatabaseClock:
    with app.connect() as conn:
        return DatabaseClock(conn)


@cache
def _history(folder: str) -> History:
    return History(Path(folder) / HISTORY, lambda: _clock().now())


class Play:
    """One attempt of one job in the play."""

    def __init__(self, ctx: Context, folder: str, hold: list[str], effects: list[str]) -> None:
        self.ctx = ctx
        self.hold = hold
        self.effects = effects
        self.job_id, self.token = str(ctx.job_id), ctx.token
        self._history = _history(folder)
        self._points = Points(Path(folder))
        self._history.add("execute", "invoke", self.job_id, token=self.token)

    def is_first(self, name: str) -> bool:
        """Whether no attempt of this job was here before."""
        return self._points.arrive(self.job_id, name, self.token)

    def point(self, name: str) -> bool:
        """Wait here, if this is where this job is held and nobody was here before."""
        held = name in self.hold and self._points.arrive(self.job_id, name, self.token)
        if held:
            self._points.wait(self.job_id, name)
        return held

    async def apoint(self, name: str) -> None:
        """The same in an event loop."""
        if name in self.hold and self._points.arrive(self.job_id, name, self.token):
            await self._points.wait_deaf(self.job_id, name)

    def missing(self) -> list[str]:
        """The effects that are still to be written, for a handler whose job's success is another
        commit. To be asked at the very beginning: whatever an earlier attempt has written, or ever
        will, was committed before this one was leased the job."""
        with app.connect() as conn:
            there = {row[0] for row in conn.execute(WRITTEN, (self.ctx.job_id,))}
        return [effect for effect in self.effects if effect not in there]

    def begin(self) -> None:
        """Where every handler begins, and where a successor may be held as well."""
        self.point("begin")
        if self._is_successor():
            self.point("again")

    async def abegin(self) -> None:
        """The same in an event loop."""
        await self.apoint("begin")
        if self._is_successor():
            await self.apoint("again")

    def _is_successor(self) -> bool:
        """Whether another attempt of this job was held before."""
        held = (self._points.arrival(self.job_id, p) for p in self.hold if p != "again")
        return any(arrival is not None and arrival.token != self.token for arrival in held)

    def note(self, name: str, text: str) -> None:
        """Leave a note for the driver."""
        self._points.leave_note(self.job_id, name, text)

    def row(self, effect: str) -> tuple[Any, ...]:
        """What INSERT takes."""
        return (self.ctx.job_id, self.token, effect, "committing" in self.hold)

    def writing(self, *effects: str, completes: bool = False, fenced: bool = True) -> Writing:
        """The block commits these effects, with or without the job's success, or says why not."""
        return Writing(self, effects, completes, fenced)

    def tell(self, phase: Phase, effect: str | None, why: str | None = None) -> None:
        """What came of writing an effect; without one, of completing the job."""
        doing: Doing = "complete" if effect is None else "write"
        self._history.add(doing, phase, self.job_id, token=self.token, effect=effect, why=why)


class Writing:
    """A block that commits effects: what it set out to do, and what it was told."""

    def __init__(self, play: Play, effects: tuple[str, ...], completes: bool, fenced: bool) -> None:
        self._play = play
        self._parts: list[str | None] = [*effects, *([None] if completes else [])]
        self._fenced = fenced
        self._begun = False

    def begin(self) -> None:
        """From here on something may be written."""
        self._begun = True
        for part in self._parts:
            self._play.tell("invoke", part)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if error is not None and not self._begun:
            self.begin()  # refused at the door, or it never got there
        if self._begun:
            phase: Phase = "ok" if error is None else self._outcome(error)
            for part in self._parts:
                self._play.tell(phase, part, None if error is None else type(error).__name__)

    def _outcome(self, error: BaseException) -> Phase:
        """What is known of a write that ended so. A fenced block says CommitUnknown if it does not
        know, and any other error means that nothing was committed."""
        if isinstance(error, CommitUnknown | asyncio.CancelledError):
            return "unknown"
        if isinstance(error, psycopg.OperationalError) and not self._fenced:
            return "unknown"
        return "fail" if isinstance(error, psycopg.Error | FaultlineError) else "unknown"


# ── one commit, which ends the job ───────────────────────────────────────────────────────────────


@task
def pay(ctx: Context, folder: str, hold: list[str], effects: list[str]) -> None:
    """All effects, and the job's success, in one fenced transaction."""
    play = Play(ctx, folder, hold, effects)
    play.begin()
    with play.writing(*effects, completes=True) as writing, ctx.transaction() as tx:
        writing.begin()
        for effect in effects:
            tx.execute(INSERT, play.row(effect))
            play.point("written")  # of two effects: between them, a partial write
        tx.complete({"paid": len(effects)})
    play.point("committed")


@task
async def pay_async(ctx: Context, folder: str, hold: list[str], effects: list[str]) -> None:
    """The same in an event loop."""
    play = Play(ctx, folder, hold, effects)
    await play.abegin()
    with play.writing(*effects, completes=True) as writing:
        async with ctx.transaction() as tx:
            writing.begin()
            for effect in effects:
                await tx.execute(INSERT, play.row(effect))
                await play.apoint("written")
            tx.complete({"paid": len(effects)})
    await play.apoint("committed")


# ── a commit of the handler's own, and then the end of the job ───────────────────────────────────


@task
def pay_in_steps(ctx: Context, folder: str, hold: list[str], effects: list[str]) -> None:
    """Each effect is a step: a fenced commit of its own, once for the job over all attempts."""
    play = Play(ctx, folder, hold, effects)
    play.begin()
    for effect in effects:
        with play.writing(effect) as writing, ctx.transaction(step=effect) as tx:
            if not tx.done:
                writing.begin()
                tx.execute(INSERT, play.row(effect))
                play.point("written")
                tx.record({"paid": effect})
        play.point("committed")


@task
def pay_in_a_block(ctx: Context, folder: str, hold: list[str], effects: list[str]) -> None:
    """A fenced transaction that neither completes the job nor is a step."""
    play = Play(ctx, folder, hold, effects)
    missing = play.missing()
    play.begin()
    with play.writing(*missing) as writing, ctx.transaction() as tx:
        writing.begin()
        for effect in missing:
            tx.execute(INSERT, play.row(effect))
            play.point("written")
    play.point("committed")


# ── on a connection of the handler's own ─────────────────────────────────────────────────────────


@task
def pay_through_the_gate(ctx: Context, folder: str, hold: list[str], effects: list[str]) -> None:
    """With the write gate last."""
    _write_myself(Play(ctx, folder, hold, effects), INSERT, last=ctx.assert_fence)


@task
def pay_into_a_guarded_table(
    ctx: Context, folder: str, hold: list[str], effects: list[str]
) -> None:
    """With a fence opened first, without which the table takes nothing."""
    _write_myself(Play(ctx, folder, hold, effects), INSERT_GUARDED, first=ctx.fence)


def _write_myself(
    play: Play,
    insert: str,
    *,
    first: Callable[[Any], None] = lambda _: None,
    last: Callable[[Any], None] = lambda _: None,
) -> None:
    missing = play.missing()
    play.begin()
    with (
        play.writing(*missing, fenced=False) as writing,
        app.connect(autocommit=False) as conn,
    ):
        first(conn)
        writing.begin()
        for effect in missing:
            conn.execute(insert, play.row(effect))
            play.point("written")
        last(conn)
        conn.commit()  # here, so that nothing is called acknowledged before it is
    play.point("committed")


# ── handlers that do harm ────────────────────────────────────────────────────────────────────────


@task
def stumble(ctx: Context, folder: str, hold: list[str], effects: list[str]) -> None:
    """Its first attempt fails; the others pay."""
    play = Play(ctx, folder, hold, effects)
    if play.is_first("stumbled"):
        raise RuntimeError("the first attempt of this job fails")
    play.begin()
    with play.writing(*effects, completes=True) as writing, ctx.transaction() as tx:
        writing.begin()
        for effect in effects:
            tx.execute(INSERT, play.row(effect))
        tx.complete()


@task
async def block(ctx: Context, folder: str, hold: list[str], effects: list[str]) -> None:
    """Blocks the event loop of its worker until it is let go, then pays."""
    play = Play(ctx, folder, hold, effects)
    began = time.monotonic()
    turn = asyncio.create_task(_turn())  # of this loop: it comes when nothing blocks it any more
    if play.point("begin"):  # not awaited
        play.note("blocked", str(await turn - began))
    with play.writing(*effects, completes=True) as writing:
        async with ctx.transaction() as tx:
            writing.begin()
            for effect in effects:
                await tx.execute(INSERT, play.row(effect))
            tx.complete()


async def _turn() -> float:
    return time.monotonic()


@app.task(retry=SOON, max_crashes=3)
def poison(ctx: Context, folder: str, hold: list[str], effects: list[str]) -> None:
    """Kills the process that runs it, every time."""
    Play(ctx, folder, hold, effects)
    os.kill(os.getpid(), signal.SIGKILL)
