"""`antiphon usage`: the usage of a running server, as a table with a chart over time, or as a file.

An option without effect is refused here by its name, before a request is sent.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import typer

from antiphon.cli import options
from antiphon.cli.admin_client import Admin, connect_admin
from antiphon.cli.names import KEY, PRICE, PROJECT, USER, find_id, find_used_id
from antiphon.cli.options import now, parse_past
from antiphon.domain.ledger import TAG, Bucket, EntryField, parse_dimension
from antiphon.errors import SettingsError

SHAPES = ("table", "csv", "json")
LINES = "jsonl"
"""The server's name for lines of JSON."""

OBJECTS = {EntryField.USER.value: USER, EntryField.KEY.value: KEY, EntryField.PRICE.value: PRICE}
"""Kinds of objects whose ids are values of conditions, by the condition's name."""

app = typer.Typer(rich_markup_mode=None)
"""An app without a name: its command is added to the main ones."""


@app.command()
def usage(
    by: Annotated[
        str | None,
        typer.Option(
            help="Group by model, project, user, key, status, day, tag:NAME, ...; with commas between. "
            "[model]"
        ),
    ] = None,
    since: Annotated[
        str, typer.Option(help="Begin: a duration before now (90d, 12h) or a date in UTC.")
    ] = "7d",
    until: Annotated[str | None, typer.Option(help="End, in the same form. [now]")] = None,
    project: Annotated[str | None, typer.Option(help="Only this project: its name or id.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="Only entries with this value: model=m, tag:team=a. Can be repeated."
        ),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=1,
            max=10_000,
            help="Most rows, the largest sums first. [20 of the table, all of csv and json]",
        ),
    ] = None,
    entries: Annotated[
        bool, typer.Option("--entries", help="List single generations, as CSV or lines of JSON.")
    ] = False,
    shape: Annotated[str | None, typer.Option("--format", help="table, csv or json. [table]")] = None,
    url: options.ServerUrl = None,
) -> None:
    """Show the usage and its cost, in total and over time."""
    from antiphon.cli.commands.usage_report import ROWS, Selection, print_report

    with connect_admin(url) as server:
        form = _parse_format(shape, entries)
        if entries:
            _require_no_sums(by, most)
        chosen, times = _parse_conditions(project, only or []), _parse_time_range(since, until)
        selection = Selection("model" if by is None else by, *times, _find_ids(server, chosen))
        if form == "table":
            print_report(server, selection, most or ROWS)
        elif entries:
            _write(server.parts("usage", "entries", **selection.query(format=form)))
        else:
            first = {} if most is None else {"limit": str(most)}
            _write(server.parts("usage", **selection.query(format=form, by=selection.by, **first)))
            print(end="\n" if form == "json" else "")


def _find_ids(server: Admin, conditions: Mapping[str, str]) -> dict[str, str]:
    """Returns the conditions with ids in the place of names. An empty value stays: it means none."""
    found = dict(conditions)
    if project := found.get(EntryField.PROJECT):
        found[EntryField.PROJECT] = find_id(server, PROJECT, project)
    for name, kind in OBJECTS.items():
        if value := found.get(name):
            found[name] = find_used_id(server, kind, value)
    return found


def _write(parts: Iterable[bytes]) -> None:
    """Writes the parts to standard output as the server sends them."""
    for part in parts:
        sys.stdout.buffer.write(part)
    sys.stdout.buffer.flush()


def _parse_format(shape: str | None, entries: bool) -> str:
    """Returns the format to request from the server, or `table`. Raises SettingsError."""
    if entries and shape is None:
        raise SettingsError("--entries is for files: say --format csv or --format json beside it")
    if entries and shape == "table":
        raise SettingsError("--format table shows sums, not --entries: say --format csv or --format json")
    if shape is not None and shape not in SHAPES:
        raise SettingsError(f"--format {shape}: it must be {' or '.join(SHAPES[entries:])}")
    return LINES if entries and shape == "json" else shape or "table"


def _require_no_sums(by: str | None, most: int | None) -> None:
    """Raises SettingsError for options of sums where the output has none."""
    if by is not None:
        raise SettingsError(
            f"--by {by} is for sums; --entries gives every generation by itself: leave one out"
        )
    if most is not None:
        raise SettingsError(
            f"--limit {most} is for sums; --entries gives all of them: choose fewer by --since, --until and "
            "--only"
        )


def _parse_time_range(since: str, until: str | None) -> tuple[int, int]:
    """Returns the begin and the end in Unix seconds. Raises SettingsError."""
    begins = _parse_second("--since", since)
    ends = now() + 1 if until is None else _parse_second("--until", until)
    if begins >= ends:
        before = "lie before now" if until is None else f"lie before --until {until}"
        raise SettingsError(f"--since {since} must {before}")
    return begins, ends


def _parse_second(option: str, text: str) -> int:
    """Parses the time of an option. Raises SettingsError with the option's name."""
    try:
        return parse_past(text)
    except SettingsError as problem:
        raise SettingsError(f"{option}: {problem.message}") from None


def _parse_conditions(project: str | None, only: Sequence[str]) -> dict[str, str]:
    """Parses the conditions by name. Raises SettingsError."""
    conditions = {} if project is None else {EntryField.PROJECT.value: project}
    for text in only:
        name, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(f"--only {text}: it takes NAME=VALUE")
        if name in conditions:
            also = "--project" if project is not None and name == EntryField.PROJECT else "--only"
            raise SettingsError(f"--only {text}: {also} says {name} already, and there is one of it")
        _require_condition(name, text)
        conditions[name] = value
    return conditions


def _require_condition(name: str, text: str) -> None:
    """Raises SettingsError if a condition does not name a field or a tag."""
    of = parse_dimension(name)
    if isinstance(of, Bucket):
        raise SettingsError(f"--only {text}: a time is chosen by --since and --until")
    if of is None:
        known_names = ", ".join([*EntryField, f"{TAG}NAME"])
        raise SettingsError(f"--only {text}: there is no {name or 'name'} to choose by; known: {known_names}")
