"""`antiphon keys` and `antiphon audit`: the keys of a running server, and its audit log."""

import json
import re
from collections.abc import Mapping
from typing import Annotated

import typer

from antiphon.cli import console
from antiphon.cli.admin_client import (
    Admin,
    connect_admin,
    is_operator_key,
    note_warnings,
    read_operator_key,
    rename_operator_file,
    replace_operator_key,
)
from antiphon.cli.commands.limits import describe_limits, parse_limit
from antiphon.cli.names import (
    ID_SUFFIX,
    KEY,
    LIMIT,
    OWNERS,
    PROJECT,
    USER,
    fetch_names,
    find_audited_id,
    find_author_ids,
    find_id,
    find_optional_id,
    replace_ids,
)
from antiphon.cli.output import (
    CallFailed,
    JsonObject,
    discard_output,
    flush_output,
    format_fields,
    format_time,
    print_fields,
    print_id,
    print_json,
    print_list,
)
from antiphon.cli.output import note as say
from antiphon.cli.times import now, parse_duration, parse_past, parse_time
from antiphon.domain.tenancy import AUDIT_SUBJECTS, KeyKind
from antiphon.errors import SettingsError

app = console.create_group("keys", "Keys of a running server.")

Key = Annotated[str, typer.Argument(help="Its id, prefix or note; not the key itself.")]

AUDITED_ID = re.compile(rf"\b(?:(?:proj|user|limit)_{ID_SUFFIX}|{KEY.id_pattern})\b")
"""An id in the texts of the audit log."""

NO_KEYS = "there is no key that you may see; antiphon keys create makes one"


@app.command("list")
def list_keys(
    project: Annotated[str | None, typer.Option(help="Only keys of this project: name or id.")] = None,
    user: Annotated[
        str | None, typer.Option(help="Only keys of this user: name, e-mail address or id.")
    ] = None,
    wide: console.Wide = False,
    url: console.ServerUrl = None,
    as_json: console.Json = False,
) -> None:
    """List keys, including ended keys."""
    with connect_admin(url) as server:
        owners = {
            "project": find_optional_id(server, PROJECT, project),
            "user": find_optional_id(server, USER, user),
        }
        keys = [
            row
            for row in server.list("keys")
            if all(owner in (None, row.get(name)) for name, owner in owners.items())
        ]
        kinds = [
            kind
            for name, kind in (("project", PROJECT), ("user", USER))
            if not as_json and any(row.get(name) for row in keys)
        ]
        names = fetch_names(server, kinds)
        hidden = () if wide else ("models", "id", "project_id", "user_id")
        print_list("keys", keys, lambda row: _format_row(row, names), NO_KEYS, as_json, hidden)


@app.command()
def create(
    kind: Annotated[KeyKind, typer.Argument(help="The kind of key; see docs/keys.md.")],
    project: Annotated[
        str | None,
        typer.Option(
            help="The project of a service key, or the only project of an access token: name or id."
        ),
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="The user of an access token: name, e-mail address or id.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN", help="Models that the key may use; * matches any text; repeatable. [all]"
        ),
    ] = None,
    endpoint: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN", help="Paths that the key may call; * matches any text; repeatable. [all]"
        ),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MEASURE=AMOUNT/WINDOW",
            help="A usage limit, such as requests=600/minute, cost=12.50/month or concurrent=4. [none]",
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(help="When the key ends: after 30d, 12h or 15m, or on a date in UTC. [never]"),
    ] = None,
    note: console.Note = "",
    url: console.ServerUrl = None,
    as_json: console.Json = False,
) -> None:
    """Create a key and print it once: KEY=$(antiphon keys create service --project default)."""
    with connect_admin(url) as server:
        limits = [parse_limit(text) for text in limit or ()]
        expires_at = None if expires is None else parse_time(expires)
        response = server.send(
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
        _print_secret(response, as_json)


@app.command()
def show(key: Key, url: console.ServerUrl = None, as_json: console.Json = False) -> None:
    """Show a key's permissions, limits and expiry."""
    with connect_admin(url) as server:
        _print_key(server.get("keys", find_id(server, KEY, key)), as_json)


@app.command()
def update(
    key: Key,
    note: Annotated[str | None, typer.Option(help="The key's purpose. [unchanged]")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="The only models that the key may use; repeatable. [unchanged]"),
    ] = None,
    all_models: Annotated[bool, typer.Option("--all-models", help="The key may use every model.")] = False,
    endpoint: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="The only paths that the key may call; repeatable. [unchanged]"),
    ] = None,
    all_endpoints: Annotated[
        bool, typer.Option("--all-endpoints", help="The key may call every path except the operator's.")
    ] = False,
    expires: Annotated[
        str | None,
        typer.Option(help="When the key ends: after 30d, 12h or 15m, or on a date in UTC. [unchanged]"),
    ] = None,
    never_expires: Annotated[bool, typer.Option("--never-expires", help="The key never expires.")] = False,
    url: console.ServerUrl = None,
    as_json: console.Json = False,
) -> None:
    """Change a key's purpose, permissions or expiry. Omitted options change nothing."""
    with connect_admin(url) as server:
        if (model and all_models) or (endpoint and all_endpoints):
            raise SettingsError("name some models or paths, or allow all of them, not both")
        if expires is not None and never_expires:
            raise SettingsError("a key expires at a time or never, not both")
        fields: dict[str, object] = {}
        fields |= {} if note is None else {"note": note}
        fields |= {"models": model or None} if model or all_models else {}
        fields |= {"endpoints": endpoint or None} if endpoint or all_endpoints else {}
        fields |= {} if expires is None else {"expires_at": parse_time(expires)}
        fields |= {"expires_at": None} if never_expires else {}
        if not fields:
            raise SettingsError("name a field to change; antiphon keys update --help lists the fields")
        response = server.patch("keys", find_id(server, KEY, key), body=fields)
        _print_key(response, as_json)
        note_warnings(response)


@app.command()
def rotate(
    key: Key,
    overlap: Annotated[
        str, typer.Option(help="How long the server still accepts the old key: 1h, 7d.")
    ] = "0s",
    url: console.ServerUrl = None,
    as_json: console.Json = False,
) -> None:
    """Replace a key by a new one with the same permissions, and print the new key once."""
    with connect_admin(url) as server:
        seconds = parse_duration(overlap)
        key = find_id(server, KEY, key)
        was_operator_key = read_operator_key() is not None and _is_operator_key_id(server, key)
        response = server.send("POST", "keys", key, "rotate", overlap=seconds)
        message = replace_operator_key(str(response.get("secret"))) if was_operator_key else ""
        _print_secret(response, as_json, message)
        say(f"{key} ends in {overlap} at the latest" if seconds else f"{key} has ended")
        if message:
            say(message)


@app.command()
def revoke(key: Key, url: console.ServerUrl = None) -> None:
    """Revoke a key immediately."""
    with connect_admin(url) as server:
        key = find_id(server, KEY, key)
        was_operator_key = is_operator_key(server.send("POST", "keys", key, "revoke"))
        message = f"revoked {key}"
        if was_operator_key:
            message += f"; {rename_operator_file()}"
        say(message)


def audit(
    target: Annotated[
        str | None,
        typer.Option(help="Only changes of this project, user or key: name, e-mail address or id."),
    ] = None,
    actor: Annotated[
        str | None,
        typer.Option(
            help="Only changes by this user or key: name, e-mail address, prefix or id; or operator, for the "
            "operator's key of this machine."
        ),
    ] = None,
    project: Annotated[
        str | None,
        typer.Option(help="Only changes of this project, its keys, and the limits of both: name or id."),
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="The start: 90d or 12h ago, or a date in UTC. [the first change]")
    ] = None,
    until: Annotated[str | None, typer.Option(help="The end, in the same form. [now]")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most entries, the latest first.")] = 50,
    wide: console.Wide = False,
    url: console.ServerUrl = None,
    as_json: console.Json = False,
) -> None:
    """List the changes of projects, users and keys, with their authors."""
    with connect_admin(url) as server:
        times = {"since": since, "until": until}
        query = {name: str(parse_past(text)) for name, text in times.items() if text is not None}
        query |= {"target": find_audited_id(server, target)} if target else {}
        query |= {"project": find_id(server, PROJECT, project)} if project else {}
        authors = [{"actor": author} for author in find_author_ids(server, actor)] if actor else [{}]
        rows = [row for author in authors for row in server.list("audit", limit=limit, query=query | author)]
        if len(authors) > 1:
            rows = sorted(rows, key=lambda row: -int(str(row.get("id"))))[:limit]
        ids = set() if as_json else {*AUDITED_ID.findall(json.dumps(rows))}
        ids |= {str(row.get(name)) for row in rows for name in ("actor", "target") if not as_json}
        kinds = [kind for kind in OWNERS.values() if any(map(kind.is_id, ids))]
        names = fetch_names(server, kinds, names_operator=True)
        if any(map(LIMIT.is_id, ids)):
            names |= {str(row.get("id")): describe_limits([row]) for row in server.list("limits")}
        print_list(
            "audit",
            rows,
            lambda row: _format_audit_row(row, names, wide),
            "nothing was changed",
            as_json,
            () if wide else ("client", "id", "actor_id", "target_id"),
            long_column="change",
        )


def _print_secret(response: JsonObject, as_json: bool, file_message: str = "") -> None:
    """Prints the secret of a new key to standard output, and its id and expiry to standard error.

    `file_message`: says what the operator's file contains, if this is the key of that file. Raises CallFailed
    with the key's id if the secret cannot be written.
    """
    try:
        print_id(response, as_json, "secret")
        flush_output()
    except OSError as problem:
        discard_output()
        key_id = response.get("id")
        remedy = (
            f"replace it with `antiphon keys rotate {key_id}`, or `antiphon keys revoke {key_id}` ends it"
        )
        raise CallFailed(
            f"made {response.get('kind')} key {key_id}, but its secret cannot be written: "
            f"{problem.strerror}; {file_message or remedy}"
        ) from None
    expires_at = response.get("expires_at")
    expiry = f", which ends at {format_time(expires_at)} UTC" if isinstance(expires_at, int) else ""
    say(f"made {response.get('kind')} key {response.get('id')}{expiry}; it is not shown again")
    note_warnings(response)


def _is_operator_key_id(server: Admin, key_id: str) -> bool:
    """Whether an id is that of the operator's key of this machine; False if the caller may not read keys."""
    try:
        return is_operator_key(server.get("keys", key_id))
    except CallFailed:  # the caller may be allowed to rotate keys but not to read them
        return False


def _print_key(response: JsonObject, as_json: bool) -> None:
    """Prints one line for each field, with the limits in words."""
    if as_json:
        print_json(response)
    else:
        fields = {name: value for name, value in response.items() if name != "warnings"}
        print_fields({**fields, "limits": describe_limits(response.get("limits")) or None})


def _format_audit_row(row: JsonObject, names: Mapping[str, str], wide: bool) -> dict[str, str]:
    """Formats a change with names in the place of ids. `wide`: whether the ids follow the names."""

    def replace_id(match: re.Match[str]) -> str:
        id_, name = match[0], names.get(match[0])
        return f"{name} ({id_})" if name and wide else name or id_

    fields = format_fields(row, "at", "actor", "action", "target")
    # A limit or a price has no name, so its description is the target and not repeated in the change.
    about, about_fields = (
        str(row.get("about") or ""),
        AUDIT_SUBJECTS.get(fields["action"].partition(".")[0], ()),
    )
    changes = row.get("changes")
    texts = [
        AUDITED_ID.sub(replace_id, _format_change(change))
        for change in (changes if isinstance(changes, list) else [])
        if isinstance(change, dict) and not (about and change.get("field") in about_fields)
    ]
    if about:
        about = AUDITED_ID.sub(lambda match: names.get(match[0]) or match[0], about)
        names = {**names, fields["target"]: about}
    fields |= {"change": "; ".join(texts), "client": str(row.get("client") or "")}
    return replace_ids(fields | format_fields(row, "id"), names, "actor", "target")


def _format_change(change: JsonObject) -> str:
    """Formats the change of one field: `amount: 10.00 → 12.50`; for a new object, `amount: 10.00`."""
    values = [str(change[name]) for name in ("before", "after") if change.get(name) is not None]
    return f"{change.get('field')}: {' → '.join(values)}"


def _format_row(row: JsonObject, names: Mapping[str, str]) -> dict[str, str]:
    models = {"models": "all"} if row.get("models") is None else format_fields(row, "models")
    fields = format_fields(row, "prefix", "kind", "project", "user", "note")
    fields |= {"state": _format_state(row)} | models | format_fields(row, "id")
    return replace_ids(fields, names, "project", "user")


def _format_state(row: JsonObject) -> str:
    if row.get("revoked_at") is not None:
        return f"revoked {format_fields(row, 'revoked_at')['revoked_at']}"
    expires_at = row.get("expires_at")
    if not isinstance(expires_at, int):
        return "active"
    return f"{'ended' if expires_at <= now() else 'ends'} {format_time(expires_at)}"
