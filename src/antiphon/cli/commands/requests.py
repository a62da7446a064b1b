"""`antiphon requests`: whether a project keeps its requests word by word, and what it has kept."""

from typing import Annotated

import typer

from antiphon.cli import options
from antiphon.cli.admin_client import Admin, connect_admin
from antiphon.cli.names import PROJECT, find_id
from antiphon.cli.output import CallFailed, Card, note, pick, print_list, print_one
from antiphon.domain.tenancy import Redaction
from antiphon.errors import SettingsError

app = options.make_group("requests", "Requests that a project keeps word by word, on a running server.")

Project = Annotated[str, typer.Argument(help="Its name or id.")]
LONGEST = 60
"""Characters of a request in the table."""


@app.command("on")
def turn_on(
    project: Project,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long each request is kept.")],
    redact: Annotated[
        str | None,
        typer.Option(
            metavar="KINDS",
            help="What is replaced in texts before they are kept, with commas between: "
            f"{', '.join(Redaction)}. "
            "[nothing]",
        ),
    ] = None,
    url: options.ServerUrl = None,
) -> None:
    """Keep a project's requests and answers from now on."""
    with connect_admin(url) as server:
        kinds = [] if redact is None else [each.strip() for each in redact.split(",") if each.strip()]
        if unknown := [each for each in kinds if each not in set(Redaction)]:
            raise SettingsError(f"{unknown[0]!r} is no kind; there are {', '.join(Redaction)}")
        id_ = find_id(server, PROJECT, project)
        server.send("PUT", "projects", id_, "recording", days=days, redact=kinds)
        without = f", without {', '.join(kinds)}" if kinds else ""
        note(f"requests of {project} are kept for {days} days{without}")


@app.command("off")
def turn_off(project: Project, url: options.ServerUrl = None) -> None:
    """Keep no further requests. Kept requests stay until they expire."""
    with connect_admin(url) as server:
        server.delete("projects", find_id(server, PROJECT, project), "recording")
        note(f"requests of {project} are not kept any more")


@app.command("list")
def list_requests(
    project: Project,
    most: Annotated[
        int, typer.Option("--limit", min=1, max=100, help="Number of requests, the latest first.")
    ] = 20,
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """List kept requests. The audit notes that you read them."""
    with connect_admin(url) as server:
        query = {"project": find_id(server, PROJECT, project)}
        cards = server.list("requests", most=most, query=query)
        print_list("requests", cards, _format_row, f"{project} has kept no request", as_json)


@app.command()
def read(
    request: Annotated[str | None, typer.Argument(help="Its id, as `list` shows it.")] = None,
    latest: Annotated[
        str | None,
        typer.Option(metavar="PROJECT", help="Read the latest request of this project instead: name or id."),
    ] = None,
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """Read a kept request and its answer. The audit notes that you read it."""
    with connect_admin(url) as server:
        if (request is None) == (latest is None):
            raise SettingsError("name one request: by its id, or by --latest PROJECT")
        card = server.get("requests", request) if request else _find_latest(server, str(latest))
        print_one(card, as_json)


@app.command()
def erase(project: Project, url: options.ServerUrl = None) -> None:
    """Remove all kept requests and summaries of a project, for good."""
    with connect_admin(url) as server:
        id_ = find_id(server, PROJECT, project)
        removed = server.erase("requests", project=id_).get("removed")
        note(f"removed {removed} requests of {project}")


def _find_latest(server: Admin, project: str) -> Card:
    """Returns the latest request that a project has kept. Raises CallFailed."""
    cards = server.list("requests", most=1, query={"project": find_id(server, PROJECT, project)})
    if not cards:
        raise CallFailed(f"{project} has kept no request")
    return cards[0]


def _format_row(card: Card) -> dict[str, str]:
    row = pick(card, "id", "created_at", "expires_at")
    body = str(card.get("request"))
    return {**row, "request": body if len(body) <= LONGEST else body[: LONGEST - 3] + "..."}
