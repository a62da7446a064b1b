"""`antiphon config`: the effective settings and where each came from. Starts nothing and opens no model."""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from antiphon.cli.asked import ADAPTERS_VARIABLE, ALIASES_VARIABLE, DEMO_MODEL, SETTINGS_FILE, Asked
from antiphon.cli.serve import refusals
from antiphon.errors import AntiphonError
from antiphon.settings import SECTIONS, Settings, declared, layers
from antiphon.settings_model import ModelSettings
from antiphon.settings_said import SourceKind, flag

SECRET_SETTINGS = frozenset({"api_key", "pepper", "url"})
MASK = "***"


@dataclass(frozen=True, slots=True)
class Source:
    """Where one effective value was said."""

    kind: SourceKind
    place: str = ""
    """The file's path, the variable's name or the flag; empty for a default."""

    def __str__(self) -> str:
        return self.place or str(self.kind)


DEFAULT = Source(SourceKind.DEFAULT)


@dataclass(frozen=True, slots=True)
class Row:
    """One effective setting."""

    key: str
    """As `section.name`, or `models.NAME.name`."""
    value: object
    source: Source


def run(asked: Asked, as_json: bool) -> int:
    """Prints them, and what `serve` refuses of them; returns the process's exit status."""
    try:
        settings = asked.settings()
        listed = (model_rows, adapter_rows, alias_rows)
        rows = [*section_rows(settings, asked), *(row for rows in listed for row in rows(settings, asked))]
    except AntiphonError as error:
        print(f"antiphon: {error.message}", file=sys.stderr)
        return 1
    print(as_object(rows) if as_json else f"{as_table(rows)}\n\n{_file(asked)}")
    refused = [error.message for error in refusals(settings)]
    for said in refused:
        print(f"antiphon: serve refuses this: {said}", file=sys.stderr)
    return 1 if refused else 0


def _file(asked: Asked) -> str:
    """Which settings file was read, or where one would be."""
    file = asked.file()
    return (
        f"settings file: {file.absolute()}"
        if file
        else f"settings file: none; {SETTINGS_FILE} here would be read"
    )


def section_rows(settings: Settings, asked: Asked) -> Iterator[Row]:
    """The settings of every section, in the order of the documentation."""
    found = sources(*asked.sources())
    for section in SECTIONS:
        values = getattr(settings, section)
        for name, _, _, _ in declared(section):
            value = getattr(values, name)
            secret = name in SECRET_SETTINGS or (name == "store" and not str(value).startswith("sqlite:"))
            shown = MASK if secret and value else value
            yield Row(f"{section}.{name}", shown, found.get((section, name), DEFAULT))


def model_rows(settings: Settings, asked: Asked) -> Iterator[Row]:
    """What was said of each model: all of them come from the flags, or all from the file, or it is the
    demo."""
    in_file = [] if asked.models else models_in(*asked.sources())
    for index, model in enumerate(settings.models):
        said = dict.fromkeys(in_file[index], Source(SourceKind.FILE, str(asked.file()))) if in_file else {}
        if asked.models:
            demo = DEMO_MODEL if model.path == DEMO_MODEL["path"] else ()
            said = dict.fromkeys(demo, Source(SourceKind.DEFAULT, "the demo model"))
            said |= dict.fromkeys(("name", "path"), Source(SourceKind.FLAG, "--model"))
        elif not in_file:
            said = dict.fromkeys(DEMO_MODEL, Source(SourceKind.DEFAULT, "the demo model"))
        said |= {name: Source(SourceKind.FLAG, flag("models", name)) for name in asked.shared}
        for name in ModelSettings.__struct_fields__:
            yield Row(f"models.{model.name}.{name}", getattr(model, name), said.get(name, DEFAULT))


def adapter_rows(settings: Settings, asked: Asked) -> Iterator[Row]:
    """What was said of each adapter: all of them come from the flags, or the variable, or the file."""
    source = Source(SourceKind.FILE, str(asked.file()))
    if asked.adapters:
        source = Source(SourceKind.FLAG, "--lora")
    elif asked.said_adapters():
        source = Source(SourceKind.VARIABLE, ADAPTERS_VARIABLE)
    for adapter in settings.adapters:
        yield Row(f"adapters.{adapter.name}.path", adapter.path, source)
        yield Row(f"adapters.{adapter.name}.model", adapter.model, source)


def alias_rows(settings: Settings, asked: Asked) -> Iterator[Row]:
    """The model of each alias; the source as of an adapter."""
    source = Source(SourceKind.FILE, str(asked.file()))
    if asked.aliases:
        source = Source(SourceKind.FLAG, "--alias")
    elif asked.said_aliases():
        source = Source(SourceKind.VARIABLE, ALIASES_VARIABLE)
    for alias in settings.aliases:
        yield Row(f"aliases.{alias.name}", alias.model, source)


def as_object(rows: list[Row]) -> str:
    """One JSON object, by key."""
    shown = {
        row.key: {"value": row.value, "source": row.source.kind, "place": row.source.place} for row in rows
    }
    return json.dumps(shown, indent=2)


def as_table(rows: list[Row]) -> str:
    """Lines for people, the values aligned; what was not said is marked as a default."""
    key, value = (max(len(text) for text in column) for column in zip(*map(_cells, rows), strict=True))
    lines = []
    for row in rows:
        name, shown = _cells(row)
        lines.append(f"{name:{key}}  {shown:{value}}  {row.source}")
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, str]:
    shown = "none" if row.value is None or row.value == () else json.dumps(row.value)
    return row.key, shown


def sources(
    flags: Mapping[str, Mapping[str, object]], environ: Mapping[str, str], file: Path | None
) -> dict[tuple[str, str], Source]:
    """Where each setting was said that `settings.load` takes from the same flags, variables and file.

    Raises SettingsError for what cannot be read.
    """
    variables = {(section, name): env for section in SECTIONS for name, env, _, _ in declared(section)}
    found: dict[tuple[str, str], Source] = {}
    for kind, layer in layers(flags, environ, file):
        for section, name in _said_in(layer):
            match kind:
                case SourceKind.FILE:
                    place = str(file)
                case SourceKind.VARIABLE:
                    place = variables[section, name]
                case _:
                    place = flag(section, name)
            found[section, name] = Source(kind, place)
    return found


def models_in(
    flags: Mapping[str, Mapping[str, object]], environ: Mapping[str, str], file: Path | None
) -> list[list[str]]:
    """The names of what the file says of each of its models, in order."""
    found = layers(flags, environ, file)[0][1].get("models", [])
    return [list(model) for model in found]


def _said_in(layer: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for section in SECTIONS:
        values = layer.get(section)
        yield from ((section, name) for name in (values if isinstance(values, dict) else ()))
