"""`antiphon lora`: load, list and unload LoRA adapters of a running server. Reads no adapter itself."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.cli import options

if TYPE_CHECKING:
    from antiphon.cli.client import Client, Listed

app = typer.Typer(
    name="lora",
    help="Load, list and unload LoRA adapters of a running server.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
DEPLOY = "/empower/api/v1/lora"

HUB = "hf:"

UNAUTHORIZED = 401

SHORT = 23
"""Characters of a root in the table: `sha256:` and enough of the digest."""


@app.command()
def add(
    adapter: Annotated[
        str,
        typer.Argument(
            metavar="NAME=PATH",
            help="PATH of a GGUF adapter or PEFT directory: here, or in the server's directories; or "
            "hf:OWNER/REPO[@REVISION][:FILE.gguf] on the hub, where the server allows it.",
        ),
    ],
    model: Annotated[
        str | None, typer.Option(help="The model that it adapts. [the only one of the server]")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Put it in the place of one of the same name.")
    ] = False,
    url: options.ServerUrl = None,
) -> None:
    """Make an adapter a model of the server, from now until it stops."""

    def work(client: "Client") -> None:
        from antiphon.cli.asked import named_adapter

        said = named_adapter(adapter)
        base: dict[str, object] = {"base_model_name": model} if model else {}
        if str(said["path"]).startswith(HUB):
            client.said(DEPLOY, {"name": said["name"]} | _deployment(str(said["path"])) | base)
        else:
            body: dict[str, object] = {"lora_name": said["name"], "lora_path": _whole(str(said["path"]))}
            body |= {"load_inplace": True} if replace else {}
            client.said(LOAD, body | base)
        print(f"loaded {said['name']}")

    _run(work, url)


@app.command("list")
def list_adapters(url: options.ServerUrl = None, as_json: options.Json = False) -> None:
    """List the server's adapters, with the models that they adapt."""

    def work(client: "Client") -> None:
        found = [each for each in client.listed() if each.parent]
        print(_as_object(found) if as_json else _as_table(found))

    _run(work, url)


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="As `list` shows it.")], url: options.ServerUrl = None
) -> None:
    """Unload an adapter. Answers that are being made end; its file stays in the registry."""

    def work(client: "Client") -> None:
        client.said(UNLOAD, {"lora_name": name})
        print(f"unloaded {name}")

    _run(work, url)


def _run(work: Callable[["Client"], None], url: str | None) -> None:
    """Does it with the server; an error is one line and a status."""
    from antiphon.cli.client import CallFailed, Client
    from antiphon.cli.terminal import shown
    from antiphon.cli.where import KEY_VARIABLE, where
    from antiphon.errors import SettingsError

    try:
        work(Client(*where(url)))
    except (CallFailed, SettingsError) as problem:
        status = problem.status if isinstance(problem, CallFailed) else 0
        advice = f" Set {KEY_VARIABLE} to the server's key." if status == UNAUTHORIZED else ""
        print(f"antiphon: {shown(problem.message)}{advice}", file=sys.stderr)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _deployment(path: str) -> dict[str, object]:
    """`hf:OWNER/REPO[@REVISION][:FILE.gguf]` as a deployment asks for it; what is wrong with it is the
    server's to say."""
    place, colon, file = path.removeprefix(HUB).partition(":")
    repository, _, revision = place.partition("@")
    body: dict[str, object] = {"model_name": repository + colon + file, "model_source": "HF_HUB"}
    return body | ({"hf_revision": revision} if revision else {})


def _whole(path: str) -> str:
    """What is here is named in full, so that it means the same to a server that was started elsewhere on this
    machine; anything else is the server's to find."""
    here = Path(path).expanduser()
    return str(here.absolute()) if here.exists() else path


def _as_object(found: "list[Listed]") -> str:
    rows = [{"name": each.name, "model": each.parent, "root": each.root} for each in found]
    return json.dumps({"adapters": rows}, indent=2)


def _as_table(found: "list[Listed]") -> str:
    """Columns as wide as what is in them."""
    from antiphon.cli.terminal import shown

    if not found:
        return "no adapter is loaded; antiphon lora add NAME=PATH loads one"
    rows = [("NAME", "MODEL", "CONTENT")]
    rows += [(shown(each.name), shown(each.parent), shown(each.root[:SHORT])) for each in found]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
