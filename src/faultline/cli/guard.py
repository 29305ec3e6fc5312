"""`faultline guard`: tables to which nobody writes without a fence."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from faultline.cli import options
from faultline.cli.database import installation
from faultline.cli.display import Column, nothing, plural, print_json, print_table

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Guard your own tables against late writes.

    A guarded table takes INSERT, UPDATE, DELETE and TRUNCATE only in a transaction that has opened
    a fence, which is checked when it commits. Run this as the owner of the table.

    \b
    Example:
      faultline guard add billing.charges --exempt web --exempt migrator
      faultline guard list
    """,
)

Table = Annotated[str, typer.Argument(metavar="TABLE", help="The table, as SQL names it.")]
Exempt = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ROLE",
        help="Who may write without a fence, by the name it logs in with; again for each. "
        "Replaces those there were.",
    ),
]
NoExempt = Annotated[bool, typer.Option("--no-exempt", help="Nobody is exempt any more.")]


@app.command()
def add(table: Table, exempt: Exempt = None, no_exempt: NoExempt = False) -> None:
    """Guard a table, with all its partitions.

    Again, after partitions were added: it takes them in. Who is exempt stays so, unless --exempt or
    --no-exempt says otherwise.

    \b
    Example:
      faultline guard add billing.charges --exempt web
    """
    if no_exempt and exempt:
        raise typer.BadParameter("--exempt and --no-exempt contradict each other")
    roles = [] if no_exempt else exempt or None
    with installation() as here:
        count = here.verbs.guard(table, roles).run(here.conn)
    typer.echo(f"guarded: {table} ({plural(count, 'table')})")


@app.command()
def remove(table: Table) -> None:
    """Take the guard off a table, with all its partitions.

    Exit status 3 if it has none.

    \b
    Example:
      faultline guard remove billing.charges
    """
    with installation() as here:
        count = here.verbs.unguard(table).run(here.conn)
    if not count:
        nothing(f"{table} is not guarded")
    typer.echo(f"not guarded any more: {table} ({plural(count, 'table')})")


@app.command("list")
def list_guards(as_json: options.AsJson = False) -> None:
    """List the guarded tables, and what is left open.

    A partition that was added since is guarded by row: slower, and not against TRUNCATE. Exit
    status 3 if no table is guarded.

    \b
    Example:
      faultline guard list
    """
    with installation() as here:
        found = here.reading.guards(here.conn)
    if as_json:
        print_json(found)
    if not found:
        nothing("no table is guarded")
    if not as_json:
        print_table(found, _COLUMNS)
        for guard in found:
            if not guard["complete"]:
                typer.echo(_advice(guard), err=True)


def _advice(guard: dict[str, Any]) -> str:
    if guard["revoke"]:
        advice = f"run `{guard['revoke']}`, then `faultline guard add {guard['target']}` again"
        roles = ", ".join(guard["trigger_roles"])
        return f"{roles} can take the guard of {guard['target']} away: {advice}"
    if parents := ", ".join(guard["open_parents"]):
        return (
            f"{guard['target']} can be written through {parents}, past its guard: run "
            f"`faultline guard add {parents}`"
        )
    return f"{guard['target']} has gaps: run `faultline guard add {guard['target']}` again"


_COLUMNS = [
    Column("table", lambda guard: guard["target"]),
    Column("", lambda guard: "ok" if guard["complete"] else "incomplete", state=True),
    Column("exempt", lambda guard: guard["exempt_roles"]),
    *(
        Column(title, lambda guard, name=name: guard[name], number=True)  # type: ignore[misc]
        for title, name in (
            ("tables", "tables"),
            ("by statement", "by_statement"),
            ("by row", "by_row"),
            ("open", "open"),
        )
    ),
]
