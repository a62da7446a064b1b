"""`antiphon keys` and `antiphon audit`: the keys of a running server, and the record of changes."""

from collections.abc import Mapping
from typing import Annotated

import typer

from antiphon.cli import options
from antiphon.cli.admin_client import (
    Admin,
    connect_admin,
    is_operator_key,
    keep_operator_key,
    note_warnings,
    read_operator_key,
    set_operator_key_aside,
)
from antiphon.cli.commands.limits import describe_limits, parse_limit
from antiphon.cli.names import (
    KEY,
    OWNERS,
    PROJECT,
    USER,
    add_names,
    fetch_names,
    find_audited_id,
    find_id,
    find_optional_id,
)
from antiphon.cli.options import now, parse_duration, parse_time
from antiphon.cli.output import (
    CallFailed,
    Card,
    format_time,
    pick,
    print_card,
    print_id,
    print_json,
    print_list,
)
from antiphon.cli.output import note as say
from antiphon.domain.tenancy import KeyKind
from antiphon.errors import SettingsError

app = options.make_group("keys", "Keys of a running server.")

Key = Annotated[str, typer.Argument(help="Its id, prefix or note; not the key itself.")]
NONE = "there is no key that you may see; antiphon keys create makes one"


@app.command("list")
def list_keys(
    project: Annotated[str | None, typer.Option(help="Only those of a project: its name or id.")] = None,
    user: Annotated[
        str | None, typer.Option(help="Only those of a user: name, e-mail address or id.")
    ] = None,
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """List keys, also those that have ended."""
    with connect_admin(url) as server:
        owners = {
            "project": find_optional_id(server, PROJECT, project),
            "user": find_optional_id(server, USER, user),
        }
        keys = [
            card
            for card in server.list("keys")
            if all(owner in (None, card.get(name)) for name, owner in owners.items())
        ]
        kinds = [
            kind
            for name, kind in (("project", PROJECT), ("user", USER))
            if not as_json and any(card.get(name) for card in keys)
        ]
        names = fetch_names(server, kinds)
        print_list("keys", keys, lambda card: _format_row(card, names), NONE, as_json)


@app.command()
def create(
    kind: Annotated[KeyKind, typer.Argument(help="What the key is for: see docs/keys.md.")],
    project: Annotated[
        str | None,
        typer.Option(help="Project of a service key, or the only project of an access token: name or id."),
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="User of an access token: name, e-mail address or id.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Models that the key can use; * matches any characters. Can be repeated. [all]",
        ),
    ] = None,
    endpoint: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Paths that the key can use; * matches any characters. Can be repeated. [all]",
        ),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MEASURE=AMOUNT/WINDOW",
            help="A limit of the key: requests=600/minute, cost=12.50/month, concurrent=4. Can be "
            "repeated. [no limit]",
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(help="When the key ends: a duration from now (30d, 12h, 15m) or a date in UTC. [never]"),
    ] = None,
    note: options.Note = "",
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """Create a key and print it. It is shown only once: KEY=$(antiphon keys create service --project
    default)."""
    with connect_admin(url) as server:
        limits = [parse_limit(text) for text in limit or ()]
        expires_at = None if expires is None else parse_time(expires)
        card = server.send(
            "POST",
            "keys",
            kind=kind,
            project=find_optional_id(server, PROJECT, project),
            user=find_optional_id(server, USER, user),
            models=model or None,
            endpoints=endpoint or None,
            limits=limits or None,
            expires_at=expires_at,
            note=note,
        )
        _show_once(card, as_json)


@app.command()
def show(key: Key, url: options.ServerUrl = None, as_json: options.Json = False) -> None:
    """Show a key's permissions, limits and expiry."""
    with connect_admin(url) as server:
        _print_key(server.get("keys", find_id(server, KEY, key)), as_json)


@app.command()
def update(
    key: Key,
    note: Annotated[str | None, typer.Option(help="What it is for. [as it is]")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN", help="The only models that the key can use. Can be repeated. [as they are]"
        ),
    ] = None,
    all_models: Annotated[bool, typer.Option("--all-models", help="The key can use every model.")] = False,
    endpoint: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN", help="The only paths that the key can use. Can be repeated. [as they are]"
        ),
    ] = None,
    all_endpoints: Annotated[
        bool, typer.Option("--all-endpoints", help="The key can use every path except the operator's.")
    ] = False,
    expires: Annotated[
        str | None,
        typer.Option(
            help="When the key ends: a duration from now (30d, 12h, 15m) or a date in UTC. [as it is]"
        ),
    ] = None,
    never_expires: Annotated[bool, typer.Option("--never-expires", help="The key does not expire.")] = False,
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """Change a key's purpose, permissions or expiry; other fields stay as they are."""
    with connect_admin(url) as server:
        if (model and all_models) or (endpoint and all_endpoints):
            raise SettingsError("a key is for some or for all, not both")
        if expires is not None and never_expires:
            raise SettingsError("a key ends at a time or never, not both")
        fields: dict[str, object] = {}
        fields |= {} if note is None else {"note": note}
        fields |= {"models": model or None} if model or all_models else {}
        fields |= {"endpoints": endpoint or None} if endpoint or all_endpoints else {}
        fields |= {} if expires is None else {"expires_at": parse_time(expires)}
        fields |= {"expires_at": None} if never_expires else {}
        if not fields:
            raise SettingsError("nothing to change was named; antiphon keys update --help lists what can be")
        card = server.patch("keys", find_id(server, KEY, key), body=fields)
        _print_key(card, as_json)
        note_warnings(card)


@app.command()
def rotate(
    key: Key,
    overlap: Annotated[str, typer.Option(help="How long the old key is still accepted: 1h, 7d.")] = "0s",
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """Create a key with the permissions of the old one, and print it. It is shown only once. The old key
    ends."""
    with connect_admin(url) as server:
        seconds = parse_duration(overlap)
        key = find_id(server, KEY, key)
        is_kept = read_operator_key() is not None and _is_kept(server, key)
        card = server.send("POST", "keys", key, "rotate", overlap=seconds)
        message = keep_operator_key(str(card.get("secret"))) if is_kept else ""
        _show_once(card, as_json)
        say(f"{key} ends in {overlap} at the latest" if seconds else f"{key} has ended")
        if message:
            say(message)


@app.command()
def revoke(key: Key, url: options.ServerUrl = None) -> None:
    """End a key now."""
    with connect_admin(url) as server:
        key = find_id(server, KEY, key)
        is_kept = is_operator_key(server.send("POST", "keys", key, "revoke"))
        say(f"revoked {key}{f'; {set_operator_key_aside()}' if is_kept else ''}")


def audit(
    target: Annotated[
        str | None,
        typer.Option(help="Only changes of this project, user or key: name, e-mail address or id."),
    ] = None,
    most: Annotated[int, typer.Option("--limit", min=1, help="Number of entries, the latest first.")] = 50,
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """List changes to projects, users and keys, with their authors."""
    with connect_admin(url) as server:
        query = {"target": find_audited_id(server, target)} if target else None
        cards = server.list("audit", most=most, query=query)
        ids = [] if as_json else [str(card.get(name)) for card in cards for name in ("actor", "target")]
        names = fetch_names(server, [kind for kind in OWNERS.values() if any(map(kind.is_id, ids))])
        print_list(
            "audit", cards, lambda card: _format_audit_row(card, names), "nothing was changed", as_json
        )


def _show_once(card: Card, as_json: bool) -> None:
    """Prints the key alone to standard output; the note goes to standard error."""
    print_id(card, as_json, "secret")
    ends = card.get("expires_at")
    until = f", which ends at {format_time(ends)} UTC" if isinstance(ends, int) else ""
    say(f"made {card.get('kind')} key {card.get('id')}{until}; it is not shown again")
    note_warnings(card)


def _is_kept(server: Admin, key: str) -> bool:
    """Whether the key is the operator's key of this machine."""
    try:
        return is_operator_key(server.get("keys", key))
    except CallFailed:  # some callers may rotate keys but not read them; other errors recur
        return False


def _print_key(card: Card, as_json: bool) -> None:
    """Prints a line for each field, with the limits in words."""
    if as_json:
        print_json(card)
    else:
        fields = {name: value for name, value in card.items() if name != "warnings"}
        print_card({**fields, "limits": describe_limits(card.get("limits")) or None})


def _format_audit_row(card: Card, names: Mapping[str, str]) -> dict[str, str]:
    changes = card.get("changes")
    texts = (
        [_format_change(each) for each in changes if isinstance(each, dict)]
        if isinstance(changes, list)
        else []
    )
    about = f"{card['about']}: " if card.get("about") else ""
    row = add_names(pick(card, "id", "at", "actor", "action", "target"), names, "actor", "target")
    return {**row, "change": about + "; ".join(texts)}


def _format_change(change: Card) -> str:
    """Formats one field: `amount: 10.00 → 12.50`; of something new `amount: 10.00`."""
    values = [str(change[name]) for name in ("before", "after") if change.get(name) is not None]
    return f"{change.get('field')}: {' → '.join(values)}"


def _format_row(card: Card, names: Mapping[str, str]) -> dict[str, str]:
    models = {"models": "all"} if card.get("models") is None else pick(card, "models")
    fields = add_names(pick(card, "id", "kind", "prefix", "project", "user"), names, "project", "user")
    return {**fields, **models, "state": _describe_state(card), **pick(card, "note")}


def _describe_state(card: Card) -> str:
    if card.get("revoked_at") is not None:
        return f"revoked {pick(card, 'revoked_at')['revoked_at']}"
    ends = card.get("expires_at")
    if not isinstance(ends, int):
        return "active"
    return f"{'ended' if ends <= now() else 'ends'} {format_time(ends)}"
