"""`antiphon prices`: the price list of a running server."""

from typing import Annotated

import typer

from antiphon.cli import options
from antiphon.cli.admin_client import connect_admin, note_warnings
from antiphon.cli.options import now, parse_time
from antiphon.cli.output import Card, pick, print_id, print_list
from antiphon.cli.output import note as say
from antiphon.errors import SettingsError

app = options.make_group("prices", "What tokens cost: the price list of a running server.")

NONE = (
    "there is no price, so costs are not known; antiphon prices add MODELS --input 0.15 --output 0.6 "
    "--currency USD adds one"
)


@app.command("list")
def list_prices(url: options.ServerUrl = None, as_json: options.Json = False) -> None:
    """List prices, also those that ended; amounts for a million tokens."""
    with connect_admin(url) as server:
        print_list("prices", server.list("prices"), _format_row, NONE, as_json)


@app.command()
def add(
    models: Annotated[str, typer.Argument(help="Model names, * for any run of characters.")],
    prompt: Annotated[str, typer.Option("--input", help="Of a million prompt tokens: 0.15.")],
    output: Annotated[str, typer.Option(help="Of a million output tokens: 0.6.")],
    cached: Annotated[
        str | None,
        typer.Option(help="Of a million prompt tokens that were not computed again. [as --input]"),
    ] = None,
    request: Annotated[str | None, typer.Option(help="Of each request. [0]")] = None,
    currency: Annotated[
        str | None, typer.Option(help="Three letters, as USD; a server has one. [that of its prices]")
    ] = None,
    begin: Annotated[
        str | None, typer.Option("--from", help="When it begins: in 30d, 12h; or a date, in UTC. [now]")
    ] = None,
    until: Annotated[str | None, typer.Option(help="When it ends, written the same. [never]")] = None,
    note: options.Note = "",
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """Add a price; prints its id. Of several the longest pattern holds, and of these the latest."""
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
    price: Annotated[str, typer.Argument(help="Its id, as `prices list` shows it.")],
    at: Annotated[str | None, typer.Option(help="When: in 30d, 12h; or a date, in UTC. [now]")] = None,
    url: options.ServerUrl = None,
) -> None:
    """End a price; what began before keeps its cost. To change a price, end it and add another."""
    with connect_admin(url) as server:
        if at is None:
            card = server.delete("prices", price)
            say(f"{price} holds no more")
        else:
            card = server.send("PATCH", "prices", price, until=parse_time(at))
            say(f"{price} ends {pick(card, 'until')['until']}")
        note_warnings(card)


def _format_row(card: Card) -> dict[str, str]:
    fields = pick(card, "id", "models", "currency", "input", "cached", "output", "request", "since")
    return {**fields, "state": _describe_state(card), **pick(card, "note")}


def _describe_state(card: Card) -> str:
    since, until = card.get("since"), card.get("until")
    if isinstance(until, int):
        return f"{'ended' if until <= now() else 'ends'} {pick(card, 'until')['until']}"
    return "holds" if isinstance(since, int) and since <= now() else "will hold"
