"""`antiphon lora`: load, list and unload LoRA adapters of a running server. It reads no adapter itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.cli import console
from antiphon.cli.admin_client import find_server
from antiphon.cli.output import print_json, print_table, report_errors

if TYPE_CHECKING:
    from antiphon.cli.client import Client


app = console.create_group("lora", "Load, list and unload LoRA adapters of a running server.")

LOAD_PATH, UNLOAD_PATH = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"

DEPLOY_PATH = "/empower/api/v1/lora"

HUB_PREFIX = "hf:"


@app.command("add")
def add_adapter(
    adapter: Annotated[
        str,
        typer.Argument(
            metavar="NAME=PATH",
            help="PATH of a GGUF adapter or PEFT directory on this machine or on the server; or "
            "hf:OWNER/REPO[@REVISION][:FILE.gguf] on the hub, if the server allows it.",
        ),
    ],
    model: Annotated[
        str | None, typer.Option(help="The adapter's base model. [the server's only model]")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an adapter of the same name.")] = False,
    url: console.ServerUrl = None,
) -> None:
    """Load an adapter as a model of the server."""
    with _connect_client(url) as client:
        from antiphon.cli.serve_options import parse_adapter

        parsed_adapter = parse_adapter(adapter)
        name, path = str(parsed_adapter["name"]), str(parsed_adapter["path"])
        base_model: dict[str, object] = {"base_model_name": model} if model else {}
        if path.startswith(HUB_PREFIX):
            client.call("POST", DEPLOY_PATH, {"name": name} | _parse_deployment(path) | base_model)
        else:
            body: dict[str, object] = {"lora_name": name, "lora_path": _to_absolute(path)}
            body |= {"load_inplace": True} if replace else {}
            client.call("POST", LOAD_PATH, body | base_model)
        print(f"loaded {name}")


@app.command("list")
def list_adapters(
    wide: console.Wide = False, url: console.ServerUrl = None, as_json: console.Json = False
) -> None:
    """List the server's adapters with their base models."""
    with _connect_client(url) as client:
        adapters = [row for row in client.list_model_rows() if row.parent]
        if as_json:
            rows = [{"name": row.id, "model": row.parent, "root": row.root or ""} for row in adapters]
            print_json({"adapters": rows})
        else:
            table = [
                {"name": row.id, "model": row.parent or "", "content": row.root or ""} for row in adapters
            ]
            empty_message = "no adapter is loaded; antiphon lora add NAME=PATH loads one"
            print_table(table, empty_message, () if wide else ("content",))


@app.command("remove")
def remove_adapter(
    name: Annotated[str, typer.Argument(help="The adapter's name.")], url: console.ServerUrl = None
) -> None:
    """Unload an adapter. Running answers finish. Its file stays in the registry."""
    with _connect_client(url) as client:
        client.call("POST", UNLOAD_PATH, {"lora_name": name})
        print(f"unloaded {name}")


@contextmanager
def _connect_client(url: str | None) -> Iterator["Client"]:
    """Yields a client of the server. An error ends the command."""
    with report_errors():
        from antiphon.cli.client import Client

        yield Client(*find_server(url))


def _parse_deployment(path: str) -> dict[str, object]:
    """Converts `hf:OWNER/REPO[@REVISION][:FILE.gguf]` to fields of a deployment. The server checks them."""
    location, colon, file = path.removeprefix(HUB_PREFIX).partition(":")
    repository, _, revision = location.partition("@")
    body: dict[str, object] = {"model_name": repository + colon + file, "model_source": "HF_HUB"}
    return body | ({"hf_revision": revision} if revision else {})


def _to_absolute(path: str) -> str:
    """Makes a path absolute if it exists on this machine, because the server may run in another directory."""
    local_path = Path(path).expanduser()
    return str(local_path.absolute()) if local_path.exists() else path
