"""`antiphon requests`: the recording of a project's requests and answers."""

from typing import Annotated

import typer

from antiphon.cli import console
from antiphon.cli.admin_client import connect_admin
from antiphon.cli.names import PROJECT, find_id
from antiphon.cli.output import CallFailed, JsonObject, format_fields, note, print_list, print_object
from antiphon.domain.tenancy import Redaction
from antiphon.errors import SettingsError

app = console.create_group("requests", "Recorded requests of a project on a running server.")

Project = Annotated[str, typer.Argument(help="The project's name or id.")]

SHOWN_CHARACTERS = 60
"""Characters of a request in the table."""


@app.command("on")
def turn_on_recording(
    project: Project,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Days that the server keeps each request.")],
    redact: Annotated[
        str | None,
        typer.Option(
            metavar="KINDS",
            help=f"Data to remove from recorded requests, separated by commas: {', '.join(Redaction)}. "
            "[nothing]",
        ),
    ] = None,
    url: console.ServerUrl = None,
) -> None:
    """Start to record a project's requests and answers."""
    with connect_admin(url) as server:
        kinds = [] if redact is None else [kind.strip() for kind in redact.split(",") if kind.strip()]
        if unknown_kinds := [kind for kind in kinds if kind not in set(Redaction)]:
            raise SettingsError(
                f"{unknown_kinds[0]!r} is no kind of data to remove; the kinds are {', '.join(Redaction)}"
            )
        id_ = find_id(server, PROJECT, project)
        server.send("PUT", "projects", id_, "recording", days=days, redact=kinds)
        redaction_note = f", without {', '.join(kinds)}" if kinds else ""
        note(f"requests of {project} are kept for {days} days{redaction_note}")


@app.command("off")
def turn_off_recording(project: Project, url: console.ServerUrl = None) -> None:
    """Stop recording. Recorded requests stay until they expire."""
    with connect_admin(url) as server:
        server.delete("projects", find_id(server, PROJECT, project), "recording")
        note(f"requests of {project} are no longer recorded")


@app.command("list")
def list_requests(
    project: Project,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=100, help="Most requests, the latest first.")
    ] = 20,
    wide: console.Wide = False,
    url: console.ServerUrl = None,
    as_json: console.Json = False,
) -> None:
    """List recorded requests. The audit log notes this access."""
    with connect_admin(url) as server:
        query = {"project": find_id(server, PROJECT, project)}
        rows = server.list("requests", limit=limit, query=query)
        empty_message, hidden = f"{project} has no recorded request", () if wide else ("expires_at",)
        print_list("requests", rows, _format_request, empty_message, as_json, hidden)


@app.command("read")
def read_request(
    request: Annotated[str | None, typer.Argument(help="The request's id.")] = None,
    latest: Annotated[
        str | None,
        typer.Option(metavar="PROJECT", help="The latest request of this project: name or id."),
    ] = None,
    url: console.ServerUrl = None,
    as_json: console.Json = False,
) -> None:
    """Print a recorded request and its answer. The audit log notes this access."""
    with connect_admin(url) as server:
        if (request is None) == (latest is None):
            raise SettingsError("name one request: by its id, or by --latest PROJECT")
        if latest is not None:
            rows = server.list("requests", limit=1, query={"project": find_id(server, PROJECT, latest)})
            if not rows:
                raise CallFailed(f"{latest} has no recorded request")
            row = rows[0]
        else:
            row = server.get("requests", str(request))
        print_object(row, as_json)


@app.command("erase")
def erase_requests(project: Project, url: console.ServerUrl = None) -> None:
    """Remove all recorded requests and summaries of a project permanently."""
    with connect_admin(url) as server:
        id_ = find_id(server, PROJECT, project)
        removed = server.erase("requests", project=id_).get("removed")
        note(f"removed {removed} requests of {project}")


def _format_request(row: JsonObject) -> dict[str, str]:
    body = str(row.get("request"))
    return {
        **format_fields(row, "id", "created_at"),
        "request": body if len(body) <= SHOWN_CHARACTERS else body[: SHOWN_CHARACTERS - 3] + "...",
        **format_fields(row, "expires_at"),
    }
