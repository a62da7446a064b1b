"""Formats settings as TOML, with only the parts of TOML that `antiphon import` needs."""

import json
import re
from collections.abc import Iterator, Mapping

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def format_toml(table: Mapping[str, object]) -> str:
    """Formats tables of settings. Values may be strings, numbers, booleans, tables and lists of tables."""
    return "\n".join(_list_lines(table, "")).lstrip("\n") + "\n"


def _list_lines(table: Mapping[str, object], path: str) -> Iterator[str]:
    """Yields the lines of a table: first its values, then its tables."""
    tables = {name: value for name, value in table.items() if isinstance(value, dict | list)}
    for name, value in table.items():
        if name not in tables:
            yield f"{_format_key(name)} = {_format_value(value)}"
    for name, value in tables.items():
        child_path = f"{path}.{_format_key(name)}".lstrip(".")
        for child in value if isinstance(value, list) else [value]:
            if isinstance(value, list):
                yield from ("", f"[[{child_path}]]")
            elif any(not isinstance(child_value, dict | list) for child_value in child.values()):
                yield from ("", f"[{child_path}]")
            yield from _list_lines(child, child_path)


def _format_key(name: str) -> str:
    return name if BARE_KEY.fullmatch(name) else _format_value(name)


def _format_value(value: object) -> str:
    """Formats a value. TOML strings are JSON strings, except for one control character."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
