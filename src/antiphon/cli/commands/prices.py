"""`antiphon prices`: the price list of a running server."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.cli import options
from antiphon.cli.admin_client import Admin, connect_admin, note_warnings
from antiphon.cli.names import PRICE, find_id
from antiphon.cli.options import now, parse_time
from antiphon.cli.output import Card, pick, print_id, print_list
from antiphon.cli.output import note as say
from antiphon.domain.prices import format_money, parse_decimal
from antiphon.errors import SettingsError

if TYPE_CHECKING:
    from antiphon.cli.price_import import ImportPlan

app = options.make_group("prices", "What tokens cost: the price list of a running server.")

NONE = (
    "there is no price, so costs are not known; antiphon prices add MODELS --input 0.15 --output 0.6 "
    "--currency USD adds one"
)


@app.command("list")
def list_prices(url: options.ServerUrl = None, as_json: options.Json = False) -> None:
    """List prices, also those that have ended. Amounts are for a million tokens."""
    with connect_admin(url) as server:
        print_list("prices", server.list("prices"), _format_row, NONE, as_json)


@app.command()
def add(
    models: Annotated[str, typer.Argument(help="Name of a model; * matches any characters.")],
    prompt: Annotated[str, typer.Option("--input", help="Price of a million prompt tokens: 0.15.")],
    output: Annotated[str, typer.Option(help="Price of a million output tokens: 0.6.")],
    cached: Annotated[
        str | None,
        typer.Option(help="Price of a million cached prompt tokens. [as --input]"),
    ] = None,
    request: Annotated[str | None, typer.Option(help="Price of each request. [0]")] = None,
    currency: Annotated[
        str | None,
        typer.Option(help="Three letters, such as USD. A server has only one currency. [that of its prices]"),
    ] = None,
    begin: Annotated[
        str | None,
        typer.Option("--from", help="When it begins: a duration from now (30d, 12h) or a date in UTC. [now]"),
    ] = None,
    until: Annotated[str | None, typer.Option(help="When it ends, in the same form. [never]")] = None,
    note: options.Note = "",
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """Add a price, and print its id. If several patterns match a model, the longest applies, then the
    latest."""
    with connect_admin(url) as server:
        known = [str(card.get("currency")) for card in server.list("prices")][-1:]
        if not (currency or known):
            raise SettingsError("the server has no price yet, so no currency: name it, as in --currency USD")
        card = server.send(
            "POST",
            "prices",
            models=models,
            currency=currency or known[0],
            input=prompt,
            output=output,
            cached=cached,
            request=request,
            since=None if begin is None else parse_time(begin),
            until=None if until is None else parse_time(until),
            note=note,
        )
        print_id(card, as_json)
        unit = card.get("currency")
        say(f"{models} costs {card.get('input')} and {card.get('output')} {unit}")
        if [unit] != known:
            say(f"{unit} is the currency of all costs of this server; it stays, once something was priced")
        note_warnings(card)


@app.command()
def end(
    price: Annotated[str, typer.Argument(help="Its id, its models or its note.")],
    at: Annotated[
        str | None, typer.Option(help="When it ends: a duration from now (30d, 12h) or a date in UTC. [now]")
    ] = None,
    url: options.ServerUrl = None,
) -> None:
    """End a price. Requests that began before keep their cost. To change a price, end it and add another."""
    with connect_admin(url) as server:
        until = None if at is None else parse_time(at)
        price = find_id(server, PRICE, price)
        if until is None:
            card = server.delete("prices", price)
            say(f"{price} holds no more")
        else:
            card = server.send("PATCH", "prices", price, until=until)
            say(f"{price} ends {pick(card, 'until')['until']}")
        note_warnings(card)


@app.command("import")
def import_prices(
    provider: Annotated[
        str | None,
        typer.Option(
            help="Only models of this provider, or of a preset. Models of a preset are named PRESET/MODEL."
            " [all]"
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Only models whose name at the vendor matches this pattern. [all]")
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="A data.json of genai-prices. [the installed package genai-prices]")
    ] = None,
    base: Annotated[
        bool,
        typer.Option(
            "--base",
            help="If a price depends on more than the tokens, such as the hour, take its base price. Some "
            "costs are then too low.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be added, and add nothing.")
    ] = False,
    config: options.Config = None,
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """Add the published prices of the vendors' models in the settings. Your own prices are used first."""
    from antiphon.cli.price_data import read_prices
    from antiphon.cli.price_import import ImportOptions, plan_import
    from antiphon.cli.serve_options import ServeOptions

    data, settings = read_prices(file), ServeOptions(config=config).load_settings()
    plan = plan_import(
        data, settings.providers, settings.routed_models, ImportOptions(now(), provider, model, base)
    )
    with connect_admin(url) as server:
        _require_dollars(cards := server.list("prices"))
        plan.skip_priced(cards, now())
        rows = _list_imported(plan, data.source)
        added = rows if dry_run else [_add_imported(server, row) for row in rows]
    for name, reason in plan.skipped.items():
        say(f"{name} gets no price: {reason}")
    print_list("prices", added, _format_import, "nothing to add", as_json)
    if rows:
        say(f"{'would add' if dry_run else 'added'} from {data.source}: {len(rows)}")


def _list_imported(plan: "ImportPlan", source: str) -> list[Card]:
    """Returns the bodies of the prices to add."""
    from antiphon.cli.price_import import CURRENCY

    return [
        {
            "models": name,
            "currency": CURRENCY,
            "input": price.input,
            "cached": price.cached,
            "output": price.output,
            "since": price.since,
            "note": source,
        }
        for name, prices in plan.prices.items()
        for price in prices
    ]


def _add_imported(server: Admin, row: Card) -> Card:
    """Adds one price and returns it as the server has it."""
    card = server.send("POST", "prices", **row)
    note_warnings(card)
    return card


def _require_dollars(cards: Sequence[Card]) -> None:
    """Raises SettingsError if the server's prices have another currency than the published ones."""
    from antiphon.cli.price_import import CURRENCY

    if cards and (unit := cards[-1].get("currency")) != CURRENCY:
        raise SettingsError(
            f"published prices are in {CURRENCY}, and this server's are in {unit}; add yours with antiphon "
            "prices add"
        )


def _format_import(card: Card) -> dict[str, str]:
    return pick(card, "models", "currency", "input", "cached", "output", "since", "note")


def _format_row(card: Card) -> dict[str, str]:
    fields = pick(card, "id", "models", "currency", "input", "cached", "output", "request", "since")
    for name in ("input", "cached", "output", "request"):
        amount = parse_decimal(fields[name])
        fields[name] = fields[name] if amount is None else format_money(amount)
    return {**fields, "state": _describe_state(card), **pick(card, "note")}


def _describe_state(card: Card) -> str:
    since, until = card.get("since"), card.get("until")
    if isinstance(until, int):
        return f"{'ended' if until <= now() else 'ends'} {pick(card, 'until')['until']}"
    return "holds" if isinstance(since, int) and since <= now() else "will hold"
