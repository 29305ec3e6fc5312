"""`faultline drill`: real faults on real processes, and a checker that says what is left.

On a server that is started for it; or, with --app, on the handlers of an app and a database that is
marked as a drill target. What it takes to play is imported when something is played.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from faultline.cli import options
from faultline.cli.display import Column, print_json, print_table
from faultline.config import Settings

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Prove it: hit real workers with real faults, and check what is left.

    A drill starts a PostgreSQL and workers of its own, kills, stops and cuts them off while they
    work, and has a checker compare what every process was told with what is in the database.

    \b
    Example:
      faultline drill list
      faultline drill run --quick
      faultline drill run takeover crash --each 20
      faultline drill replay takeover-17
    """,
)

Kinds = Annotated[
    list[str] | None, typer.Argument(metavar="[KIND]...", help="Which kinds; default: all.")
]
Quick = Annotated[bool, typer.Option("--quick", help="A few of each kind.")]
Each = Annotated[int | None, typer.Option(metavar="N", min=1, help="So many of each kind.")]
Seed = Annotated[int, typer.Option(metavar="N", min=0, help="The seed of the first.")]
Lanes = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="So many at once of each sort.")
]
Out = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Write drills.jsonl and drills.json there.")
]
OfApp = Annotated[
    str | None,
    typer.Option("--app", metavar="APP", help="Drill the handlers of this app: module:attribute."),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="With --app: a drill target; default: FAULTLINE_DATABASE_URL."
    ),
]
Jobs = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help='With --app: the jobs, one a line: {"task": "charge", "arguments": {…}}.',
    ),
]
Effects = Annotated[
    str | None,
    typer.Option(
        metavar="SQL",
        help="With --app: a query for the effects, one row each, the job's id first.",
    ),
]
Faults = Annotated[int, typer.Option(metavar="N", min=1, help="With --app: how many.")]
Workers = Annotated[int, typer.Option(metavar="N", min=2, help="With --app: how many.")]
Lease = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", min=0.5, help="With --app: instead of the tasks' own."),
]


@app.command("list")
def list_kinds(as_json: options.AsJson = False) -> None:
    """List the kinds of faults, and how many scenarios a run has of each.

    \b
    Example:
      faultline drill list
    """
    from faultline.drills.kinds import KINDS

    rows = [
        {
            "kind": kind.name,
            "fault": kind.sentence,
            "full": kind.full + kind.at_default,
            "quick": kind.quick,
            "cannot_run_because": kind.needs(),
        }
        for kind in KINDS.values()
    ]
    if as_json:
        print_json(rows)
        return
    columns = [
        Column("kind", lambda row: row["kind"], whole=True),
        Column("full", lambda row: row["full"], number=True),
        Column("quick", lambda row: row["quick"], number=True),
        Column("fault", lambda row: row["cannot_run_because"] or row["fault"]),
    ]
    print_table(rows, columns)


@app.command()
def run(
    kinds: Kinds = None,
    quick: Quick = False,
    each: Each = None,
    seed: Seed = 1,
    lanes: Lanes = None,
    out: Out = None,
    of_app: OfApp = None,
    database_url: DatabaseUrl = None,
    jobs: Jobs = None,
    effects: Effects = None,
    faults: Faults = 10,
    workers: Workers = 3,
    lease_seconds: Lease = None,
    as_json: options.AsJson = False,
) -> None:
    """Play scenarios, show what they came to, and end with one line of JSON.

    With --app it is your handlers that are hit, on a database that you have marked for it. Exit
    status 1 if anything was violated, written twice or lost, or if a scenario showed nothing.

    \b
    Example:
      faultline drill run --quick
      faultline drill run retry_storm --each 10 --seed 1000
      faultline drill run --app shop:app --jobs jobs.jsonl --faults 20 --lease-seconds 2
    """
    if of_app is None:
        for name, given in (
            ("--database-url", database_url),
            ("--jobs", jobs),
            ("--effects", effects),
            ("--lease-seconds", lease_seconds),
        ):
            if given is not None:
                raise typer.BadParameter(f"{name} is for --app")
        from faultline.cli.drill.playing import run_kinds

        raise typer.Exit(run_kinds(kinds, quick, each, seed, lanes, out, as_json=as_json))
    if kinds or quick or each is not None or lanes is not None or out is not None:
        raise typer.BadParameter("with --app there are no kinds, --quick, --each, --lanes or --out")
    if jobs is None:
        raise typer.BadParameter("--app needs --jobs: what its workers are to do meanwhile")
    from faultline.cli.drill.staging import run_on_app
    from faultline.drills.staging import Orders

    orders = Orders(
        app=of_app,
        url=database_url,
        settings=Settings.from_environment(),
        effects=effects,
        faults=faults,
        workers=workers,
        lease_seconds=lease_seconds,
        seed=seed,
    )
    raise typer.Exit(run_on_app(orders, jobs, as_json=as_json))


@app.command()
def replay(
    scenario: Annotated[str, typer.Argument(metavar="ID", help="Its id, as in takeover-17.")],
    as_json: options.AsJson = False,
) -> None:
    """Play one scenario again, and tell its story.

    \b
    Example:
      faultline drill replay takeover-17
    """
    from faultline.cli.drill.playing import replay_one

    raise typer.Exit(replay_one(scenario, as_json=as_json))
