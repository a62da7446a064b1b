"""`antiphon users`: the users of a running server."""

from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.cli import options

if TYPE_CHECKING:
    from antiphon.cli.admin import Admin, Card

app = typer.Typer(
    name="users", help="Users of a running server.", no_args_is_help=True, rich_markup_mode=None
)

User = Annotated[str, typer.Argument(help="Its id, as `users list` shows it.")]


@app.command("list")
def list_users(url: options.ServerUrl = None, as_json: options.Json = False) -> None:
    """List users."""
    from antiphon.cli import admin

    def work(server: "Admin") -> None:
        found = server.listed("users")
        otherwise = "there is no user; antiphon users create NAME makes one"
        rows = [_row(card) for card in found]
        print(admin.as_json({"users": found}) if as_json else admin.table(rows, otherwise))

    admin.run(work, url)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Of a person.")],
    email: Annotated[str | None, typer.Option(help="Unlike that of every other user. [none]")] = None,
    note: options.Note = "",
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """Make a user; prints its id."""
    from antiphon.cli import admin

    def work(server: "Admin") -> None:
        card = server.made("users", name=name, email=email, note=note)
        print(admin.as_json(card) if as_json else card.get("id"))
        admin.note(f"made user {name}")

    admin.run(work, url)


@app.command()
def update(
    user: User,
    name: Annotated[str | None, typer.Option(help="Another name. [as it is]")] = None,
    email: Annotated[
        str | None, typer.Option(help="Another address; who signs on with it is this user. [as it is]")
    ] = None,
    no_email: Annotated[bool, typer.Option("--no-email", help="The user has no address.")] = False,
    note: Annotated[str | None, typer.Option(help="Who it is. [as it is]")] = None,
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """Change a user's name, address or note; what is not named stays."""
    from antiphon.cli import admin
    from antiphon.errors import SettingsError

    def work(server: "Admin") -> None:
        if email is not None and no_email:
            raise SettingsError(
                "--email gives a user an address and --no-email takes it off: say one of them"
            )
        named = {"name": name, "email": email, "note": note}
        said: dict[str, object] = {each: value for each, value in named.items() if value is not None}
        said |= {"email": None} if no_email else {}
        if not said:
            raise SettingsError("nothing to change was named; antiphon users update --help lists what can be")
        card = server.patched("users", user, said)
        print(admin.as_json(card) if as_json else admin.details(card))

    admin.run(work, url)


@app.command()
def disable(user: User, url: options.ServerUrl = None) -> None:
    """Shut a user out: from now on none of the user's keys is accepted."""
    _change(user, url, disabled=True)


@app.command()
def enable(user: User, url: options.ServerUrl = None) -> None:
    """Let a user in again."""
    _change(user, url, disabled=False)


def _change(user: str, url: str | None, disabled: bool) -> None:
    from antiphon.cli import admin

    def work(server: "Admin") -> None:
        server.changed("users", user, disabled=disabled)
        admin.note(f"{'disabled' if disabled else 'enabled'} {user}")

    admin.run(work, url)


def _row(card: "Card") -> dict[str, str]:
    from antiphon.cli.admin import cell

    disabled = card.get("disabled_at")
    return {
        "id": str(card.get("id")),
        "name": str(card.get("name")),
        "email": cell("email", card.get("email")),
        "created": cell("created_at", card.get("created_at")),
        "state": f"disabled {cell('disabled_at', disabled)}" if disabled else "active",
        "note": str(card.get("note")),
    }
