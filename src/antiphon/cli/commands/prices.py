"""`antiphon prices`: the price list of a running server."""

from pathlib import Path
from typing import Annotated

import typer

from antiphon.cli import console
from antiphon.cli.admin_client import Admin, connect_admin, note_warnings
from antiphon.cli.names import PRICE, find_id
from antiphon.cli.output import JsonObject, format_fields, print_id, print_list, report_errors
from antiphon.cli.output import note as say
from antiphon.cli.times import now, parse_time
from antiphon.domain.prices import format_money, parse_decimal
from antiphon.errors import SettingsError

app = console.create_group("prices", "The price list of a running server.")

NO_PRICES = (
    "there is no price, so costs are unknown; antiphon prices add MODELS --input 0.15 --output 0.6 "
    "--currency USD adds one"
)


@app.command("list")
def list_prices(
    wide: console.Wide = False, url: console.ServerUrl = None, as_json: console.Json = False
) -> None:
    """List prices, including ended prices, for a million tokens."""
    with connect_admin(url) as server:
        hidden = () if wide else ("since", "id")
        print_list("prices", server.list("prices"), _format_row, NO_PRICES, as_json, hidden)


@app.command()
def add(
    models: Annotated[str, typer.Argument(help="Model names; * matches any text.")],
    input_price: Annotated[str, typer.Option("--input", help="Price of a million prompt tokens: 0.15.")],
    output: Annotated[str, typer.Option(help="Price of a million output tokens: 0.6.")],
    cached: Annotated[
        str | None,
        typer.Option(help="Price of a million cached prompt tokens. [as --input]"),
    ] = None,
    request: Annotated[str | None, typer.Option(help="Price of each request. [0]")] = None,
    currency: Annotated[
        str | None,
        typer.Option(help="The server's only currency: three letters, such as USD. [that of its prices]"),
    ] = None,
    begin: Annotated[
        str | None,
        typer.Option("--from", help="When the price begins: after 30d or 12h, or on a date in UTC. [now]"),
    ] = None,
    until: Annotated[str | None, typer.Option(help="When the price ends, in the same form. [never]")] = None,
    note: console.Note = "",
    url: console.ServerUrl = None,
    as_json: console.Json = False,
) -> None:
    """Add a price and print its id. The longest matching pattern applies, then the latest price."""
    with connect_admin(url) as server:
        known_currencies = [str(row.get("currency")) for row in server.list("prices")][-1:]
        if not (currency or known_currencies):
            raise SettingsError(
                "the server has no currency before its first price: name one, as in --currency USD"
            )
        response = server.send(
            "POST",
            "prices",
            models=models,
            currency=currency or known_currencies[0],
            input=input_price,
            output=output,
            cached=cached,
            request=request,
            since=None if begin is None else parse_time(begin),
            until=None if until is None else parse_time(until),
            note=note,
        )
        print_id(response, as_json)
        new_currency = response.get("currency")
        say(f"{models} costs {response.get('input')} and {response.get('output')} {new_currency}")
        if [new_currency] != known_currencies:
            say(f"{new_currency} is now the currency of all costs of this server; you cannot change it later")
        note_warnings(response)


@app.command()
def end(
    price: Annotated[str, typer.Argument(help="The price's id, models or note.")],
    at: Annotated[
        str | None, typer.Option(help="When the price ends: after 30d or 12h, or on a date in UTC. [now]")
    ] = None,
    url: console.ServerUrl = None,
) -> None:
    """End a price. Earlier requests keep their cost. To change a price, end it and add another."""
    with connect_admin(url) as server:
        until = None if at is None else parse_time(at)
        price = find_id(server, PRICE, price)
        if until is None:
            response = server.delete("prices", price)
            say(f"{price} has ended")
        else:
            response = server.send("PATCH", "prices", price, until=until)
            say(f"{price} ends {format_fields(response, 'until')['until']}")
        note_warnings(response)


@app.command("import")
def import_prices(
    provider: Annotated[
        str | None,
        typer.Option(help="Only models of this provider or preset. [all]"),
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
            help="Use the base price of models whose price depends on the prompt's length, the hour, the "
            "kind of input or the cache. Some costs are then too low.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the prices, and add nothing.")] = False,
    config: console.Config = None,
    url: console.ServerUrl = None,
    as_json: console.Json = False,
) -> None:
    """Add vendors' published prices for the configured models that have no price yet."""
    from antiphon.cli.price_import import CURRENCY, ImportOptions, plan_import, read_prices
    from antiphon.cli.serve_options import ServeOptions

    with report_errors():
        data, settings = read_prices(file), ServeOptions(config=config).load_settings()
    plan = plan_import(
        data, settings.providers, settings.routed_models, ImportOptions(now(), provider, model, base)
    )
    with connect_admin(url) as server:
        rows = server.list("prices")
        if rows and (currency := rows[-1].get("currency")) != CURRENCY:
            raise SettingsError(
                f"published prices are in {CURRENCY}, but this server's are in {currency}; "
                "add prices with antiphon prices add"
            )
        plan.skip_priced_models(rows, now())
        price_bodies: list[JsonObject] = [
            {
                "models": name,
                "currency": CURRENCY,
                "input": price.input,
                "cached": price.cached,
                "output": price.output,
                "since": price.since,
                "note": data.source,
            }
            for name, prices in plan.prices.items()
            for price in prices
        ]
        added_prices = price_bodies if dry_run else [_add_price(server, body) for body in price_bodies]
    for name, reason in plan.skipped.items():
        say(f"{name} gets no price: {reason}")
    print_list("prices", added_prices, _format_imported_price, "nothing to add", as_json)
    if price_bodies:
        say(f"{'would add' if dry_run else 'added'} from {data.source}: {len(price_bodies)}")


def _add_price(server: Admin, body: JsonObject) -> JsonObject:
    """Adds one price, prints its warnings, and returns the price as the server stores it."""
    response = server.send("POST", "prices", **body)
    note_warnings(response)
    return response


def _format_imported_price(row: JsonObject) -> dict[str, str]:
    return format_fields(row, "models", "currency", "input", "cached", "output", "since", "note")


def _format_row(row: JsonObject) -> dict[str, str]:
    fields = format_fields(row, "models", "input", "cached", "output", "request", "currency")
    for name in ("input", "cached", "output", "request"):
        amount = parse_decimal(fields[name])
        fields[name] = fields[name] if amount is None else format_money(amount)
    return {**fields, "state": _format_state(row), **format_fields(row, "note", "since", "id")}


def _format_state(row: JsonObject) -> str:
    since, until = row.get("since"), row.get("until")
    if isinstance(until, int):
        return f"{'ended' if until <= now() else 'ends'} {format_fields(row, 'until')['until']}"
    return "current" if isinstance(since, int) and since <= now() else "future"
