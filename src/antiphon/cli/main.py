"""The `antiphon` command: its subcommands and their options.

Every command imports its implementation when it runs. Help is plain text, because decorated help needs twice
the time to import.
"""

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

import antiphon
from antiphon.cli import console
from antiphon.cli.commands import (
    import_config,
    keys,
    knowledge,
    limits,
    lora,
    models,
    prices,
    projects,
    requests,
    store,
    usage,
)
from antiphon.cli.output import report_output_errors

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter

    from antiphon.cli.serve_options import ServeOptions

COMPLETION_VARIABLE = "_ANTIPHON_COMPLETE"
"""The environment variable that a shell sets to request completions."""


class Shell(StrEnum):
    """A shell with command completion."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


class HelpGroup(StrEnum):
    """A group of commands in the help of `antiphon`."""

    RUN = "Run a server"
    USE = "Use a server"
    ADMINISTER = "Administer"
    DATA = "Models and data"


class GroupedCommands(TyperGroup):
    """Lists the commands by HelpGroup, in the order of their declarations. Typer does this only in decorated
    help."""

    def format_commands(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """See `TyperGroup.format_commands`."""
        width = max(map(len, self.commands))
        for group in HelpGroup:
            with formatter.section(group):
                formatter.write_dl(
                    [
                        (f"{name:{width}}", command.get_short_help_str(formatter.width - width - 6))
                        for name, command in self.commands.items()
                        if getattr(command, "rich_help_panel", None) == group
                    ]
                )


app = typer.Typer(
    name="antiphon",
    cls=GroupedCommands,
    help="One self-hosted server for chat and text completions.",
    no_args_is_help=True,
    add_completion=False,  # two options that edit the user's files; the command `completion` prints instead
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_requested: bool) -> None:
    """Prints the version and ends the command if the option is present."""
    if is_requested:
        print(antiphon.__version__)
        raise typer.Exit


@app.callback()
def _antiphon(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """One self-hosted server for chat and text completions."""


@app.command(rich_help_panel=HelpGroup.RUN)
@console.add_serve_options
def serve(serve_options: "ServeOptions") -> None:
    """Serve models over HTTP."""
    from antiphon.cli.commands import serve as command

    raise typer.Exit(command.run(serve_options))


@app.command("rolling-restart", rich_help_panel=HelpGroup.RUN)
def rolling_restart(
    pid: Annotated[
        int | None,
        typer.Option(
            help="The server's process id, if several servers share a home directory. [the only one]"
        ),
    ] = None,
) -> None:
    """Replace the HTTP processes of a running server, one by one.

    Finds the server on this machine by ANTIPHON_HOME. No connection and no stream breaks. If a new process
    does not start, the old ones continue, and the command ends with status 1."""
    from antiphon.cli.local_servers import restart

    restart(pid)


@app.command(rich_help_panel=HelpGroup.RUN)
def reload(
    pid: Annotated[
        int | None,
        typer.Option(
            help="The server's process id, if several servers share a home directory. [the only one]"
        ),
    ] = None,
) -> None:
    """Load the settings file of a running server again: providers, models and aliases.

    Finds the server on this machine by ANTIPHON_HOME, and prints the changes. No stream breaks. An invalid
    file changes nothing: the command ends with the reason and status 1."""
    from antiphon.cli.local_servers import reload as command

    command(pid)


@app.command("config", rich_help_panel=HelpGroup.RUN)
@console.add_serve_options
def show_config(serve_options: "ServeOptions", json: console.Json = False) -> None:
    """Print the settings and their sources.

    Accepts the options of `serve`, and shows their effect."""
    from antiphon.cli.commands import config as command

    raise typer.Exit(command.run(serve_options, as_json=json))


@app.command(rich_help_panel=HelpGroup.USE)
def chat(
    url: console.ServerUrl = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A model of the server; or a GGUF file, smollm2 or cantor for a new one. [the first model]"
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(help="Instructions for the model.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens of an answer. [limited by the context]")
    ] = None,
) -> None:
    """Chat with a model in the terminal.

    Uses a running server, or starts one if no server answers."""
    from antiphon.cli.commands import chat as command

    raise typer.Exit(command.run(url, model, system, max_tokens))


@app.command(rich_help_panel=HelpGroup.RUN)
@console.add_serve_options
def doctor(
    serve_options: "ServeOptions",
    load: Annotated[bool, typer.Option("--load", help="Also load each model, as serve does.")] = False,
    json: console.Json = False,
) -> None:
    """Find problems that prevent a server from running well.

    Accepts the options of `serve`, checks everything that it needs, and prints remedies. Changes nothing."""
    from antiphon.cli.doctor import report as command

    raise typer.Exit(command.run(serve_options, load=load, as_json=json))


@app.command(rich_help_panel=HelpGroup.USE)
def bench(
    url: console.ServerUrl = None,
    model: Annotated[str | None, typer.Option(help="The model. [the first one]")] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=512, help="Simultaneous requests.")] = 4,
    requests: Annotated[int, typer.Option(min=1, help="Total requests.")] = 32,
    max_tokens: Annotated[int, typer.Option(min=2, help="Most tokens of an answer.")] = 64,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Approximate tokens of a prompt.")] = 128,
    json: console.Json = False,
) -> None:
    """Measure any server with OpenAI's API."""
    from antiphon.cli.commands import bench as command
    from antiphon.cli.commands.bench import LoadPlan

    plan = LoadPlan(concurrency, requests, max_tokens, prompt_tokens)
    raise typer.Exit(command.run(url, model, plan, as_json=json))


@app.command(rich_help_panel=HelpGroup.RUN)
def top(
    url: console.ServerUrl = None,
    interval: Annotated[float, typer.Option(min=0.2, max=60, help="Seconds between two readings.")] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print the figures after two readings, and stop.")
    ] = False,
    json: console.Json = False,
) -> None:
    """Show the load of a running server; Ctrl-C ends the display."""
    from antiphon.cli.commands import top as command

    command.run(url, interval, once=once, as_json=json)


@app.command(rich_help_panel=HelpGroup.USE)
def version() -> None:
    """Print the version."""
    print(antiphon.__version__)


@app.command(rich_help_panel=HelpGroup.USE)
def completion(shell: Annotated[Shell, typer.Argument(help="The shell.")]) -> None:
    """Print a completion script. For bash: eval "$(antiphon completion bash)"."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    print(get_completion_script(prog_name="antiphon", complete_var=COMPLETION_VARIABLE, shell=shell))


app.add_typer(import_config.app, rich_help_panel=HelpGroup.RUN)
app.add_typer(projects.app, rich_help_panel=HelpGroup.ADMINISTER)
app.add_typer(projects.users_app, rich_help_panel=HelpGroup.ADMINISTER)
app.add_typer(keys.app, rich_help_panel=HelpGroup.ADMINISTER)
app.add_typer(limits.app, rich_help_panel=HelpGroup.ADMINISTER)
app.add_typer(prices.app, rich_help_panel=HelpGroup.ADMINISTER)
app.command(rich_help_panel=HelpGroup.ADMINISTER)(usage.usage)
app.command(rich_help_panel=HelpGroup.ADMINISTER)(keys.audit)
app.add_typer(requests.app, rich_help_panel=HelpGroup.ADMINISTER)
app.add_typer(models.app, rich_help_panel=HelpGroup.DATA)
app.add_typer(lora.app, rich_help_panel=HelpGroup.DATA)
app.add_typer(knowledge.app, rich_help_panel=HelpGroup.DATA)
app.add_typer(store.app, rich_help_panel=HelpGroup.DATA)


@cache
def build_command() -> "Command":
    """Builds the tree of all commands. Where many run in one process, as in the tests, it is built once."""
    return typer.main.get_command(app)


def main() -> None:
    """Runs the command line."""
    if COMPLETION_VARIABLE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
    with _build_stderr_context(sys.argv[1:]), report_output_errors():
        build_command()()


def _build_stderr_context(arguments: list[str]) -> AbstractContextManager[None]:
    """Returns a context that converts standard error to JSON if `arguments` start a server whose log is JSON.

    The context begins before the command line is parsed, so that errors of the command line are JSON too.
    """
    if arguments[:1] != ["serve"] or {"-h", "--help"} & set(arguments):
        return nullcontext()
    from antiphon.cli.serve_options import ServeOptions
    from antiphon.telemetry.logs import convert_stderr

    log_format, config = _find_option(arguments, "--log-format"), _find_option(arguments, "--config")
    flags = {"log": {"format": log_format}} if log_format else {}
    serve_options = ServeOptions(flags, config=Path(config) if config else None)
    return convert_stderr() if serve_options.find_log_format() == "json" else nullcontext()


def _find_option(arguments: list[str], name: str) -> str | None:
    """Returns the last value of an option on the command line; None without one."""
    value = None
    for index, argument in enumerate(arguments):
        if argument == name and index + 1 < len(arguments):
            value = arguments[index + 1]
        elif argument.startswith(f"{name}="):
            value = argument.partition("=")[2]
    return value
