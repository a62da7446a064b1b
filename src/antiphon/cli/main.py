"""The `antiphon` command: its subcommands and their options, and nothing of what they do."""

from pathlib import Path
from typing import Annotated

import typer

import antiphon

app = typer.Typer(
    name="antiphon",
    help="One self-hosted server for chat and text completions.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _antiphon() -> None:
    """One self-hosted server for chat and text completions."""


@app.command()
def version() -> None:
    """Print the version."""
    print(antiphon.__version__)


@app.command()
def serve(
    model: Annotated[
        list[str] | None,
        typer.Option(help="A GGUF file, as PATH or NAME=PATH; repeat it for several. [the demo model]"),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. [127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one. [8000]")] = None,
    sequences: Annotated[
        int | None, typer.Option(help="Choices that run at once, for each model. [8]")
    ] = None,
    context_length: Annotated[
        int | None, typer.Option(help="Tokens of one sequence. [what the model has and the memory holds]")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads of each engine. [chosen for the machine]")
    ] = None,
    exact: Annotated[
        bool | None, typer.Option(help="Bit-equal answers alone and in a batch. [demo model: on]")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Settings file. [antiphon.toml, here or in ANTIPHON_HOME]")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error. [info]")] = None,
    log_format: Annotated[str | None, typer.Option(help="text or json. [text]")] = None,
) -> None:
    """Serve models over HTTP."""
    from antiphon.cli import serve as command

    flags: dict[str, dict[str, object | None]] = {
        "server": {"host": host, "port": port},
        "log": {"level": log_level, "format": log_format},
    }
    shared = {"sequences": sequences, "context_length": context_length, "threads": threads, "exact": exact}
    raise typer.Exit(command.run(flags, model or [], shared, config))


def main() -> None:
    """The console script."""
    app()
