"""Who says a setting, and how it is written there: a flag, a variable, a key of the file. Reads nothing."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from antiphon import validation_messages


class SourceKind(StrEnum):
    """Where a value can come from, weakest first."""

    DEFAULT = "default"
    FILE = "file"
    VARIABLE = "variable"
    FLAG = "flag"


LISTED = {"models": "model", "adapters": "adapter", "aliases": "alias"}
"""Lists of tables, and what one of them is."""

Layers = Sequence[tuple[SourceKind, Mapping[str, object]]]
"""What each source says, weakest first, by section and name."""


def flag(section: str, name: str) -> str:
    """A setting's flag, as it is typed."""
    prefix = "log-" if section == "log" else ""
    return f"--{prefix}{name.replace('_', '-')}"


def spelling(
    layers: Layers,
    tree: Mapping[str, object],
    file: Path | None,
    variables: Mapping[tuple[str, str], str],
) -> Callable[[str], str]:
    """What tells how the strongest source wrote the setting at a path. `tree` is all of them together."""

    def spell(path: str) -> str:
        listed, bracket, _ = path.partition("[")
        if bracket and listed in LISTED:
            place, _, name = path.partition(".")
            number = int(place.removeprefix(f"{listed}[").removesuffix("]")) + 1
            return of_one(LISTED[listed], validation_messages.came(tree, place), name, f"number {number}")
        section, _, name = path.partition("[")[0].partition(".")
        kind = next(kind for kind, layer in reversed(layers) if _says(layer.get(section), name))
        if kind is SourceKind.FLAG and name:
            return flag(section, name)
        if kind is SourceKind.VARIABLE and name:
            return variables[section, name]
        return f"{path} in {file}"

    return spell


def of_model(values: object, name: str) -> str:
    """A setting of a model, by the model's name where it has one."""
    return of_one("model", values, name, "without a name")


def of_one(noun: str, values: object, name: str, otherwise: str) -> str:
    """A setting of one in a list, by its name where it has one."""
    called = values.get("name") if isinstance(values, Mapping) else None
    which = f"the {noun} {called if called and isinstance(called, str) else otherwise}"
    return f"{name} of {which}" if name else which


def _says(held: object, name: str) -> bool:
    """Whether a layer's section says the setting; without a name, whether it says the section."""
    return held is not None and (not name or (isinstance(held, dict) and name in held))
