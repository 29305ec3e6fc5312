"""`faultline top`: the installation in a terminal, looked at once a second.

look      a frame: everything that is shown, asked for in the roles that the service uses
views     what each view shows of a frame; the same for the screen and for --once
acting    retry and cancel, for one job
screen    the screen, with Textual (the extra `tui`); imported only when it is wanted
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from faultline.cli import options
from faultline.cli.display import print_json
from faultline.cli.extras import not_installed

if TYPE_CHECKING:
    from faultline.cli.top.look import Frame

Once = Annotated[bool, typer.Option("--once", help="Print one frame as text, and end.")]


def top(once: Once = False, as_json: options.AsJson = False) -> None:
    """Watch it run: lease risk, throughput, queues, leases, workers, refused writes.

    Needs the extra tui (Textual), except with --once and --json, which look for a second, print
    what there is, and end. Reads as the role reader; retry (r) and cancel (c) are asked for as
    operator, after a question.

    \b
    Example:
      faultline top
      faultline top --once
      faultline top --json | jq .risk.stale_risk
    """
    if not (once or as_json) and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise typer.BadParameter("a screen needs a terminal: --once prints, --json too")
    from faultline.app import App
    from faultline.cli.top.look import LOOK_SECONDS, Looks

    looks = Looks(App())
    try:
        frame = looks.frame()
        if once or as_json:
            time.sleep(LOOK_SECONDS)  # for the rates, which are from one look to another
            frame = looks.frame()
            _print(frame, as_json)
            return
        try:
            from faultline.cli.top.screen import Top
        except ModuleNotFoundError as error:
            raise not_installed(error, "tui", "textual") from error
        Top(looks, frame).run()
    finally:
        looks.close()


def _print(frame: Frame, as_json: bool) -> None:
    if as_json:
        print_json(frame.facts())
    else:
        from faultline.cli.top.views import print_frame

        print_frame(frame)
