"""Reads LiteLLM's config.yaml, and collects what Antiphon cannot take."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from antiphon.errors import SettingsError

LARGEST = 4 * 1024 * 1024
"""Bytes of a file. Real ones have some thousands."""

REFERENCE = "os.environ/"
"""The beginning of a value that is in an environment variable."""

Table = Mapping[str, object]


@dataclass(slots=True)
class ImportNotes:
    """What the operator must know: what was left out, and what is left to do."""

    lines: list[str] = field(default_factory=list)

    def add(self, place: str, reason: str) -> None:
        """Adds a line about a place in the file."""
        line = f"{place}: {reason}"
        if line not in self.lines:
            self.lines.append(line)

    def read_number(self, place: str, value: object, least: float = 0) -> float | None:
        """Returns a number above 0 and of at least `least`; None for any other value. Adds a line unless
        there is none."""
        number = get_number(value)
        if number is not None and number >= least:
            return number
        if value is not None:
            self.add(place, f"left out; it is no number {f'of at least {least:g}' if least else 'above 0'}")
        return None

    def read_count(self, place: str, value: object) -> int | None:
        """Returns a whole number above 0; None for any other value. Adds a line unless there is none."""
        number = get_number(value)
        if number is not None and number.is_integer():
            return int(number)
        if value is not None:
            self.add(place, "left out; it is no whole number above 0")
        return None

    def require_shapes(self, place: str, table: Table, tables: Iterable[str], lists: Iterable[str]) -> None:
        """Adds a line for each field of a table that should be a table or a list, and is not."""
        for names, cls, noun in ((tables, dict, "table"), (lists, list, "list")):
            for name in names:
                if table.get(name) is not None and not isinstance(table[name], cls):
                    self.add(f"{place}{name}", f"left out; it is no {noun}")

    def add_rest(self, place: str, table: Table, taken: set[str]) -> None:
        """Adds a line for each field of a table that was not taken."""
        for name, value in table.items():
            if name not in taken and value not in (None, [], {}):
                self.add(f"{place}.{name}", "left out; Antiphon has no such setting")


def read_config(path: Path) -> Table:
    """Reads a file. Raises SettingsError."""
    import yaml  # type: ignore[import-untyped]  # noqa: TID251 - the safe loader makes plain values only

    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as problem:
        raise SettingsError(f"{path} cannot be read: {problem.strerror or problem}") from None
    if len(content) > LARGEST:
        raise SettingsError(f"{path} has more than {LARGEST:,} bytes, so it is no configuration")
    try:
        config = yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as problem:
        mark = getattr(problem, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        raise SettingsError(f"{path} is no YAML{where}") from None
    if not isinstance(config, dict):
        raise SettingsError(f"{path} has no model_list: name LiteLLM's config.yaml")
    return {str(name): value for name, value in config.items()}


def get_table(parent: Table, name: str) -> Table:
    """Returns a table inside a table; an empty one if there is none."""
    value = parent.get(name)
    return {str(key): each for key, each in value.items()} if isinstance(value, dict) else {}


def get_list(parent: Table, name: str) -> list[object]:
    """Returns a list inside a table; an empty one if there is none."""
    value = parent.get(name)
    return value if isinstance(value, list) else []


def get_variable(value: object) -> str | None:
    """Returns the name of the environment variable that a value refers to; None for any other value."""
    if isinstance(value, str) and value.startswith(REFERENCE):
        return value.removeprefix(REFERENCE) or None
    return None


def get_text(value: object, environ: Mapping[str, str]) -> str | None:
    """Returns a text, or the value of the variable that it refers to; None without one."""
    variable = get_variable(value)
    if variable is not None:
        return environ.get(variable) or None
    return value if isinstance(value, str) and value else None


def get_number(value: object) -> float | None:
    """Returns a positive number; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if 0 < number < float("inf") else None
