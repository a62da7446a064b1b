"""`antiphon usage`: what was used of a running server, as a table and over time, or as a file."""

from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.cli import options

if TYPE_CHECKING:
    from antiphon.cli.admin import Admin
    from antiphon.cli.usage_page import Wanted

app = typer.Typer(rich_markup_mode=None)
"""Without a name: its command is one of those that it is put beside."""

SHAPES = ("table", "csv", "json")


@app.command()
def usage(
    by: Annotated[
        str, typer.Option(help="By what: model, project, user, key, status, day, tag:NAME, ...; with commas.")
    ] = "model",
    since: Annotated[str, typer.Option(help="How long ago it begins: 90d, 12h; or a date, in UTC.")] = "7d",
    until: Annotated[str | None, typer.Option(help="How long ago it ends, written the same. [now]")] = None,
    project: Annotated[str | None, typer.Option(help="Only of this project.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Only where this is so: model=m, tag:team=a; repeated."),
    ] = None,
    most: Annotated[
        int, typer.Option("--limit", min=1, max=10_000, help="Rows of the table, those with most first.")
    ] = 20,
    entries: Annotated[
        bool, typer.Option("--entries", help="Every generation by itself, as csv or as lines of json.")
    ] = False,
    shape: Annotated[str, typer.Option("--format", help="table, csv or json.")] = "table",
    url: options.ServerUrl = None,
) -> None:
    """Show what was used, what it cost, and how it went over time."""
    from antiphon.cli import admin, moments
    from antiphon.cli.usage_page import Wanted, show
    from antiphon.errors import SettingsError

    def work(server: "Admin") -> None:
        if shape not in SHAPES or (entries and shape == "table"):
            raise SettingsError(f"--format must be {' or '.join(SHAPES[entries:])}")
        end = moments.now() + 1 if until is None else moments.ago(until)
        wanted = Wanted(by, moments.ago(since), end, _chosen(project, only or []))
        if shape == "table":
            show(server, wanted, most)
        else:
            _export(server, wanted, "jsonl" if entries and shape == "json" else shape, entries=entries)

    admin.run(work, url)


def _chosen(project: str | None, only: list[str]) -> dict[str, str]:
    """The conditions by name. Raises SettingsError."""
    from antiphon.errors import SettingsError

    chosen = {} if project is None else {"project": project}
    for text in only:
        name, equals, value = text.partition("=")
        if not (name and equals) or name in chosen:
            raise SettingsError(f"--only takes NAME=VALUE, each name once, not {text!r}")
        chosen[name] = value
    return chosen


def _export(server: "Admin", wanted: "Wanted", shape: str, *, entries: bool) -> None:
    """To standard output, as the server says it and as it comes."""
    import sys

    query = wanted.query(format=shape) if entries else wanted.query(format=shape, by=wanted.by)
    for part in server.said("usage", *(["entries"] if entries else []), **query):
        sys.stdout.buffer.write(part)
    if shape == "json":
        sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()
