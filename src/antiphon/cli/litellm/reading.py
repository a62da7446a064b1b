"""Reads LiteLLM's config.yaml, and collects notes about fields that Antiphon lacks."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from antiphon.domain.values import Struct, field
from antiphon.errors import SettingsError

LARGEST_FILE = 4 * 1024 * 1024
"""Most bytes of a file."""

VARIABLE_PREFIX = "os.environ/"
"""The prefix of a value that names an environment variable."""

Table = Mapping[str, object]


class ImportNotes(Struct):
    """Notes for the operator about omitted settings and remaining work."""

    lines: list[str] = field(default_factory=list)

    def add(self, field_path: str, reason: str) -> None:
        """Adds a note about a field of the file, unless the same note exists. `field_path`: as in
        `model_list[0].litellm_params`."""
        line = f"{field_path}: {reason}"
        if line not in self.lines:
            self.lines.append(line)

    def read_number(self, field_path: str, value: object, minimum: float = 0) -> float | None:
        """Returns a number above 0 and of at least `minimum`.

        Returns None for any other value, and adds a note unless the value is None.
        """
        number = get_number(value)
        if number is not None and number >= minimum:
            return number
        if value is not None:
            bound = f"of at least {minimum:g}" if minimum else "above 0"
            self.add(field_path, f"left out; it is no number {bound}")
        return None

    def read_count(self, field_path: str, value: object) -> int | None:
        """Returns a whole number above 0.

        Returns None for any other value, and adds a note unless the value is None.
        """
        number = get_number(value)
        if number is not None and number.is_integer():
            return int(number)
        if value is not None:
            self.add(field_path, "left out; it is no whole number above 0")
        return None

    def note_wrong_types(
        self, path_prefix: str, table: Table, table_names: Iterable[str], list_names: Iterable[str]
    ) -> None:
        """Adds a note for each of `table_names` that is no table, and for each of `list_names` that is no
        list.

        `path_prefix`: the path of `table` with a dot at its end; empty for the whole file.
        """
        for names, cls, noun in ((table_names, dict, "table"), (list_names, list, "list")):
            for name in names:
                if table.get(name) is not None and not isinstance(table[name], cls):
                    self.add(f"{path_prefix}{name}", f"left out; it is no {noun}")

    def note_unknown_fields(self, field_path: str, table: Table, handled_fields: set[str]) -> None:
        """Adds a note for each field that the conversion does not handle."""
        for name, value in table.items():
            if name not in handled_fields and value not in (None, [], {}):
                self.add(f"{field_path}.{name}", "left out; Antiphon has no such setting")


def read_config(path: Path) -> Table:
    """Reads a configuration file. Raises SettingsError."""
    import yaml  # type: ignore[import-untyped]  # noqa: TID251 - only with the safe loader

    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as problem:
        raise SettingsError(f"{path} cannot be read: {problem.strerror or problem}") from None
    if len(content) > LARGEST_FILE:
        raise SettingsError(f"{path} has more than {LARGEST_FILE:,} bytes")
    try:
        config = yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as problem:
        mark = getattr(problem, "problem_mark", None)
        position = f" in line {mark.line + 1}" if mark is not None else ""
        raise SettingsError(f"{path} is no YAML{position}") from None
    if not isinstance(config, dict):
        raise SettingsError(f"{path} has no model_list: name LiteLLM's config.yaml")
    return {str(name): value for name, value in config.items()}


def get_table(parent: Table, name: str) -> Table:
    """Returns a table inside a table; an empty table if the field is missing or has another type."""
    value = parent.get(name)
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else {}


def get_list(parent: Table, name: str) -> list[object]:
    """Returns a list inside a table; an empty list if the field is missing or has another type."""
    value = parent.get(name)
    return value if isinstance(value, list) else []


def get_variable(value: object) -> str | None:
    """Returns the name of the environment variable in a value; None for any other value."""
    if isinstance(value, str) and value.startswith(VARIABLE_PREFIX):
        return value.removeprefix(VARIABLE_PREFIX) or None
    return None


def resolve_text(value: object, environ: Mapping[str, str]) -> str | None:
    """Returns a text, or the value of the environment variable that it names; None without one."""
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
