"""What a type checker says about a user's tasks: right calls pass, wrong ones are errors.

mypy runs, strictly, over two small modules as users write them. In the one with mistakes every line
marked `# error` must be one, and no other.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

TASKS = """
from __future__ import annotations
from collections.abc import Awaitable
from typing import Any, assert_type
from faultline import App, Backoff, Context, Job, Task

app = App()

@app.task
def resize(path: str, *, width: int = 100) -> int:
    return width

@app.task(queue="billing", max_attempts=5, lease_seconds=30, retry=Backoff(base=2, cap=300))
async def charge(ctx: Context, order_id: int) -> dict[str, bool]:
    return {"ok": ctx.cancelled}

@app.task(name="plain.sync")
def with_context(ctx: Context, order_id: int) -> str:
    return ""

@app.task
async def nothing() -> None: ...

@app.task
def later(seconds: float) -> Awaitable[int]: ...
"""

RIGHT = (
    TASKS
    + """
def use() -> None:
    assert_type(resize.enqueue("cat.png", width=3), Job[int])
    assert_type(resize.enqueue(path="cat.png").result(), int)
    assert_type(charge.enqueue(order_id=7), Job[dict[str, bool]])
    assert_type(charge.options(idempotency_key="k", priority=5).enqueue(7), Job[dict[str, bool]])
    assert_type(with_context.enqueue(7).result(timeout=3), str)
    assert_type(later.enqueue(1).result(), int)
    charge.enqueue_many([{"order_id": 1}, charge.options(priority=5).item(order_id=2)])
    app.enqueue("charge", {"order_id": 7}, delay_seconds=60)
    charge.name, charge.queue, app.tasks["charge"]

async def ause() -> None:
    assert_type(await charge.aenqueue(7), Job[dict[str, bool]])
    assert_type(await (await nothing.aenqueue()).aresult(), None)
    assert_type(await charge.aenqueue_many([{"order_id": 1}]), list[Job[dict[str, bool]]])
"""
)

WRONG = (
    TASKS
    + """
def use() -> None:
    resize.enqueue(7)  # error
    resize.enqueue()  # error
    resize.enqueue("a", 7)  # error
    resize.enqueue("a", widht=7)  # error
    charge.enqueue(order_id="7")  # error
    charge.enqueue(Context, 7)  # error
    charge.options(priority="high").enqueue(7)  # error
    charge.options(colour="red").enqueue(7)  # error
    charge.options(priority=1).enqueue("7")  # error
    charge.options(priority=1).item("7")  # error
    charge.enqueue_many([7])  # error
    app.enqueue("charge", {"order_id": 7}, colour="red")  # error
    x: int = charge.enqueue(7).result()  # error

@app.task(lease="a")  # error
def other() -> None: ...
"""
)


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> str:
    folder = tmp_path_factory.mktemp("typing")
    (folder / "right.py").write_text(RIGHT)
    (folder / "wrong.py").write_text(WRONG)
    cache = request.config.cache.mkdir("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}",
         "--disable-error-code=empty-body", "right.py", "wrong.py"],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def lines(complaints: str, file: str) -> list[int]:
    return sorted({int(n) for n in re.findall(rf"^{file}:(\d+): error:", complaints, re.MULTILINE)})


def test_a_type_checker_has_nothing_against_the_right_calls(complaints: str) -> None:
    assert lines(complaints, "right.py") == [], complaints


def test_a_type_checker_finds_every_wrong_argument_and_option(complaints: str) -> None:
    marked = [n for n, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# error")]
    assert lines(complaints, "wrong.py") == marked, complaints
