"""`antiphon models`: fetch, convert, list and remove model files. It serves nothing."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.cli import options
from antiphon.cli.output import print_json, print_table, report_errors
from antiphon.errors import ModelFileError, SettingsError
from antiphon.weights.wheel_model import MINILM, find_wheel_model, remove_wheel_model

if TYPE_CHECKING:
    from antiphon.settings.models import HubSettings
    from antiphon.weights.hub.cache import CachedFile, HubCache, Leftover

app = options.make_group("models", "Fetch, convert, list and remove model files.")

RESUMABLE = "stopped; the same command goes on from what has arrived"
LEFTLESS = "stopped; nothing is left of it"
"""What an interrupted command says."""


class ModelKind(StrEnum):
    """Types in which an encoder's matrices are written."""

    F32 = "f32"
    F16 = "f16"
    Q8_0 = "q8_0"


@app.command()
def pull(
    reference: Annotated[
        str,
        typer.Argument(
            help="hf:OWNER/REPO:FILE.gguf or hf:OWNER/REPO@REVISION:FILE.gguf, or minilm, an embedding model "
            "that pip fetches."
        ),
    ],
    config: options.Config = None,
) -> None:
    """Fetch the current version of a file on the hub, check it, and print its path."""
    if reference == MINILM.name:
        with _load_hub_settings(config, when_interrupted=LEFTLESS) as settings:
            from antiphon.cli.model_files import fetch_minilm

            print(fetch_minilm(settings))
        return
    with _load_hub_settings(config) as settings:
        from antiphon.cli.model_files import open_hub, show_progress
        from antiphon.weights.hub.reference import parse

        with show_progress(sys.stderr) as tell:
            fetched = open_hub(settings).pull(parse(reference), tell)
        print(fetched.path)


@app.command()
def convert(
    source: Annotated[
        Path, typer.Argument(help="Directory of an encoder like BERT, as transformers saves it.")
    ],
    out: Annotated[Path, typer.Option(help="The GGUF file to write. An existing file is not overwritten.")],
    kind: Annotated[ModelKind, typer.Option("--type", help="Number format of the matrices.")] = ModelKind.F16,
) -> None:
    """Write an embedding model's safetensors as GGUF, and print the file's path."""

    with report_errors(when_interrupted=LEFTLESS):
        print(_convert(source, out, kind.upper()))


@app.command("list")
def list_models(config: options.Config = None, as_json: options.Json = False) -> None:
    """List fetched models with their sizes and references."""

    with _find_cache(config) as cache:
        rows, leftovers = list(_list_files(cache)), cache.leftovers()
        if as_json:
            print_json(_as_object(cache, rows, leftovers))
        else:
            _print_table(cache, rows, leftovers)


@app.command()
def remove(
    name: Annotated[
        str,
        typer.Argument(
            help="Its name or reference, as `list` shows it; hf:OWNER/REPO means all files of a repository."
        ),
    ],
    config: options.Config = None,
) -> None:
    """Remove a fetched file. Files that you gave to --model as a path are never removed."""

    with _find_cache(config) as cache:
        for line in _remove(cache, name):
            print(line)


@contextmanager
def _load_hub_settings(config: options.Config, when_interrupted: str = RESUMABLE) -> "Iterator[HubSettings]":
    """Yields the settings of the hub. An error ends the command."""
    with report_errors(when_interrupted=when_interrupted):
        from antiphon.cli.serve_options import ServeOptions

        yield ServeOptions(config=config).load_settings().hub


@contextmanager
def _find_cache(config: options.Config) -> "Iterator[HubCache]":
    """Yields the cache of fetched models. An error ends the command."""
    with _load_hub_settings(config) as settings:
        from antiphon.cli.model_files import find_cache

        yield find_cache(settings)


def _convert(source: Path, out: Path, kind: str) -> Path:
    """Converts a directory of saved weights to one file, completely or not at all. Raises ModelFileError."""
    from antiphon.weights.convert.bert import convert_bert

    if not (source / "config.json").is_file():
        raise ModelFileError(f"{source} holds no config.json; name a directory as transformers saves it")
    if out.exists():
        raise ModelFileError(f"{out} is there already; remove it, or name another file")
    try:
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=".convert-") as directory:
            partial = Path(directory, "converted.gguf")
            convert_bert(source, partial, kind)
            partial.replace(out)
    except OSError as problem:
        raise ModelFileError(f"cannot write {out}: {os.strerror(problem.errno or 0)}") from None
    return out.absolute()


def _remove(cache: "HubCache", text: str) -> list[str]:
    """Removes the files that the text names; returns a line for each. Raises SettingsError if it names none
    or several."""
    if text == MINILM.name and (size := remove_wheel_model(MINILM, cache.root)):
        return [f"removed {text}, {_format_size(size)}"]
    entries = cache.entries()
    repository = text.removeprefix("hf:")
    if repository != text and ":" not in repository:
        removed = [entry for entry in entries if entry.reference.repository == repository]
        lines = [_remove_entry(cache, entry) for entry in removed]
        if freed := cache.clear(repository):
            lines.append(f"removed unfinished files of hf:{repository}, {_format_size(freed)}")
        if lines:
            return lines
    removed = [entry for entry in entries if text in (str(entry.reference), entry.reference.name)]
    if not removed:
        raise SettingsError(
            f"no fetched model is called {text}; `antiphon models list` shows which there are"
        )
    if len(removed) > 1:
        which = ", ".join(str(entry.reference) for entry in removed)
        raise SettingsError(
            f"{text} is the name of {len(removed)} models; say which by its reference: {which}"
        )
    return [_remove_entry(cache, removed[0])]


def _remove_entry(cache: "HubCache", entry: "CachedFile") -> str:
    cache.remove(entry)
    return f"removed {entry.reference}, {_format_size(entry.size)}"


@dataclass(frozen=True, slots=True)
class _FileRow:
    """A complete file, as `list` shows it."""

    name: str
    reference: str
    commit: str
    """Of the hub's repository, or the version of the wheel."""
    checksum: str
    bytes: int
    path: str


def _list_files(cache: "HubCache") -> Iterator[_FileRow]:
    """Yields the files of the hub, then the model of the wheel."""
    for entry in cache.entries():
        name, reference = entry.reference.name, str(entry.reference)
        yield _FileRow(name, reference, entry.commit, entry.digest, entry.size, str(entry.path))
    if path := find_wheel_model(MINILM, cache.root):
        size = path.stat().st_size
        yield _FileRow(MINILM.name, MINILM.name, MINILM.version, MINILM.weights_digest, size, str(path))


def _as_object(cache: "HubCache", rows: list[_FileRow], leftovers: "list[Leftover]") -> dict[str, object]:
    """Builds the JSON object of the listing: the complete models and the unfinished downloads."""
    rest = [{"repository": left.repository, "bytes": left.size, "path": str(left.path)} for left in leftovers]
    return {"directory": str(cache.root), "models": [asdict(row) for row in rows], "unfinished": rest}


def _print_table(cache: "HubCache", files: list[_FileRow], leftovers: "list[Leftover]") -> None:
    cells = [(file.name, _format_size(file.bytes), file.commit[:8], file.reference) for file in files]
    cells += [("(unfinished)", _format_size(left.size), "", f"hf:{left.repository}") for left in leftovers]
    rows = [dict(zip(("name", "size", "commit", "reference"), each, strict=True)) for each in cells]
    print_table(rows, f"no model was fetched yet; {cache.root} is where they will lie")


def _format_size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
