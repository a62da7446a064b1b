"""Which source each effective setting came from: a flag, a variable, the file, or the default."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from antiphon.settings import SECTIONS, declared, layers
from antiphon.settings_said import SourceKind, flag


@dataclass(frozen=True, slots=True)
class Source:
    """Where one effective value was said."""

    kind: SourceKind
    place: str = ""
    """The file's path, the variable's name or the flag; empty for a default."""

    def __str__(self) -> str:
        return self.place or str(self.kind)


DEFAULT = Source(SourceKind.DEFAULT)

Sources = Mapping[tuple[str, str], Source]
"""By section and name; what is not in it holds its default."""


def sources(
    flags: Mapping[str, Mapping[str, object]], environ: Mapping[str, str], file: Path | None
) -> Sources:
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
