"""`antiphon projects` and `antiphon users`: projects, users and memberships of a running server."""

from typing import Annotated

import typer

from antiphon.cli import options
from antiphon.cli.admin_client import Admin, connect_admin
from antiphon.cli.names import PROJECT, USER, ObjectKind, find_id
from antiphon.cli.output import Card, format_field, note, pick, print_id, print_list, print_one
from antiphon.domain.tenancy import ProjectRole
from antiphon.errors import SettingsError

app = options.make_group("projects", "Projects of a running server, and who is in them.")
users_app = options.make_group("users", "Users of a running server.")

Project = Annotated[str, typer.Argument(help="Its name or id.")]
User = Annotated[str, typer.Argument(help="Name, e-mail address or id.")]


@app.command("list")
def list_projects(url: options.ServerUrl = None, as_json: options.Json = False) -> None:
    """List projects."""
    with connect_admin(url) as server:
        print_list("projects", server.list("projects"), _format_project, "there is no project", as_json)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="A name that no other project has.")],
    note: options.Note = "",
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """Create a project, and print its id."""
    with connect_admin(url) as server:
        _print_made(server.send("POST", "projects", name=name, note=note), f"project {name}", as_json)


@app.command()
def rename(
    project: Project,
    name: Annotated[str, typer.Argument(help="The new name.")],
    url: options.ServerUrl = None,
) -> None:
    """Rename a project."""
    _change(PROJECT, project, url, f"renamed {project} to {name}", name=name)


@app.command()
def archive(project: Project, url: options.ServerUrl = None) -> None:
    """Archive a project. Its keys are no longer accepted."""
    _change(PROJECT, project, url, f"archived {project}", archived=True)


@app.command()
def restore(project: Project, url: options.ServerUrl = None) -> None:
    """Take a project out of the archive; its keys are accepted again."""
    _change(PROJECT, project, url, f"restored {project}", archived=False)


@app.command()
def members(project: Project, url: options.ServerUrl = None, as_json: options.Json = False) -> None:
    """List the members of a project and their roles."""
    otherwise = f"nobody is in {project}; antiphon projects add-member {project} USER adds somebody"
    with connect_admin(url) as server:
        found = server.list("projects", find_id(server, PROJECT, project), "members")
        print_list("members", found, _format_member, otherwise, as_json)


@app.command()
def add_member(
    project: Project,
    user: User,
    role: Annotated[ProjectRole, typer.Option(help="The user's role.")] = ProjectRole.MEMBER,
    url: options.ServerUrl = None,
) -> None:
    """Make a user a member of a project, or change the role."""
    with connect_admin(url) as server:
        path = _find_membership(server, project, user)
        server.send("PUT", *path, role=role)
        note(f"{user} is {role} of {project}")


@app.command()
def remove_member(project: Project, user: User, url: options.ServerUrl = None) -> None:
    """Remove a user from a project."""
    with connect_admin(url) as server:
        server.delete(*_find_membership(server, project, user))
        note(f"{user} is no member of {project} any more")


@users_app.command("list")
def list_users(url: options.ServerUrl = None, as_json: options.Json = False) -> None:
    """List users."""
    otherwise = "there is no user; antiphon users create NAME makes one"
    with connect_admin(url) as server:
        print_list("users", server.list("users"), _format_user, otherwise, as_json)


@users_app.command("create")
def create_user(
    name: Annotated[str, typer.Argument(help="The person's name.")],
    email: Annotated[str | None, typer.Option(help="An address that no other user has. [none]")] = None,
    note: options.Note = "",
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """Create a user, and print the id."""
    with connect_admin(url) as server:
        card = server.send("POST", "users", name=name, email=email, note=note)
        _print_made(card, f"user {name}", as_json)


@users_app.command("update")
def update_user(
    user: User,
    name: Annotated[str | None, typer.Option(help="Another name. [as it is]")] = None,
    email: Annotated[
        str | None, typer.Option(help="A new address. A person who signs on with it is this user. [as it is]")
    ] = None,
    no_email: Annotated[bool, typer.Option("--no-email", help="The user has no address.")] = False,
    note: Annotated[str | None, typer.Option(help="Who it is. [as it is]")] = None,
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """Change a user's name, address or note; other fields stay as they are."""
    with connect_admin(url) as server:
        if email is not None and no_email:
            raise SettingsError(
                "--email gives a user an address and --no-email takes it off: say one of them"
            )
        named = {"name": name, "email": email, "note": note}
        fields: dict[str, object] = {each: value for each, value in named.items() if value is not None}
        fields |= {"email": None} if no_email else {}
        if not fields:
            raise SettingsError("nothing to change was named; antiphon users update --help lists what can be")
        print_one(server.patch("users", find_id(server, USER, user), body=fields), as_json)


@users_app.command()
def disable(user: User, url: options.ServerUrl = None) -> None:
    """Disable a user. The user's keys are no longer accepted."""
    _change(USER, user, url, f"disabled {user}", disabled=True)


@users_app.command()
def enable(user: User, url: options.ServerUrl = None) -> None:
    """Enable a disabled user."""
    _change(USER, user, url, f"enabled {user}", disabled=False)


def _print_made(card: Card, what: str, as_json: bool) -> None:
    print_id(card, as_json)
    note(f"made {what}")


def _change(kind: ObjectKind, text: str, url: str | None, done: str, **fields: object) -> None:
    with connect_admin(url) as server:
        server.send("PATCH", f"{kind.noun}s", find_id(server, kind, text), **fields)
        note(done)


def _find_membership(server: Admin, project: str, user: str) -> tuple[str, ...]:
    """Returns the path of a membership."""
    return "projects", find_id(server, PROJECT, project), "members", find_id(server, USER, user)


def _format_project(card: Card) -> dict[str, str]:
    return {
        **pick(card, "id", "name"),
        "created": format_field("created_at", card.get("created_at")),
        "state": _describe_state(card, "archived"),
        **pick(card, "note"),
    }


def _format_member(card: Card) -> dict[str, str]:
    return {**pick(card, "user", "role"), "since": format_field("created_at", card.get("created_at"))}


def _format_user(card: Card) -> dict[str, str]:
    return {
        **pick(card, "id", "name", "email"),
        "created": format_field("created_at", card.get("created_at")),
        "state": _describe_state(card, "disabled"),
        **pick(card, "note"),
    }


def _describe_state(card: Card, ended: str) -> str:
    at = card.get(f"{ended}_at")
    return f"{ended} {format_field(f'{ended}_at', at)}" if at else "active"
