"""The pytest plugin: a database per test, on a server that is started when a test first asks.

    def test_an_order_is_charged(faultline_testing):
        testing = faultline_testing(app)          # app.testing() on this test's database
        job = charge.enqueue(order_id=7)
        assert testing.run(job).state == "succeeded"

--faultline-url (or `faultline_url` in the ini file) names a server to use instead of the embedded
one. With pytest-xdist each worker process has a server of its own, or databases of its own on the
one that was named. Whoever uses no fixture pays for nothing: all imports are inside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from faultline.app import App
    from faultline.testing import Testing

_WHAT = "a PostgreSQL to make test databases on, as a superuser; default: an embedded one"


def pytest_addoption(parser: pytest.Parser) -> None:
    """How the tests are told of a server."""
    parser.getgroup("faultline").addoption("--faultline-url", metavar="URL", help=_WHAT)
    parser.addini("faultline_url", _WHAT, default="")


@pytest.fixture(scope="session")
def faultline_server(request: pytest.FixtureRequest) -> str:
    """The URL of the server that the tests use."""
    named = request.config.getoption("faultline_url") or request.config.getini("faultline_url")
    if named:
        return str(named)
    from faultline.testing.databases import embedded_server

    return embedded_server()


@pytest.fixture
def faultline_url(faultline_server: str) -> Iterator[str]:
    """The URL of a database of this test's own, migrated."""
    from faultline.config import Settings
    from faultline.testing.databases import fresh_database

    with fresh_database(faultline_server, Settings.from_environment().schema) as url:
        yield url


@pytest.fixture
def faultline_testing(faultline_url: str) -> Iterator[Callable[..., Testing]]:
    """`faultline_testing(app, inline=False)`: `app.testing()` until this test ends."""
    with ExitStack() as undo:

        def testing(app: App, *, inline: bool = False) -> Testing:
            return undo.enter_context(app.testing(database=faultline_url, inline=inline))

        yield testing
