"""`antiphon prices`: the price list of a running server."""

from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.cli import options

if TYPE_CHECKING:
    from antiphon.cli.admin import Admin, Card

app = typer.Typer(
    name="prices",
    help="What tokens cost: the price list of a running server.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

NONE = (
    "there is no price, so costs are not known; antiphon prices add MODELS --input 0.15 --output 0.6 "
    "--currency USD adds one"
)


@app.command("list")
def list_prices(url: options.ServerUrl = None, as_json: options.Json = False) -> None:
    """List prices, also those that ended; amounts for a million tokens."""
    from antiphon.cli import admin

    def work(server: "Admin") -> None:
        found = server.listed("prices")
        rows = [_row(card) for card in found]
        print(admin.as_json({"prices": found}) if as_json else admin.table(rows, NONE))

    admin.run(work, url)


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
    from antiphon.cli import admin, moments

    def work(server: "Admin") -> None:
        known = _currency(server)
        card = server.made(
            "prices",
            models=models,
            currency=currency or _required(known),
            input=prompt,
            output=output,
            cached=cached,
            request=request,
            since=None if begin is None else moments.until(begin),
            until=None if until is None else moments.until(until),
            note=note,
        )
        print(admin.as_json(card) if as_json else card.get("id"))
        said = card.get("currency")
        admin.note(f"{models} costs {card.get('input')} and {card.get('output')} {said}")
        if said != known:
            admin.note(
                f"{said} is the currency of all costs of this server; it stays, once something was priced"
            )
        admin.warn(card)

    admin.run(work, url)


@app.command()
def end(
    price: Annotated[str, typer.Argument(help="Its id, as `prices list` shows it.")],
    at: Annotated[str | None, typer.Option(help="When: in 30d, 12h; or a date, in UTC. [now]")] = None,
    url: options.ServerUrl = None,
) -> None:
    """End a price; what began before keeps its cost. To change a price, end it and add another."""
    from antiphon.cli import admin, moments

    def work(server: "Admin") -> None:
        if at is None:
            card = server.ended("prices", price)
            admin.note(f"{price} holds no more")
        else:
            card = server.changed("prices", price, until=moments.until(at))
            admin.note(f"{price} ends {_moment(card, 'until')}")
        admin.warn(card)

    admin.run(work, url)


def _currency(server: "Admin") -> str | None:
    """That of the price made last; None where there is none yet."""
    cards = server.listed("prices")
    return str(cards[-1].get("currency")) if cards else None


def _required(currency: str | None) -> str:
    """Raises SettingsError."""
    from antiphon.errors import SettingsError

    if currency is None:
        raise SettingsError("the server has no price yet, so no currency: name it, as in --currency USD")
    return currency


def _row(card: "Card") -> dict[str, str]:
    from antiphon.cli.admin import cell

    names = ("id", "models", "currency", "input", "cached", "output", "request")
    return {
        **{name: cell(name, card.get(name)) for name in names},
        "since": _moment(card, "since"),
        "state": _state(card),
        "note": str(card.get("note")),
    }


def _state(card: "Card") -> str:
    from antiphon.cli import moments

    since, until, now = card.get("since"), card.get("until"), moments.now()
    if isinstance(until, int):
        return f"{'ended' if until <= now else 'ends'} {_moment(card, 'until')}"
    return "holds" if isinstance(since, int) and since <= now else "will hold"


def _moment(card: "Card", name: str) -> str:
    from antiphon.cli.admin import cell, moment

    value = card.get(name)
    return moment(value) if isinstance(value, int) else cell(name, value)
