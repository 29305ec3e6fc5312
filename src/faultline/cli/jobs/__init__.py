"""`faultline jobs`: look at jobs, and change what becomes of them.

look     list, show                 questions to the views
change   retry, cancel, requeue     one by one or in bulk, through the verbs
story    what happened to one job, in order; drawing: along a time axis
"""

from __future__ import annotations

import typer

from faultline.cli.jobs import change, look

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Look at jobs; retry, cancel and requeue them.

    \b
    Example:
      faultline jobs list --state failed
      faultline jobs retry --state failed --queue billing
    """,
)
app.command("list")(look.list_jobs)
app.command()(look.show)
app.command()(change.retry)
app.command()(change.cancel)
app.command()(change.requeue)
