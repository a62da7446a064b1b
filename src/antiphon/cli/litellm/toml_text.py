"""Writes settings as TOML: the part of it that `antiphon import` needs."""

import json
import re
from collections.abc import Iterator, Mapping

BARE = re.compile(r"[A-Za-z0-9_-]+")


def format_toml(tree: Mapping[str, object]) -> str:
    """Formats tables of settings. Values are texts, numbers, truth values, tables and lists of tables."""
    return "\n".join(_list_lines(tree, "")).lstrip("\n") + "\n"


def _list_lines(table: Mapping[str, object], path: str) -> Iterator[str]:
    """Yields the lines of a table: its values first, then the tables in it."""
    tables = {name: value for name, value in table.items() if isinstance(value, dict | list)}
    for name, value in table.items():
        if name not in tables:
            yield f"{_format_key(name)} = {_format_value(value)}"
    for name, value in tables.items():
        below = f"{path}.{_format_key(name)}".lstrip(".")
        for each in value if isinstance(value, list) else [value]:
            if isinstance(value, list):
                yield from ("", f"[[{below}]]")
            elif any(not isinstance(inner, dict | list) for inner in each.values()):
                yield from ("", f"[{below}]")
            yield from _list_lines(each, below)


def _format_key(name: str) -> str:
    return name if BARE.fullmatch(name) else _format_value(name)


def _format_value(value: object) -> str:
    """Formats a value. JSON's texts are TOML's, except for one control character."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
