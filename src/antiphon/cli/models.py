"""`antiphon models`: fetch, convert, list and remove model files. Serves nothing."""

import json
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.cli import options

if TYPE_CHECKING:
    from antiphon.settings_hub import HubSettings
    from antiphon.weights.cache import Cache, Fetched, Leftover

app = typer.Typer(
    name="models",
    help="Fetch, convert, list and remove model files.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Kind(StrEnum):
    """Formats that encoders are written in."""

    F32 = "f32"
    F16 = "f16"
    Q8_0 = "q8_0"


INTERRUPTED = 130
"""The exit status that shells give what Ctrl-C ended."""


@app.command()
def pull(
    reference: Annotated[
        str, typer.Argument(help="hf:OWNER/REPO:FILE.gguf or hf:OWNER/REPO@REVISION:FILE.gguf")
    ],
    config: options.Config = None,
) -> None:
    """Fetch a file as the hub has it now, check it, and print its path."""
    from antiphon.weights.reference import parse

    def work(settings: "HubSettings") -> None:
        from antiphon.cli.fetching import hub_of, shown

        with shown(sys.stderr) as tell:
            fetched = hub_of(settings).pull(parse(reference), tell)
        print(fetched.path)

    _run(work, config)


@app.command()
def convert(
    source: Annotated[
        Path, typer.Argument(help="Directory of an encoder of BERT's kind, as transformers saves it.")
    ],
    out: Annotated[Path, typer.Option(help="The GGUF file to write; one that is there stays.")],
    kind: Annotated[Kind, typer.Option("--type", help="Number format of the matrices.")] = Kind.F16,
) -> None:
    """Write an embedding model's safetensors as GGUF, and print the file's path."""

    def work() -> None:
        from antiphon.cli.converting import converted

        print(converted(source, out, kind.upper()))

    _shown(work)


@app.command("list")
def list_models(config: options.Config = None, as_json: options.Json = False) -> None:
    """List what was fetched, with its size and what names it."""

    def work(settings: "HubSettings") -> None:
        from antiphon.cli.fetching import cache_of

        cache = cache_of(settings)
        entries, leftovers = cache.entries(), cache.leftovers()
        print(_as_object(cache, entries, leftovers) if as_json else _as_table(cache, entries, leftovers))

    _run(work, config)


@app.command()
def remove(
    name: Annotated[
        str,
        typer.Argument(
            help="As `list` shows it: the name or the reference; hf:OWNER/REPO for all of a repository."
        ),
    ],
    config: options.Config = None,
) -> None:
    """Remove a fetched file. Files that --model names by a path are never touched."""

    def work(settings: "HubSettings") -> None:
        from antiphon.cli.fetching import cache_of

        cache = cache_of(settings)
        for line in _removed(cache, name):
            print(line)

    _run(work, config)


def _run(work: Callable[["HubSettings"], None], config: options.Config) -> None:
    """Does it with the settings; an error is one line and a status."""
    from antiphon.cli.asked import Asked

    _shown(
        lambda: work(Asked(config=config).settings().hub), "the same command goes on from what has arrived"
    )


def _shown(work: Callable[[], None], again: str = "nothing is left of it") -> None:
    """Does it; an error is one line and a status. `again`: what becomes of work that is interrupted."""
    from antiphon.errors import AntiphonError

    try:
        work()
    except AntiphonError as error:
        print(f"antiphon: {error.message}", file=sys.stderr)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        print(f"antiphon: stopped; {again}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def _removed(cache: "Cache", text: str) -> list[str]:
    """Removes what the text names; a line for each. Raises SettingsError where it names nothing or two."""
    if text.startswith("hf:") and ":" not in text.removeprefix("hf:"):
        lines = list(_cleared(cache, text.removeprefix("hf:")))
        if lines:
            return lines
    entry = _named(cache, text)
    cache.remove(entry)
    return [_gone(entry)]


def _cleared(cache: "Cache", repository: str) -> Iterator[str]:
    """Removes all that was fetched of a repository."""
    for entry in cache.entries():
        if entry.reference.repository == repository:
            cache.remove(entry)
            yield _gone(entry)
    if freed := cache.clear(repository):
        yield f"removed unfinished files of hf:{repository}, {_size(freed)}"


def _named(cache: "Cache", text: str) -> "Fetched":
    from antiphon.errors import SettingsError

    entries = cache.entries()
    found = [entry for entry in entries if text in (str(entry.reference), entry.reference.name)]
    if len(found) == 1:
        return found[0]
    if found:
        which = ", ".join(str(entry.reference) for entry in found)
        raise SettingsError(f"{text} is the name of {len(found)} models; say which by its reference: {which}")
    raise SettingsError(f"no fetched model is called {text}; `antiphon models list` shows which there are")


def _gone(entry: "Fetched") -> str:
    return f"removed {entry.reference}, {_size(entry.size)}"


def _as_object(cache: "Cache", entries: "list[Fetched]", leftovers: "list[Leftover]") -> str:
    rows = [
        {
            "name": entry.reference.name,
            "reference": str(entry.reference),
            "commit": entry.commit,
            "checksum": entry.digest,
            "bytes": entry.size,
            "path": str(entry.path),
        }
        for entry in entries
    ]
    rest = [{"repository": left.repository, "bytes": left.size, "path": str(left.path)} for left in leftovers]
    return json.dumps({"directory": str(cache.root), "models": rows, "unfinished": rest}, indent=2)


def _as_table(cache: "Cache", entries: "list[Fetched]", leftovers: "list[Leftover]") -> str:
    """Columns as wide as what is in them."""
    if not entries and not leftovers:
        return f"no model was fetched yet; {cache.root} is where they will lie"
    rows = [("NAME", "SIZE", "COMMIT", "REFERENCE")]
    rows += [
        (entry.reference.name, _size(entry.size), entry.commit[:8], str(entry.reference)) for entry in entries
    ]
    rows += [("(unfinished)", _size(left.size), "", f"hf:{left.repository}") for left in leftovers]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
