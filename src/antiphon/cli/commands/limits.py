"""`antiphon limits`: the limits and budgets of a running server, and the notation of limits."""

from collections.abc import Mapping
from typing import Annotated

import typer

from antiphon.cli import console
from antiphon.cli.admin_client import Admin, connect_admin, note_warnings
from antiphon.cli.names import LIMIT, OWNERS, fetch_names, find_id, find_target, replace_ids
from antiphon.cli.output import (
    CallFailed,
    JsonObject,
    format_duration,
    format_fields,
    print_id,
    print_list,
    print_object,
)
from antiphon.cli.output import note as say
from antiphon.domain.limits import Measure, Subject, Window, explain_too_large
from antiphon.domain.prices import format_money, parse_decimal
from antiphon.errors import SettingsError

app = console.create_group("limits", "Limits and budgets of a running server.")

MOST_DIGITS = 300
"""The most digits of an amount."""

Limit = Annotated[
    list[str],
    typer.Argument(
        metavar="LIMIT | SUBJECT TARGET MEASURE",
        help="The limit's id or note; or its subject, target and measure: project default requests.",
    ),
]
WindowOption = Annotated[Window | None, typer.Option("--per", help="Only the limit with this window. [any]")]
ModelsOption = Annotated[
    str | None, typer.Option("--models", metavar="PATTERN", help="Only the limit for these models. [any]")
]
NO_LIMITS = (
    "there is no limit that you may see; antiphon limits set project NAME requests 600 --per minute sets one"
)


@app.command("list")
def list_limits(
    subject: Annotated[
        Subject | None, typer.Option("--of", help="Only limits of this kind of subject.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Only limits of this key, user, project or model: name or id.")
    ] = None,
    wide: console.Wide = False,
    url: console.ServerUrl = None,
    as_json: console.Json = False,
) -> None:
    """List limits without their current usage."""
    query: dict[str, str] = {"subject": subject} if subject else {}
    with connect_admin(url) as server:
        query |= {"target": find_target(server, subject, target)} if target else {}
        rows = server.list("limits", query=query)
        subjects = {row.get("subject") for row in rows if not as_json}
        names = fetch_names(server, [kind for owner, kind in OWNERS.items() if owner in subjects])
        hidden = () if wide else ("id", "target_id")
        print_list("limits", rows, lambda row: _format_row(row, names), NO_LIMITS, as_json, hidden)


@app.command("set")
def set_limit(
    subject: Annotated[Subject, typer.Argument(help="The kind of object to limit.")],
    target: Annotated[
        str, typer.Argument(help="The object's name, e-mail address or id; a key's prefix or note.")
    ],
    measure: Annotated[
        Measure, typer.Argument(help="The counted quantity; concurrent counts simultaneous requests.")
    ],
    amount: Annotated[str, typer.Argument(help="The highest amount; for cost, an amount of money: 12.50.")],
    window: Annotated[
        Window | None, typer.Option("--per", help="The time window; not for concurrent.")
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Only requests to these models; * matches any text. [all]"),
    ] = None,
    note: Annotated[str | None, typer.Option(help="A note. [empty, or the existing note]")] = None,
    url: console.ServerUrl = None,
    as_json: console.Json = False,
) -> None:
    """Set a limit, or change the amount of an existing one. Prints its id."""
    with connect_admin(url) as server:
        _require_window(measure, window, "--per ")
        amount_units = _parse_amount(measure, amount)
        target_id = find_target(server, subject, target)
        fields: dict[str, object] = {"measure": measure, "window": window, "models": models}
        rows = server.list("limits", query={"subject": subject, "target": target_id})
        matches = [row for row in rows if all(row.get(name) == value for name, value in fields.items())]
        if matches:
            response = server.send(
                "PATCH", "limits", str(matches[0].get("id")), amount=amount_units, note=note
            )
        else:
            response = server.send(
                "POST", "limits", subject=subject, target=target_id, amount=amount_units, note=note, **fields
            )
        print_id(response, as_json)
        say(f"{'changed' if matches else 'set'}: {_describe_limit(response)} for the {subject} {target}")
        note_warnings(response)


@app.command()
def show(
    limit: Limit,
    window: WindowOption = None,
    models: ModelsOption = None,
    url: console.ServerUrl = None,
    as_json: console.Json = False,
) -> None:
    """Show a limit, its remaining amount, and the time until the whole amount is available."""
    with connect_admin(url) as server:
        response = server.get("limits", _find_limit(server, limit, window, models))
        print_object(response if as_json else _format_status(response), as_json)


@app.command()
def remove(
    limit: Limit, window: WindowOption = None, models: ModelsOption = None, url: console.ServerUrl = None
) -> None:
    """Remove a limit."""
    with connect_admin(url) as server:
        id_ = _find_limit(server, limit, window, models)
        server.delete("limits", id_)
        say(f"removed {id_}")


def _find_limit(server: Admin, words: list[str], window: Window | None, models: str | None) -> str:
    """Returns the id of the limit that the user names. Raises CallFailed and SettingsError.

    `words`: the limit's id or note alone; or its subject, target and measure.
    """
    if len(words) == 1:
        if window or models:
            raise SettingsError("--per and --models need SUBJECT TARGET MEASURE: leave them out")
        return find_id(server, LIMIT, words[0])
    if len(words) != 3 or words[0] not in set(Subject) or words[2] not in set(Measure):
        raise SettingsError(
            "name a limit by its id, its note, or subject, target and measure, as in: project default "
            f"requests. Subjects: {', '.join(Subject)}; measures: {', '.join(Measure)}"
        )
    subject = Subject(words[0])
    target = find_target(server, subject, words[1])
    conditions = {"measure": words[2]} | ({"window": window} if window else {})
    conditions |= {"models": models} if models else {}
    rows = server.list("limits", query={"subject": subject, "target": target})
    matches = [row for row in rows if all(row.get(name) == value for name, value in conditions.items())]
    if not matches:
        raise CallFailed(
            f"there is no such limit of the {subject} {words[1]}; antiphon limits list shows them"
        )
    descriptions = [f"{row.get('id')} ({describe_limits([row])})" for row in matches]
    if len(matches) > 1:
        raise CallFailed(
            f"{len(matches)} limits match; choose one by --per or --models: {'; '.join(descriptions)}"
        )
    say(f"selected the limit {descriptions[0]}")
    return str(matches[0].get("id"))


def _format_row(row: JsonObject, names: Mapping[str, str]) -> dict[str, str]:
    models = {"models": "all"} if row.get("models") is None else format_fields(row, "models")
    known_names = {} if row.get("subject") == Subject.MODEL else names
    fields = format_fields(row, "subject", "target")
    fields |= {"limit": _describe_limit(row)} | models | format_fields(row, "note", "id")
    return replace_ids(fields, known_names, "target")


def _format_status(row: JsonObject) -> JsonObject:
    """Formats a limit and its state: its amount, the remaining amount, and the time until the whole amount is
    available."""
    fields = {name: value for name, value in row.items() if name != "reset_seconds"}
    amounts = {name: _format_amount(row, name) for name in ("amount", "remaining")}
    seconds = row.get("reset_seconds")
    reset = format_duration(seconds) if isinstance(seconds, int | float) else "-"
    return {**fields, **amounts, "available_in": reset}


def parse_limit(text: str) -> JsonObject:
    """Parses a limit of a key: `requests=600/minute`, `cost=12.50/month` or `concurrent=4`.

    Raises SettingsError and CallFailed.
    """
    name, _, rest = text.partition("=")
    amount, _, window = rest.partition("/")
    if name not in set(Measure) or not amount:
        raise SettingsError(
            f"{text!r} is no limit: write a measure, an amount and a window, as in requests=600/minute, "
            f"cost=12.50/month or concurrent=4. Measures: {', '.join(Measure)}"
        )
    measure = Measure(name)
    _require_window(measure, window or None, "/", f"{name}={amount}")
    fields: dict[str, object] = {"measure": name, "amount": _parse_amount(measure, amount)}
    return fields | ({"window": window} if window else {})


def _require_window(measure: Measure, window: str | None, separator: str, prefix: str = "") -> None:
    """Raises SettingsError if `concurrent` has a window, or if another measure has no known window.

    The message shows the right notation: `prefix` and `separator` are the texts before the window.
    """
    if measure is Measure.CONCURRENT and window is not None:
        raise SettingsError(f"{measure} has no window: leave {separator}{window} out")
    if measure is not Measure.CONCURRENT and window not in set(Window):
        windows = f"{', '.join(list(Window)[:-1])} or {list(Window)[-1]}"
        problem = f"{measure} needs a window" if window is None else f"there is no window {window!r}"
        raise SettingsError(f"{problem}: write {prefix}{separator}{windows}")


def _parse_amount(measure: Measure, amount: str) -> int:
    """Parses an amount in the server's unit, which is a nano-unit for costs. Raises CallFailed."""
    is_number = amount.isascii() and amount.isdecimal() and len(amount) <= MOST_DIGITS
    is_cost = measure is Measure.COST
    units = parse_decimal(amount) if is_cost else int(amount) if is_number else None
    if units is None:
        expected = "a decimal with at most nine digits after the point, as 12.50" if is_cost else "an integer"
        raise CallFailed(f"{amount} is no amount of {measure}: write {expected}")
    if (problem := explain_too_large(measure, units)) is not None:
        raise CallFailed(problem)
    return units


def _format_amount(row: JsonObject, name: str) -> str:
    """Formats an amount of a limit."""
    amount = row.get(name)
    if not isinstance(amount, int):
        return "-"
    return format_money(amount) if row.get("measure") == Measure.COST else f"{amount:,}"


def _describe_limit(row: JsonObject) -> str:
    """Describes a limit, as in `600 requests per minute`."""
    window = row.get("window")
    period = "at once" if window is None else f"per {window}"
    noun = "requests" if row.get("measure") == Measure.CONCURRENT else str(row.get("measure"))
    return f"{_format_amount(row, 'amount')} {noun.replace('_', ' ')} {period}"


def describe_limits(rows: object) -> str:
    """Describes all limits of a key, with their models."""
    limits = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return ", ".join(
        _describe_limit(row) + ("" if row.get("models") is None else f" to {row.get('models')}")
        for row in limits
    )
