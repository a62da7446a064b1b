"""`antiphon projects`: the projects of a running server, and who is in them."""

from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.cli import options
from antiphon.domain.tenancy import Role

if TYPE_CHECKING:
    from antiphon.cli.admin import Admin, Card

app = typer.Typer(
    name="projects",
    help="Projects of a running server, and who is in them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Project = Annotated[str, typer.Argument(help="Its id, as `projects list` shows it.")]
User = Annotated[str, typer.Argument(help="Id of a user, as `users list` shows it.")]


@app.command("list")
def list_projects(url: options.ServerUrl = None, as_json: options.Json = False) -> None:
    """List projects."""
    from antiphon.cli import admin

    def work(server: "Admin") -> None:
        found = server.listed("projects")
        rows = [_row(card) for card in found]
        print(admin.as_json({"projects": found}) if as_json else admin.table(rows, "there is no project"))

    admin.run(work, url)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Unlike that of every other project.")],
    note: options.Note = "",
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """Make a project; prints its id."""
    from antiphon.cli import admin

    def work(server: "Admin") -> None:
        card = server.made("projects", name=name, note=note)
        print(admin.as_json(card) if as_json else card.get("id"))
        admin.note(f"made project {name}")

    admin.run(work, url)


@app.command()
def rename(
    project: Project,
    name: Annotated[str, typer.Argument(help="The new name.")],
    url: options.ServerUrl = None,
) -> None:
    """Give a project another name."""
    _change(project, url, f"renamed {project} to {name}", name=name)


@app.command()
def archive(project: Project, url: options.ServerUrl = None) -> None:
    """End a project: from now on its keys are accepted nowhere."""
    _change(project, url, f"archived {project}", archived=True)


@app.command()
def restore(project: Project, url: options.ServerUrl = None) -> None:
    """Take a project out of the archive; its keys are accepted again."""
    _change(project, url, f"restored {project}", archived=False)


@app.command()
def members(project: Project, url: options.ServerUrl = None, as_json: options.Json = False) -> None:
    """List who is what in a project."""
    from antiphon.cli import admin

    def work(server: "Admin") -> None:
        found = server.listed("projects", project, "members")
        rows = [
            {"user": str(card.get("user")), "role": str(card.get("role")), "since": _when(card, "created_at")}
            for card in found
        ]
        otherwise = f"nobody is in {project}; antiphon projects add-member {project} USER adds somebody"
        print(admin.as_json({"members": found}) if as_json else admin.table(rows, otherwise))

    admin.run(work, url)


@app.command()
def add_member(
    project: Project,
    user: User,
    role: Annotated[Role, typer.Option(help="What the user may.")] = Role.MEMBER,
    url: options.ServerUrl = None,
) -> None:
    """Make a user a member of a project, or change the role."""
    from antiphon.cli import admin

    def work(server: "Admin") -> None:
        server.put("projects", project, "members", user, role=role)
        admin.note(f"{user} is {role} of {project}")

    admin.run(work, url)


@app.command()
def remove_member(project: Project, user: User, url: options.ServerUrl = None) -> None:
    """End a membership."""
    from antiphon.cli import admin

    def work(server: "Admin") -> None:
        server.removed("projects", project, "members", user)
        admin.note(f"{user} is no member of {project} any more")

    admin.run(work, url)


def _change(project: str, url: str | None, said: str, **fields: object) -> None:
    from antiphon.cli import admin

    def work(server: "Admin") -> None:
        server.changed("projects", project, **fields)
        admin.note(said)

    admin.run(work, url)


def _row(card: "Card") -> dict[str, str]:
    state = f"archived {_when(card, 'archived_at')}" if card.get("archived_at") else "active"
    return {
        "id": str(card.get("id")),
        "name": str(card.get("name")),
        "created": _when(card, "created_at"),
        "state": state,
        "note": str(card.get("note")),
    }


def _when(card: "Card", name: str) -> str:
    from antiphon.cli.admin import cell

    return cell(name, card.get(name))
