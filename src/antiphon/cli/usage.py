"""`antiphon usage`: what was used of a running server, as a table and over time, or as a file."""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.cli import options

if TYPE_CHECKING:
    from antiphon.cli.admin import Admin

app = typer.Typer(rich_markup_mode=None)
"""Without a name: its command is one of those that it is put beside."""


@app.command()
def usage(
    by: Annotated[
        str | None,
        typer.Option(
            help="By what: model, project, user, key, status, day, tag:NAME, ...; with commas. [model]"
        ),
    ] = None,
    since: Annotated[str, typer.Option(help="How long ago it begins: 90d, 12h; or a date, in UTC.")] = "7d",
    until: Annotated[str | None, typer.Option(help="How long ago it ends, written the same. [now]")] = None,
    project: Annotated[str | None, typer.Option(help="Only of this project.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Only where this is so: model=m, tag:team=a; repeated."),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=1,
            max=10_000,
            help="Rows of sums, those with most first. [20 of the table, all of csv and json]",
        ),
    ] = None,
    entries: Annotated[
        bool, typer.Option("--entries", help="Every generation by itself, as csv or as lines of json.")
    ] = False,
    shape: Annotated[str | None, typer.Option("--format", help="table, csv or json. [table]")] = None,
    url: options.ServerUrl = None,
) -> None:
    """Show what was used, what it cost, and how it went over time."""
    from antiphon.cli import admin
    from antiphon.cli.usage_asked import chosen, single, stretch, written
    from antiphon.cli.usage_page import ROWS, Wanted, show

    def work(server: "Admin") -> None:
        form = written(shape, entries)
        if entries:
            single(by, most)
        wanted = Wanted("model" if by is None else by, *stretch(since, until), chosen(project, only or []))
        if form == "table":
            show(server, wanted, most or ROWS)
        elif entries:
            _export(server.said("usage", "entries", **wanted.query(format=form)))
        else:
            first = {} if most is None else {"limit": str(most)}
            _export(server.said("usage", **wanted.query(format=form, by=wanted.by, **first)))
            print(end="\n" if form == "json" else "")

    admin.run(work, url)


def _export(parts: Iterable[bytes]) -> None:
    """To standard output, as the server says it and as it comes."""
    for part in parts:
        sys.stdout.buffer.write(part)
    sys.stdout.buffer.flush()
