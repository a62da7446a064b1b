"""`antiphon limits`: the limits and budgets of a running server, and the notation of limits."""

from typing import Annotated

import typer

from antiphon.cli import options
from antiphon.cli.admin_client import connect_admin, note_warnings
from antiphon.cli.output import CallFailed, Card, pick, print_id, print_list, print_one
from antiphon.cli.output import note as say
from antiphon.domain.limits import Measure, Subject, Window, explain_too_large
from antiphon.domain.prices import format_decimal, parse_decimal
from antiphon.errors import SettingsError

app = options.make_group("limits", "Limits and budgets of a running server.")

LONGEST = 300
"""Most digits of a number."""

Limit = Annotated[str, typer.Argument(help="Its id, as `limits list` shows it.")]
NONE = "there is no limit that you may see; antiphon limits set project ID requests 600 --per minute sets one"


@app.command("list")
def list_limits(
    subject: Annotated[Subject | None, typer.Option("--of", help="Only those of this kind.")] = None,
    target: Annotated[
        str | None, typer.Option(help="Only those of this key, user, project or model.")
    ] = None,
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """List limits, without their current use."""
    chosen: dict[str, str] = {"subject": subject} if subject else {}
    chosen |= {"target": target} if target else {}
    with connect_admin(url) as server:
        print_list("limits", server.list("limits", query=chosen), _format_row, NONE, as_json)


@app.command("set")
def set_limit(
    subject: Annotated[Subject, typer.Argument(help="Of what it is.")],
    target: Annotated[str, typer.Argument(help="Id of the key, user or project, or name of the model.")],
    measure: Annotated[Measure, typer.Argument(help="What it counts; concurrent: requests at once.")],
    amount: Annotated[str, typer.Argument(help="How much of it; of cost in the currency: 12.50.")],
    window: Annotated[
        Window | None, typer.Option("--per", help="In which time; left out for concurrent.")
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Only requests to these models, * for any run. [all]"),
    ] = None,
    note: Annotated[str | None, typer.Option(help="What it is for. [nothing, or what it was]")] = None,
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """Set a limit, or change the amount of an existing one; prints its id."""
    with connect_admin(url) as server:
        _require_window(measure, window, "--per ")
        fields: dict[str, object] = {"measure": measure, "window": window, "models": models}
        known = server.list("limits", query={"subject": subject, "target": target})
        same = [card for card in known if all(card.get(name) == value for name, value in fields.items())]
        units = _parse_amount(measure, amount)
        if same:
            card = server.send("PATCH", "limits", str(same[0].get("id")), amount=units, note=note)
        else:
            card = server.send(
                "POST", "limits", subject=subject, target=target, amount=units, note=note, **fields
            )
        print_id(card, as_json)
        say(f"{'changed' if same else 'set'}: {_describe(card)} for the {subject} {target}")
        note_warnings(card)


@app.command()
def show(limit: Limit, url: options.ServerUrl = None, as_json: options.Json = False) -> None:
    """Show a limit, what is left of it, and the seconds until all of it is available again."""
    with connect_admin(url) as server:
        card = server.get("limits", limit)
        amounts = {} if as_json else {name: _get_amount(card, name) for name in ("amount", "remaining")}
        print_one({**card, **amounts}, as_json)


@app.command()
def remove(limit: Limit, url: options.ServerUrl = None) -> None:
    """Remove a limit; nothing is refused for it any more."""
    with connect_admin(url) as server:
        server.delete("limits", limit)
        say(f"removed {limit}")


def _format_row(card: Card) -> dict[str, str]:
    models = {"models": "all"} if card.get("models") is None else pick(card, "models")
    return {**pick(card, "id", "subject", "target"), "limit": _describe(card), **models, **pick(card, "note")}


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
    return format_decimal(amount) if card.get("measure") == Measure.COST else str(amount)


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
