"""`antiphon lora`: load, list and unload LoRA adapters of a running server. It reads no adapter itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.cli import options
from antiphon.cli.admin_client import find_server
from antiphon.cli.output import print_json, print_table, report_errors

if TYPE_CHECKING:
    from antiphon.cli.client import Client

app = options.make_group("lora", "Load, list and unload LoRA adapters of a running server.")

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
DEPLOY = "/empower/api/v1/lora"

HUB = "hf:"

SHORT = 23
"""Characters of a root in the table: `sha256:` and the beginning of the digest."""


@app.command()
def add(
    adapter: Annotated[
        str,
        typer.Argument(
            metavar="NAME=PATH",
            help="Name of the model, and PATH of a GGUF adapter or PEFT directory, here or in the server's"
            " directories. If the server allows it, PATH can be hf:OWNER/REPO[@REVISION][:FILE.gguf].",
        ),
    ],
    model: Annotated[str | None, typer.Option(help="The base model. [the only one of the server]")] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the adapter that has this name.")
    ] = False,
    url: options.ServerUrl = None,
) -> None:
    """Load an adapter as a model of the server, until you remove it."""
    with _make_client(url) as client:
        from antiphon.cli.serve_options import parse_adapter

        named = parse_adapter(adapter)
        name, path = str(named["name"]), str(named["path"])
        base: dict[str, object] = {"base_model_name": model} if model else {}
        if path.startswith(HUB):
            client.call("POST", DEPLOY, {"name": name} | _parse_deployment(path) | base)
        else:
            body: dict[str, object] = {"lora_name": name, "lora_path": _to_absolute(path)}
            body |= {"load_inplace": True} if replace else {}
            client.call("POST", LOAD, body | base)
        print(f"loaded {name}")


@app.command("list")
def list_adapters(url: options.ServerUrl = None, as_json: options.Json = False) -> None:
    """List the server's adapters, with the models that they adapt."""
    with _make_client(url) as client:
        adapters = [row for row in client.list_model_rows() if row.parent]
        if as_json:
            rows = [{"name": row.id, "model": row.parent, "root": row.root or ""} for row in adapters]
            print_json({"adapters": rows})
        else:
            table = [
                {"name": row.id, "model": row.parent or "", "content": (row.root or "")[:SHORT]}
                for row in adapters
            ]
            print_table(table, "no adapter is loaded; antiphon lora add NAME=PATH loads one")


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="As `list` shows it.")], url: options.ServerUrl = None
) -> None:
    """Unload an adapter. Running answers finish. Its file stays in the registry."""
    with _make_client(url) as client:
        client.call("POST", UNLOAD, {"lora_name": name})
        print(f"unloaded {name}")


@contextmanager
def _make_client(url: str | None) -> Iterator["Client"]:
    """A client of the server; an error ends the command."""
    with report_errors():
        from antiphon.cli.client import Client

        yield Client(*find_server(url))


def _parse_deployment(path: str) -> dict[str, object]:
    """Converts `hf:OWNER/REPO[@REVISION][:FILE.gguf]` to the fields of a deployment; the server checks
    them."""
    location, colon, file = path.removeprefix(HUB).partition(":")
    repository, _, revision = location.partition("@")
    body: dict[str, object] = {"model_name": repository + colon + file, "model_source": "HF_HUB"}
    return body | ({"hf_revision": revision} if revision else {})


def _to_absolute(path: str) -> str:
    """Makes a path absolute if it exists here, since the server may run in another directory. Any other path
    is left to the server."""
    here = Path(path).expanduser()
    return str(here.absolute()) if here.exists() else path
