"""`antiphon usage`: the usage of a running server, as a table with a chart over time, or as a file.

It reports options without effect by name before it sends a request.
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

FORMATS = ("table", "csv", "json")
JSON_LINES = "jsonl"
"""The server's name of JSON Lines."""

OBJECT_KINDS = {EntryField.USER.value: USER, EntryField.KEY.value: KEY, EntryField.PRICE.value: PRICE}
"""The kinds of objects in conditions, by the condition's name."""

app = typer.Typer(rich_markup_mode=None)
"""An app without a name, so that its command becomes a main command."""


@app.command()
def usage(
    by: Annotated[
        str | None,
        typer.Option(
            help="Group by, with commas: model, project, user, key, status, day, tag:NAME, ... [model]"
        ),
    ] = None,
    since: Annotated[str, typer.Option(help="The start: 90d or 12h ago, or a date in UTC.")] = "7d",
    until: Annotated[str | None, typer.Option(help="The end, in the same form. [now]")] = None,
    project: Annotated[str | None, typer.Option(help="Only usage of this project: name or id.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="Only usage with this value: model=m, tag:team=a; repeatable."
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=1,
            max=10_000,
            help="Most rows of sums, the largest first. [20 in the table, all in csv and json]",
        ),
    ] = None,
    entries: Annotated[
        bool, typer.Option("--entries", help="Print every generation as csv or as JSON Lines.")
    ] = False,
    requested_format: Annotated[
        str | None, typer.Option("--format", help="table, csv or json. [table]")
    ] = None,
    url: options.ServerUrl = None,
) -> None:
    """Show usage and cost, in total and over time."""
    from antiphon.cli.commands.usage_report import DEFAULT_ROWS, Selection, print_report

    with connect_admin(url) as server:
        output_format = _parse_format(requested_format, entries)
        if entries:
            _require_no_sum_options(by, limit)
        conditions, times = _parse_conditions(project, only or []), _parse_time_range(since, until)
        selection = Selection("model" if by is None else by, *times, _find_ids(server, conditions))
        if output_format == "table":
            print_report(server, selection, limit or DEFAULT_ROWS)
        elif entries:
            _write_parts(server.stream("usage", "entries", **selection.build_query(format=output_format)))
        else:
            limit_query = {} if limit is None else {"limit": str(limit)}
            _write_parts(
                server.stream(
                    "usage", **selection.build_query(format=output_format, by=selection.by, **limit_query)
                )
            )
            print(end="\n" if output_format == "json" else "")


def _find_ids(server: Admin, conditions: Mapping[str, str]) -> dict[str, str]:
    """Replaces names of projects, users, keys and prices by ids. An empty value stays empty: it selects the
    usage without such an object."""
    ids = dict(conditions)
    if project := ids.get(EntryField.PROJECT):
        ids[EntryField.PROJECT] = find_id(server, PROJECT, project)
    for name, kind in OBJECT_KINDS.items():
        if value := ids.get(name):
            ids[name] = find_used_id(server, kind, value)
    return ids


def _write_parts(parts: Iterable[bytes]) -> None:
    """Writes the parts to standard output as they arrive."""
    for part in parts:
        sys.stdout.buffer.write(part)
    sys.stdout.buffer.flush()


def _parse_format(requested_format: str | None, entries: bool) -> str:
    """Returns the format to request from the server, or `table`. Raises SettingsError."""
    if entries and requested_format is None:
        raise SettingsError("--entries needs --format csv or --format json")
    if entries and requested_format == "table":
        raise SettingsError("--format table shows sums, not --entries: use --format csv or --format json")
    if requested_format is not None and requested_format not in FORMATS:
        raise SettingsError(f"--format {requested_format}: it must be {' or '.join(FORMATS[entries:])}")
    return JSON_LINES if entries and requested_format == "json" else requested_format or "table"


def _require_no_sum_options(by: str | None, limit: int | None) -> None:
    """Raises SettingsError for an option that only sums have, because --entries prints no sums."""
    if by is not None:
        raise SettingsError(f"--by {by} is for sums, but --entries prints every generation: leave one out")
    if limit is not None:
        raise SettingsError(
            f"--limit {limit} is for sums, but --entries prints every generation: select fewer by --since, "
            "--until and --only"
        )


def _parse_time_range(since: str, until: str | None) -> tuple[int, int]:
    """Returns the start and the end in Unix seconds. Raises SettingsError."""
    start = _parse_second("--since", since)
    end = now() + 1 if until is None else _parse_second("--until", until)
    if start >= end:
        bound = "now" if until is None else f"--until {until}"
        raise SettingsError(f"--since {since} must be before {bound}")
    return start, end


def _parse_second(option: str, text: str) -> int:
    """Parses an option's time to Unix seconds. Raises SettingsError with the option's name."""
    try:
        return parse_past(text)
    except SettingsError as problem:
        raise SettingsError(f"{option}: {problem.message}") from None


def _parse_conditions(project: str | None, only: Sequence[str]) -> dict[str, str]:
    """Parses the values of --project and --only. Returns the required values by the field's name. Raises
    SettingsError."""
    conditions = {} if project is None else {EntryField.PROJECT.value: project}
    for text in only:
        name, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(f"--only {text}: it takes NAME=VALUE")
        if name in conditions:
            earlier_option = "--project" if project is not None and name == EntryField.PROJECT else "--only"
            raise SettingsError(f"--only {text}: {earlier_option} sets {name} already")
        _require_condition(name, text)
        conditions[name] = value
    return conditions


def _require_condition(name: str, text: str) -> None:
    """Raises SettingsError if a condition's name is neither a field nor a tag. `text`: the condition."""
    dimension = parse_dimension(name)
    if isinstance(dimension, Bucket):
        raise SettingsError(f"--only {text}: use --since and --until to select a time")
    if dimension is None:
        known_names = ", ".join([*EntryField, f"{TAG}NAME"])
        raise SettingsError(
            f"--only {text}: there is no field {name or 'without a name'}; fields: {known_names}"
        )
