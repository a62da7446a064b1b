"""The options that several commands share, each declared once. Only their names and help lines."""

from pathlib import Path
from typing import Annotated

import typer

Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        help="A GGUF file, as [NAME=]PATH or [NAME=]hf:OWNER/REPO:FILE, or cantor, the demo model; may be "
        "repeated. [cantor]",
    ),
]
Loras = Annotated[
    list[str] | None,
    typer.Option(
        "--lora",
        help="A LoRA adapter, as NAME=PATH of a GGUF file or PEFT directory; may be repeated. [none]",
    ),
]
Aliases = Annotated[
    list[str] | None,
    typer.Option(
        "--alias",
        help="Another name of a model, as NAME=MODEL; * on both sides for any; may be repeated. [none]",
    ),
]
Host = Annotated[str | None, typer.Option(help="Address to listen on. [127.0.0.1]")]
Port = Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one. [8000]")]
Workers = Annotated[
    int | None, typer.Option(help="HTTP processes, which share everything. [1]", min=1, max=64)
]
Sequences = Annotated[int | None, typer.Option(help="Choices that run at once, for each model. [8]")]
ContextLength = Annotated[
    int | None, typer.Option(help="Tokens of one sequence. [what the model has and the memory holds]")
]
Threads = Annotated[int | None, typer.Option(help="CPU threads of each engine. [chosen for the machine]")]
Exact = Annotated[bool | None, typer.Option(help="Bit-equal answers alone and in a batch. [demo model: on]")]
Config = Annotated[Path | None, typer.Option(help="Settings file. [antiphon.toml, here or in ANTIPHON_HOME]")]
LogLevel = Annotated[str | None, typer.Option(help="debug, info, warning or error. [info]")]
LogFormat = Annotated[str | None, typer.Option(help="text or json. [text]")]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
ServerUrl = Annotated[
    str | None,
    typer.Option("--url", help="Address of the server. [that of the settings: http://127.0.0.1:8000]"),
]
Note = Annotated[str, typer.Option(help="What it is for. [nothing]", show_default=False)]
