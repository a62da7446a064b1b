"""Options that several commands share, each declared once, and the times that their values contain."""

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated

import typer

from antiphon.errors import SettingsError


def make_group(name: str, summary: str) -> typer.Typer:
    """A command with subcommands."""
    return typer.Typer(name=name, help=summary, no_args_is_help=True, rich_markup_mode=None)


Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        help="A GGUF file, as [NAME=]PATH or [NAME=]hf:OWNER/REPO:FILE; or cantor (the demo model), or"
        " minilm (an embedding model that pip fetches). Can be repeated. [cantor]",
    ),
]
Loras = Annotated[
    list[str] | None,
    typer.Option(
        "--lora",
        help="A LoRA adapter, as NAME=PATH of a GGUF file or PEFT directory. Can be repeated. [none]",
    ),
]
Aliases = Annotated[
    list[str] | None,
    typer.Option(
        "--alias",
        help="Another name of a model, as NAME=MODEL. * on both sides matches any characters. Can be "
        "repeated. [none]",
    ),
]
Host = Annotated[str | None, typer.Option(help="Address to listen on. [127.0.0.1]")]
Port = Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one. [8000]")]
Workers = Annotated[int | None, typer.Option(help="Number of HTTP processes. [1]", min=1, max=64)]
Cluster = Annotated[
    str | None,
    typer.Option(
        help="Run models on a Ray cluster: local starts one on this machine, HOST:PORT joins one. [none]"
    ),
]
Sequences = Annotated[int | None, typer.Option(help="Answers that each model computes at once. [8]")]
ContextLength = Annotated[
    int | None,
    typer.Option(help="Tokens of one prompt and its answer. [the model's own, if the memory allows]"),
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
Note = Annotated[str, typer.Option(help="What it is for. [nothing]", show_default=False)]

SERVING: dict[str, object] = {
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
"""The options of `serve`, by parameter."""


def with_serving_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of `serve` to a command, which receives them as one `ServeOptions`."""
    shared = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in SERVING.items()
    ]
    own = [
        each.replace(kind=Parameter.KEYWORD_ONLY) for each in list(signature(command).parameters.values())[1:]
    ]

    @wraps(command)
    def run(**values: object) -> None:
        from antiphon.cli.serve_options import build_serve_options

        command(build_serve_options({name: values.pop(name) for name in SERVING}), **values)

    run.__signature__ = Signature([*shared, *own])  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in (*shared, *own)}
    return run


UNITS = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}
DURATION = re.compile(r"([0-9]{1,9})([smhdw])")


def now() -> int:
    """Unix seconds."""
    return int(time.time())


def parse_duration(text: str) -> int:
    """Seconds of `30d`, `12h`, `15m`, `90s`, `2w`. Raises SettingsError."""
    seconds = _parse_seconds(text)
    if seconds is None:
        raise SettingsError(f"{text!r} is no duration; write it as 90s, 15m, 12h, 30d or 2w")
    return seconds


def parse_past(text: str) -> int:
    """The Unix time a duration ago, or at the start of a date, as in `parse_time`. Raises SettingsError."""
    seconds = _parse_seconds(text)
    return parse_time(text) if seconds is None else now() - seconds


def parse_time(text: str) -> int:
    """The Unix time at the end of a duration from now, or at the start of a date, in UTC unless it has a
    zone.

    Raises SettingsError.
    """
    seconds = _parse_seconds(text)
    if seconds is not None:
        return now() + seconds
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(
            f"{text!r} is no time; write it as 12h, 30d, 2030-01-31 or 2030-01-31T12:00"
        ) from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())


def _parse_seconds(text: str) -> int | None:
    match = DURATION.fullmatch(text)
    return int(match[1]) * UNITS[match[2]] if match else None
