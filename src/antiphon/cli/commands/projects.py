"""`antiphon projects` and `antiphon users`: projects, users and memberships of a running server."""

from collections.abc import Mapping
from typing import Annotated

import typer

from antiphon.cli import console
from antiphon.cli.admin_client import Admin, connect_admin
from antiphon.cli.names import PROJECT, USER, ObjectKind, fetch_names, find_id, replace_ids
from antiphon.cli.output import (
    JsonObject,
    format_field,
    format_fields,
    note,
    print_id,
    print_list,
    print_object,
)
from antiphon.domain.tenancy import ProjectRole
from antiphon.errors import SettingsError

app = console.create_group("projects", "Projects of a running server, and their members.")
users_app = console.create_group("users", "Users of a running server.")

Project = Annotated[str, typer.Argument(help="The project's name or id.")]
User = Annotated[str, typer.Argument(help="The user's name, e-mail address or id.")]


@app.command("list")
def list_projects(
    wide: console.Wide = False, url: console.ServerUrl = None, as_json: console.Json = False
) -> None:
    """List projects."""
    with connect_admin(url) as server:
        rows, hidden = server.list("projects"), () if wide else ("created", "id")
        print_list("projects", rows, _format_project, "there is no project", as_json, hidden)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="The project's name, which must be unique.")],
    note: console.Note = "",
    url: console.ServerUrl = None,
    as_json: console.Json = False,
) -> None:
    """Create a project and print its id."""
    with connect_admin(url) as server:
        _print_created(server.send("POST", "projects", name=name, note=note), f"project {name}", as_json)


@app.command()
def rename(
    project: Project,
    name: Annotated[str, typer.Argument(help="The new name.")],
    url: console.ServerUrl = None,
) -> None:
    """Rename a project."""
    _change_object(PROJECT, project, url, f"renamed {project} to {name}", name=name)


@app.command()
def archive(project: Project, url: console.ServerUrl = None) -> None:
    """Archive a project. The server then rejects its keys."""
    _change_object(PROJECT, project, url, f"archived {project}", archived=True)


@app.command()
def restore(project: Project, url: console.ServerUrl = None) -> None:
    """Restore an archived project. The server accepts its keys again."""
    _change_object(PROJECT, project, url, f"restored {project}", archived=False)


@app.command()
def members(
    project: Project,
    wide: console.Wide = False,
    url: console.ServerUrl = None,
    as_json: console.Json = False,
) -> None:
    """List the members of a project and their roles."""
    empty_message = f"{project} has no member; antiphon projects add-member {project} USER adds one"
    with connect_admin(url) as server:
        rows = server.list("projects", find_id(server, PROJECT, project), "members")
        names = fetch_names(server, [USER] if rows and not as_json else [])
        hidden = () if wide else ("user_id",)
        print_list("members", rows, lambda row: _format_member(row, names), empty_message, as_json, hidden)


@app.command()
def add_member(
    project: Project,
    user: User,
    role: Annotated[ProjectRole, typer.Option(help="The user's role.")] = ProjectRole.MEMBER,
    url: console.ServerUrl = None,
) -> None:
    """Add a user to a project, or change the user's role."""
    with connect_admin(url) as server:
        path = _find_membership(server, project, user)
        server.send("PUT", *path, role=role)
        note(f"{user} is {role} of {project}")


@app.command()
def remove_member(project: Project, user: User, url: console.ServerUrl = None) -> None:
    """Remove a user from a project."""
    with connect_admin(url) as server:
        server.delete(*_find_membership(server, project, user))
        note(f"removed {user} from {project}")


@users_app.command("list")
def list_users(
    wide: console.Wide = False, url: console.ServerUrl = None, as_json: console.Json = False
) -> None:
    """List users."""
    empty_message = "there is no user; antiphon users create NAME makes one"
    with connect_admin(url) as server:
        rows, hidden = server.list("users"), () if wide else ("created", "id")
        print_list("users", rows, _format_user, empty_message, as_json, hidden)


@users_app.command("create")
def create_user(
    name: Annotated[str, typer.Argument(help="The person's name.")],
    email: Annotated[
        str | None, typer.Option(help="The e-mail address, which must be unique. [none]")
    ] = None,
    note: console.Note = "",
    url: console.ServerUrl = None,
    as_json: console.Json = False,
) -> None:
    """Create a user and print the id."""
    with connect_admin(url) as server:
        response = server.send("POST", "users", name=name, email=email, note=note)
        _print_created(response, f"user {name}", as_json)


@users_app.command("update")
def update_user(
    user: User,
    name: Annotated[str | None, typer.Option(help="The new name. [unchanged]")] = None,
    email: Annotated[
        str | None, typer.Option(help="The new e-mail address, also for single sign-on. [unchanged]")
    ] = None,
    no_email: Annotated[bool, typer.Option("--no-email", help="Remove the e-mail address.")] = False,
    note: Annotated[str | None, typer.Option(help="The new note. [unchanged]")] = None,
    url: console.ServerUrl = None,
    as_json: console.Json = False,
) -> None:
    """Change a user's name, address or note. Omitted options change nothing."""
    with connect_admin(url) as server:
        if email is not None and no_email:
            raise SettingsError("--email sets an address and --no-email removes it: use one of them")
        values = {"name": name, "email": email, "note": note}
        fields: dict[str, object] = {field: value for field, value in values.items() if value is not None}
        fields |= {"email": None} if no_email else {}
        if not fields:
            raise SettingsError("name a field to change; antiphon users update --help lists the fields")
        print_object(server.patch("users", find_id(server, USER, user), body=fields), as_json)


@users_app.command()
def disable(user: User, url: console.ServerUrl = None) -> None:
    """Disable a user. The server then rejects the user's keys."""
    _change_object(USER, user, url, f"disabled {user}", disabled=True)


@users_app.command()
def enable(user: User, url: console.ServerUrl = None) -> None:
    """Enable a user. The server accepts the user's keys again."""
    _change_object(USER, user, url, f"enabled {user}", disabled=False)


def _print_created(response: JsonObject, description: str, as_json: bool) -> None:
    print_id(response, as_json)
    note(f"made {description}")


def _change_object(kind: ObjectKind, text: str, url: str | None, message: str, **fields: object) -> None:
    with connect_admin(url) as server:
        server.send("PATCH", f"{kind.noun}s", find_id(server, kind, text), **fields)
        note(message)


def _find_membership(server: Admin, project: str, user: str) -> tuple[str, ...]:
    """Returns the path segments of a membership in the admin API."""
    return "projects", find_id(server, PROJECT, project), "members", find_id(server, USER, user)


def _format_project(row: JsonObject) -> dict[str, str]:
    return {
        **format_fields(row, "name"),
        "state": _format_state(row, "archived"),
        **format_fields(row, "note"),
        "created": format_field("created_at", row.get("created_at")),
        **format_fields(row, "id"),
    }


def _format_member(row: JsonObject, names: Mapping[str, str]) -> dict[str, str]:
    since = format_field("created_at", row.get("created_at"))
    return replace_ids({**format_fields(row, "user", "role"), "since": since}, names, "user")


def _format_user(row: JsonObject) -> dict[str, str]:
    return {
        **format_fields(row, "name", "email"),
        "state": _format_state(row, "disabled"),
        **format_fields(row, "note"),
        "created": format_field("created_at", row.get("created_at")),
        **format_fields(row, "id"),
    }


def _format_state(row: JsonObject, status: str) -> str:
    time = row.get(f"{status}_at")
    return f"{status} {format_field(f'{status}_at', time)}" if time else "active"
