"""`faultline api`: jobs over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from faultline.cli.extras import not_installed
from faultline.config import Settings

if TYPE_CHECKING:
    from faultline.app import App

Host = Annotated[
    str,
    typer.Option(metavar="ADDRESS", help="Where to listen; beyond this machine it needs a token."),
]
Grace = Annotated[
    float,
    typer.Option(min=0, metavar="SECONDS", help="How long SIGTERM waits for open requests."),
]


def api(
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="[APP]",
            help="module:attribute of an app whose tasks' defaults and checks are to apply.",
            show_default=False,
        ),
    ] = None,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="Its port.")] = 8000,
    grace_seconds: Grace = 10.0,
) -> None:
    """Serve the HTTP API: enqueue, follow, list, retry and cancel jobs; and what inspector serves.

    FAULTLINE_API_TOKEN is what clients have to send, FAULTLINE_API_READ_TOKEN is enough for those
    that only ask. Without either it listens on this machine only. GET /openapi.json describes it.

    \b
    Example:
      faultline api
      faultline api shop.jobs:app --host 0.0.0.0 --port 8000
      curl -d '{"task": "charge", "payload": {"order_id": 7}}' \\
           -H 'Content-Type: application/json' localhost:8000/jobs
    """
    run(_app(app), host, port, grace_seconds)


def _app(reference: str | None) -> App:
    from faultline.app import App
    from faultline.reference import import_app

    return App() if reference is None else import_app(reference)


def run(app: App, host: str, port: int, grace_seconds: float, **parts: Any) -> None:
    """Serve until asked to stop."""
    try:
        from faultline.service import service
        from faultline.service.serving import require_token, serve
    except ModuleNotFoundError as error:
        raise not_installed(error, "web", "fastapi", "uvicorn", "starlette") from error
    settings = Settings.from_environment()
    token, read_token = settings.api_token, settings.api_read_token
    require_token(host, token is not None or read_token is not None)
    web = service(app, token=token, read_token=read_token, **parts)
    serve(web, host, port, grace_seconds=grace_seconds)
