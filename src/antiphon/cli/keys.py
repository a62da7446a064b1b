"""`antiphon keys` and `antiphon audit`: the keys of a running server, and who changed what."""

from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.cli import options
from antiphon.domain.tenancy import KeyKind

if TYPE_CHECKING:
    from antiphon.cli.admin import Admin, Card

app = typer.Typer(name="keys", help="Keys of a running server.", no_args_is_help=True, rich_markup_mode=None)

Key = Annotated[str, typer.Argument(help="Its id, as `keys list` shows it; not the key itself.")]
NONE = "there is no key that you may see; antiphon keys create makes one"


@app.command("list")
def list_keys(
    project: Annotated[str | None, typer.Option(help="Only those of a project.")] = None,
    user: Annotated[str | None, typer.Option(help="Only those of a user.")] = None,
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """List keys, also those that ended."""
    from antiphon.cli import admin

    def work(server: "Admin") -> None:
        found = [
            card
            for card in server.listed("keys")
            if project in (None, card.get("project")) and user in (None, card.get("user"))
        ]
        rows = [_row(card) for card in found]
        print(admin.as_json({"keys": found}) if as_json else admin.table(rows, NONE))

    admin.run(work, url)


@app.command()
def create(
    kind: Annotated[KeyKind, typer.Argument(help="Whom it speaks for: see docs/keys.md.")],
    project: Annotated[
        str | None, typer.Option(help="Of a service key its project; of an access token the only one.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="Of an access token its user.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Models that it is for, * for any run; repeated. [all]"),
    ] = None,
    endpoint: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Paths that it is for, * for any run; repeated. [all]"),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MEASURE=AMOUNT/WINDOW",
            help="What it may use up, as requests=600/minute, cost=12.50/month, concurrent=4. [all]",
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(help="When it ends: in 30d, 12h, 15m; or a date, in UTC. [never]")
    ] = None,
    note: options.Note = "",
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """Make a key, and print it this once: KEY=$(antiphon keys create service --project default)."""
    from antiphon.cli import admin, limited, moments

    def work(server: "Admin") -> None:
        card = server.made(
            "keys",
            kind=kind,
            project=project,
            user=user,
            models=model or None,
            endpoints=endpoint or None,
            limits=[limited.asked(text) for text in limit or ()] or None,
            expires_at=None if expires is None else moments.until(expires),
            note=note,
        )
        _show_once(card, as_json)

    admin.run(work, url)


@app.command()
def show(key: Key, url: options.ServerUrl = None, as_json: options.Json = False) -> None:
    """Show what a key may, and until when."""
    from antiphon.cli import admin

    def work(server: "Admin") -> None:
        card = server.shown("keys", key)
        print(admin.as_json(card) if as_json else _details(card))

    admin.run(work, url)


@app.command()
def update(
    key: Key,
    note: Annotated[str | None, typer.Option(help="What it is for. [as it is]")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Models that it is for, and no others; repeated. [as they are]"),
    ] = None,
    all_models: Annotated[bool, typer.Option("--all-models", help="It is for every model.")] = False,
    endpoint: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Paths that it is for, and no others; repeated. [as they are]"),
    ] = None,
    all_endpoints: Annotated[
        bool, typer.Option("--all-endpoints", help="It is for every path but the operator's.")
    ] = False,
    expires: Annotated[
        str | None, typer.Option(help="When it ends: in 30d, 12h, 15m; or a date, in UTC. [as it is]")
    ] = None,
    never_expires: Annotated[
        bool, typer.Option("--never-expires", help="It does not end by itself.")
    ] = False,
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """Change what a key is for, what it may, or when it ends; what is not named stays."""
    from antiphon.cli import admin, moments
    from antiphon.errors import SettingsError

    def work(server: "Admin") -> None:
        if (model and all_models) or (endpoint and all_endpoints):
            raise SettingsError("a key is for some or for all, not both")
        if expires is not None and never_expires:
            raise SettingsError("a key ends at a time or never, not both")
        said: dict[str, object] = {}
        said |= {} if note is None else {"note": note}
        said |= {"models": model or None} if model or all_models else {}
        said |= {"endpoints": endpoint or None} if endpoint or all_endpoints else {}
        said |= {} if expires is None else {"expires_at": moments.until(expires)}
        said |= {"expires_at": None} if never_expires else {}
        if not said:
            raise SettingsError("nothing to change was named; antiphon keys update --help lists what can be")
        card = server.patched("keys", key, said)
        print(admin.as_json(card) if as_json else _details(card))
        admin.warn(card)

    admin.run(work, url)


@app.command()
def rotate(
    key: Key,
    overlap: Annotated[str, typer.Option(help="How long the old key is still accepted: 1h, 7d.")] = "0s",
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """Make a key that may what the old one may, and print it this once; the old one ends."""
    from antiphon.cli import admin, moments, operators

    def work(server: "Admin") -> None:
        seconds = moments.duration(overlap)
        is_kept = operators.kept_key() is not None and _is_kept(server, key)
        card = server.made("keys", key, "rotate", overlap=seconds)
        came = [operators.put(str(card.get("secret")))] if is_kept else []
        _show_once(card, as_json)
        for said in (f"{key} ends in {overlap} at the latest" if seconds else f"{key} has ended", *came):
            admin.note(said)

    admin.run(work, url)


@app.command()
def revoke(key: Key, url: options.ServerUrl = None) -> None:
    """End a key now."""
    from antiphon.cli import admin, operators

    def work(server: "Admin") -> None:
        is_kept = operators.is_kept(server.made("keys", key, "revoke"))
        admin.note(f"revoked {key}{f'; {operators.put_aside()}' if is_kept else ''}")

    admin.run(work, url)


def audit(
    target: Annotated[str | None, typer.Option(help="Only changes of this project, user or key.")] = None,
    most: Annotated[int, typer.Option("--limit", min=1, help="Entries, the latest first.")] = 50,
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """List who changed what of projects, users and keys."""
    from antiphon.cli import admin

    def work(server: "Admin") -> None:
        found = server.listed("audit", most=most, **({"target": target} if target else {}))
        names = ("id", "at", "actor", "action", "target")
        rows = [{name: admin.cell(name, card.get(name)) for name in names} | _detail(card) for card in found]
        print(admin.as_json({"audit": found}) if as_json else admin.table(rows, "nothing was changed"))

    admin.run(work, url)


def _show_once(card: "Card", as_json: bool) -> None:
    """The key alone on standard output."""
    from antiphon.cli import admin

    print(admin.as_json(card) if as_json else card.get("secret"))
    ends = card.get("expires_at")
    until = f", which ends at {admin.moment(ends)} UTC" if isinstance(ends, int) else ""
    admin.note(f"made {card.get('kind')} key {card.get('id')}{until}; it is not shown again")
    admin.warn(card)


def _is_kept(server: "Admin", key: str) -> bool:
    """Whether it is the operator's key that lies on this machine."""
    from antiphon.cli import operators
    from antiphon.cli.client import CallFailed

    try:
        return operators.is_kept(server.shown("keys", key))
    except CallFailed:  # who may rotate may yet not read; what is wrong otherwise is told then
        return False


def _detail(card: "Card") -> dict[str, str]:
    detail = card.get("detail")
    said = detail.items() if isinstance(detail, dict) else ()
    return {"detail": " ".join(f"{name}={value}" for name, value in said)}


def _details(card: "Card") -> str:
    """A line for each thing, its limits in words."""
    from antiphon.cli import admin, limited

    shown = {name: value for name, value in card.items() if name != "warnings"}
    return admin.details({**shown, "limits": limited.phrases(card.get("limits")) or None})


def _row(card: "Card") -> dict[str, str]:
    from antiphon.cli.admin import cell

    names = ("id", "kind", "prefix", "project", "user")
    models = "all" if card.get("models") is None else cell("models", card.get("models"))
    return {
        **{name: cell(name, card.get(name)) for name in names},
        "models": models,
        "state": _state(card),
        "note": str(card.get("note")),
    }


def _state(card: "Card") -> str:
    from antiphon.cli import admin, moments

    if card.get("revoked_at") is not None:
        return f"revoked {admin.cell('revoked_at', card.get('revoked_at'))}"
    ends = card.get("expires_at")
    if not isinstance(ends, int):
        return "active"
    return f"{'ended' if ends <= moments.now() else 'ends'} {admin.moment(ends)}"
