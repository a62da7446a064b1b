"""The `antiphon` command: its subcommands and their options, and nothing of what they do.

Every command imports its work when it runs. Help is plain text: the decorated one takes twice the time to
import.
"""

import typer

import antiphon
from antiphon.cli import options

app = typer.Typer(
    name="antiphon",
    help="One self-hosted server for chat and text completions.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
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
    model: options.Models = None,
    host: options.Host = None,
    port: options.Port = None,
    sequences: options.Sequences = None,
    context_length: options.ContextLength = None,
    threads: options.Threads = None,
    exact: options.Exact = None,
    config: options.Config = None,
    log_level: options.LogLevel = None,
    log_format: options.LogFormat = None,
) -> None:
    """Serve models over HTTP."""
    from antiphon.cli import serve as command
    from antiphon.cli.asked import Asked, given

    flags = {"server": given(host=host, port=port), "log": given(level=log_level, format=log_format)}
    shared = given(sequences=sequences, context_length=context_length, threads=threads, exact=exact)
    raise typer.Exit(command.run(Asked(flags, model or [], shared, config)))


@app.command("config")
def show_config(
    model: options.Models = None,
    host: options.Host = None,
    port: options.Port = None,
    sequences: options.Sequences = None,
    context_length: options.ContextLength = None,
    threads: options.Threads = None,
    exact: options.Exact = None,
    config: options.Config = None,
    log_level: options.LogLevel = None,
    log_format: options.LogFormat = None,
    json: options.Json = False,
) -> None:
    """Print the effective settings and where each came from; takes the options of `serve`."""
    from antiphon.cli import config as command
    from antiphon.cli.asked import Asked, given

    flags = {"server": given(host=host, port=port), "log": given(level=log_level, format=log_format)}
    shared = given(sequences=sequences, context_length=context_length, threads=threads, exact=exact)
    raise typer.Exit(command.run(Asked(flags, model or [], shared, config), as_json=json))


def main() -> None:
    """The console script."""
    app()
