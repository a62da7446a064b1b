"""`antiphon limits`: the limits and budgets of a running server, and the notation of limits."""

from collections.abc import Mapping
from typing import Annotated

import typer

from antiphon.cli import options
from antiphon.cli.admin_client import Admin, connect_admin, note_warnings
from antiphon.cli.names import LIMIT, OWNERS, add_names, fetch_names, find_id, find_target
from antiphon.cli.output import CallFailed, Card, format_duration, pick, print_id, print_list, print_one
from antiphon.cli.output import note as say
from antiphon.domain.limits import Measure, Subject, Window, explain_too_large
from antiphon.domain.prices import format_money, parse_decimal
from antiphon.errors import SettingsError

app = options.make_group("limits", "Limits and budgets of a running server.")

LONGEST = 300
"""Most digits of a number."""

Limit = Annotated[
    list[str],
    typer.Argument(
        metavar="LIMIT | SUBJECT TARGET MEASURE",
        help="The limit's id or note; or its subject, target and measure, such as: project default requests.",
    ),
]
Per = Annotated[Window | None, typer.Option("--per", help="Only a limit of this time. [any]")]
OfModels = Annotated[
    str | None, typer.Option("--models", metavar="PATTERN", help="Only a limit of these models. [any]")
]
NONE = (
    "there is no limit that you may see; antiphon limits set project NAME requests 600 --per minute sets one"
)


@app.command("list")
def list_limits(
    subject: Annotated[
        Subject | None, typer.Option("--of", help="Only limits of this kind of target.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Only limits of this key, user, project or model: name or id.")
    ] = None,
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """List limits, without their current use."""
    chosen: dict[str, str] = {"subject": subject} if subject else {}
    with connect_admin(url) as server:
        chosen |= {"target": find_target(server, subject, target)} if target else {}
        cards = server.list("limits", query=chosen)
        subjects = {card.get("subject") for card in cards if not as_json}
        names = fetch_names(server, [kind for owner, kind in OWNERS.items() if owner in subjects])
        print_list("limits", cards, lambda card: _format_row(card, names), NONE, as_json)


@app.command("set")
def set_limit(
    subject: Annotated[Subject, typer.Argument(help="Kind of the target.")],
    target: Annotated[
        str, typer.Argument(help="Name, e-mail address or id; of a key also the prefix or note.")
    ],
    measure: Annotated[
        Measure, typer.Argument(help="What the limit counts. concurrent means requests at once.")
    ],
    amount: Annotated[
        str, typer.Argument(help="The most that can be used; of cost in the currency, such as 12.50.")
    ],
    window: Annotated[
        Window | None,
        typer.Option("--per", help="The time that the limit is for; leave it out for concurrent."),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN", help="Count only requests to these models; * matches any characters. [all]"
        ),
    ] = None,
    note: Annotated[str | None, typer.Option(help="What it is for. [nothing, or what it was]")] = None,
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """Set a limit, or change the amount of an existing one. Prints its id."""
    with connect_admin(url) as server:
        _require_window(measure, window, "--per ")
        units = _parse_amount(measure, amount)
        found = find_target(server, subject, target)
        fields: dict[str, object] = {"measure": measure, "window": window, "models": models}
        known = server.list("limits", query={"subject": subject, "target": found})
        same = [card for card in known if all(card.get(name) == value for name, value in fields.items())]
        if same:
            card = server.send("PATCH", "limits", str(same[0].get("id")), amount=units, note=note)
        else:
            card = server.send(
                "POST", "limits", subject=subject, target=found, amount=units, note=note, **fields
            )
        print_id(card, as_json)
        say(f"{'changed' if same else 'set'}: {_describe(card)} for the {subject} {target}")
        note_warnings(card)


@app.command()
def show(
    limit: Limit,
    window: Per = None,
    models: OfModels = None,
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """Show a limit, what is left of it, and when all of it is available again."""
    with connect_admin(url) as server:
        card = server.get("limits", _find_limit(server, limit, window, models))
        print_one(card if as_json else _format_status(card), as_json)


@app.command()
def remove(limit: Limit, window: Per = None, models: OfModels = None, url: options.ServerUrl = None) -> None:
    """Remove a limit."""
    with connect_admin(url) as server:
        id_ = _find_limit(server, limit, window, models)
        server.delete("limits", id_)
        say(f"removed {id_}")


def _find_limit(server: Admin, words: list[str], window: Window | None, models: str | None) -> str:
    """Returns the id of the limit that the words name. Raises CallFailed and SettingsError."""
    if len(words) == 1:
        if window or models:
            raise SettingsError(
                "--per and --models choose among limits of SUBJECT TARGET MEASURE: leave them out"
            )
        return find_id(server, LIMIT, words[0])
    if len(words) != 3 or words[0] not in set(Subject) or words[2] not in set(Measure):
        raise SettingsError(
            "name a limit by its id, by its note, or by three words, as in: project default requests; a "
            f"limit is of a {', '.join(Subject)}, and counts {', '.join(Measure)}"
        )
    subject = Subject(words[0])
    target = find_target(server, subject, words[1])
    wanted = {"measure": words[2]} | ({"window": window} if window else {})
    wanted |= {"models": models} if models else {}
    cards = server.list("limits", query={"subject": subject, "target": target})
    found = [card for card in cards if all(card.get(name) == value for name, value in wanted.items())]
    if not found:
        raise CallFailed(
            f"there is no such limit of the {subject} {words[1]}; antiphon limits list shows them"
        )
    described = [f"{card.get('id')} ({describe_limits([card])})" for card in found]
    if len(found) > 1:
        raise CallFailed(f"{len(found)} limits fit, so choose by --per or --models: {'; '.join(described)}")
    say(f"took the limit {described[0]}")
    return str(found[0].get("id"))


def _format_row(card: Card, names: Mapping[str, str]) -> dict[str, str]:
    models = {"models": "all"} if card.get("models") is None else pick(card, "models")
    known = {} if card.get("subject") == Subject.MODEL else names
    fields = add_names(pick(card, "id", "subject", "target"), known, "target")
    return {**fields, "limit": _describe(card), **models, **pick(card, "note")}


def _format_status(card: Card) -> Card:
    """Formats a limit and its state: amounts, and the time until all of it is available."""
    fields = {name: value for name, value in card.items() if name != "reset_seconds"}
    amounts = {name: _get_amount(card, name) for name in ("amount", "remaining")}
    seconds = card.get("reset_seconds")
    reset = format_duration(seconds) if isinstance(seconds, int | float) else "-"
    return {**fields, **amounts, "available_in": reset}


def parse_limit(text: str) -> Card:
    """Parses a key's limit, such as `requests=600/minute`, `cost=12.50/month` or `concurrent=4`. Raises
    SettingsError and CallFailed."""
    name, _, rest = text.partition("=")
    amount, _, window = rest.partition("/")
    if name not in set(Measure) or not amount:
        raise SettingsError(
            f"{text!r} is no limit: say what it counts, how much and in which time, as requests=600/minute, "
            f"cost=12.50/month or concurrent=4; counted are {', '.join(Measure)}"
        )
    measure = Measure(name)
    _require_window(measure, window or None, "/", f"{name}={amount}")
    fields: dict[str, object] = {"measure": name, "amount": _parse_amount(measure, amount)}
    return fields | ({"window": window} if window else {})


def _require_window(measure: Measure, window: str | None, mark: str, prefix: str = "") -> None:
    """Raises SettingsError for a window that the measure does not have. `mark`: the text before the window in
    the caller's notation. `prefix`: the text before the mark."""
    if measure is Measure.CONCURRENT and window is not None:
        raise SettingsError(f"{measure} is counted at once: leave {mark}{window} out")
    if measure is not Measure.CONCURRENT and window not in set(Window):
        windows = f"{', '.join(list(Window)[:-1])} or {list(Window)[-1]}"
        raise SettingsError(f"{measure} is counted in a time: say {prefix}{mark}{windows}")


def _parse_amount(measure: Measure, amount: str) -> int:
    """Parses an amount in the server's unit; costs are in nano-units. Raises CallFailed."""
    is_number = amount.isascii() and amount.isdecimal() and len(amount) <= LONGEST
    of_cost = measure is Measure.COST
    counted = parse_decimal(amount) if of_cost else int(amount) if is_number else None
    if counted is None:
        taken = "a decimal, at most nine digits behind the point, as 12.50" if of_cost else "an integer"
        raise CallFailed(f"{amount} is no amount of {measure}: it must be {taken}")
    if (problem := explain_too_large(measure, counted)) is not None:
        raise CallFailed(problem)
    return counted


def _get_amount(card: Card, name: str) -> str:
    """Returns a field of a limit's card as a text."""
    amount = card.get(name)
    if not isinstance(amount, int):
        return "-"
    return format_money(amount) if card.get("measure") == Measure.COST else f"{amount:,}"


def _describe(card: Card) -> str:
    """Describes a limit, as in `600 requests per minute`."""
    window = card.get("window")
    often = "at once" if window is None else f"per {window}"
    noun = "requests" if card.get("measure") == Measure.CONCURRENT else str(card.get("measure"))
    return f"{_get_amount(card, 'amount')} {noun.replace('_', ' ')} {often}"


def describe_limits(cards: object) -> str:
    """Describes all limits of a key, with their models."""
    limits = [each for each in cards if isinstance(each, dict)] if isinstance(cards, list) else []
    return ", ".join(
        _describe(card) + ("" if card.get("models") is None else f" to {card.get('models')}")
        for card in limits
    )
