"""`antiphon limits`: the limits and budgets of a running server."""

from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.cli import options
from antiphon.domain.limits import Measure, Subject, Window

if TYPE_CHECKING:
    from antiphon.cli.admin import Admin, Card

app = typer.Typer(
    name="limits",
    help="Limits and budgets of a running server.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

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
    """List limits, without how they stand."""
    from antiphon.cli import admin

    def work(server: "Admin") -> None:
        chosen: dict[str, str] = {"subject": subject} if subject else {}
        chosen |= {"target": target} if target else {}
        found = server.listed("limits", most=None, **chosen)
        rows = [_row(card) for card in found]
        print(admin.as_json({"limits": found}) if as_json else admin.table(rows, NONE))

    admin.run(work, url)


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
    """Set a limit, or another amount where there is such a limit; prints its id."""
    from antiphon.cli import admin, limited

    def work(server: "Admin") -> None:
        limited.require_window(measure, window, "--per ")
        wanted = {"measure": measure, "window": window, "models": models}
        known = server.listed("limits", subject=subject, target=target)
        same = [card for card in known if all(card.get(name) == value for name, value in wanted.items())]
        units = limited.units(measure, amount)
        if same:
            card = server.changed("limits", str(same[0].get("id")), amount=units, note=note)
        else:
            card = server.made("limits", subject=subject, target=target, amount=units, note=note, **wanted)
        print(admin.as_json(card) if as_json else card.get("id"))
        admin.note(f"{'changed' if same else 'set'}: {limited.phrase(card)} for the {subject} {target}")
        admin.warn(card)

    admin.run(work, url)


@app.command()
def show(limit: Limit, url: options.ServerUrl = None, as_json: options.Json = False) -> None:
    """Show a limit, what is left of it, and in how many seconds all of it is there again."""
    from antiphon.cli import admin, limited

    def work(server: "Admin") -> None:
        card = server.shown("limits", limit)
        shown = {**card, **{name: limited.amount_of(card, name) for name in ("amount", "remaining")}}
        print(admin.as_json(card) if as_json else admin.details(shown))

    admin.run(work, url)


@app.command()
def remove(limit: Limit, url: options.ServerUrl = None) -> None:
    """Remove a limit; nothing is refused for it any more."""
    from antiphon.cli import admin

    def work(server: "Admin") -> None:
        server.removed("limits", limit)
        admin.note(f"removed {limit}")

    admin.run(work, url)


def _row(card: "Card") -> dict[str, str]:
    from antiphon.cli.admin import cell
    from antiphon.cli.limited import phrase

    names = ("id", "subject", "target")
    return {
        **{name: cell(name, card.get(name)) for name in names},
        "limit": phrase(card),
        "models": "all" if card.get("models") is None else str(card.get("models")),
        "note": str(card.get("note")),
    }
