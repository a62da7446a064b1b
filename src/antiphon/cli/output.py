"""How commands print: results on standard output, notes on standard error, errors with an exit status."""

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import typer

from antiphon.errors import AntiphonError

PIPE = 500
"""Columns of output that is no terminal, so that nothing is cut."""

Card = Mapping[str, object]
"""A JSON object of the admin API."""

FAILED, INTERRUPTED = 1, 130
"""Exit statuses. The second is the one of shells for commands that Ctrl-C ended."""

UNAUTHORIZED, FORBIDDEN = 401, 403

KEY_VARIABLE = "ANTIPHON_API_KEY"


def escape_unprintable(text: str) -> str:
    """Escapes unprintable characters, as in `\\x1b`, so that the text cannot control a terminal."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def note(text: str) -> None:
    """Prints a message for people on standard error."""
    print(f"antiphon: {escape_unprintable(text)}", file=sys.stderr)


def print_json(value: object) -> None:
    """Prints JSON for programs."""
    print(json.dumps(value, indent=2))


def print_list(
    noun: str, cards: Sequence[Card], row: Callable[[Card], Mapping[str, str]], otherwise: str, as_json: bool
) -> None:
    """Prints objects as JSON under their noun, or as a table."""
    if as_json:
        print_json({noun: cards})
    else:
        print_table([row(card) for card in cards], otherwise)


def print_one(card: Card, as_json: bool) -> None:
    """Prints an object as JSON, or a line for each field."""
    if as_json:
        print_json(card)
    else:
        print_card(card)


def print_id(card: Card, as_json: bool, field: str = "id") -> None:
    """Prints a new object as JSON, or one field of it."""
    if as_json:
        print_json(card)
    else:
        print(card.get(field))


def pick(card: Card, *names: str) -> dict[str, str]:
    """Formats some fields of an object."""
    return {name: format_field(name, card.get(name)) for name in names}


def print_table(rows: Sequence[Mapping[str, str]], otherwise: str) -> None:
    """Prints rows as a table, or `otherwise` where there are none."""
    if not rows:
        print(otherwise)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in rows[0]:
        table.add_column(name.upper(), overflow="fold")  # ids are copied: nothing of them is cut
    for row in rows:
        table.add_row(*(Text(escape_unprintable(cell)) for cell in row.values()))
    Console(highlight=False, width=None if sys.stdout.isatty() else PIPE).print(table)


def print_card(card: Card) -> None:
    """Prints an object, a line for each field."""
    fields = {name: format_field(name, value) for name, value in card.items() if name != "object"}
    width = max(map(len, fields))
    for name, text in fields.items():
        print(f"{name:{width}}  {escape_unprintable(text)}".rstrip())


def format_field(name: str, value: object) -> str:
    """Formats a field of an object for people."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return " ".join(str(each) for each in value) or "none"
    if isinstance(value, int) and (name in ("at", "since", "until") or name.endswith("_at")):
        return format_time(value)
    return str(value)


def format_time(seconds: int) -> str:
    """Formats a time in UTC."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):  # beyond the calendar
        return str(seconds)


SHOWN_UNITS = 2
UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def format_duration(seconds: float) -> str:
    """Formats a time by its two largest units, rounded up: `6d 4h`, `35s`."""
    parts: list[str] = []
    left = math.ceil(seconds)
    for unit, size in UNITS:
        if left >= size and len(parts) < SHOWN_UNITS:
            parts.append(f"{left // size}{unit}")
            left %= size
    return " ".join(parts) or "now"


class CallFailed(Exception):
    """The request was refused, or the connection failed; the message is for people."""

    def __init__(self, message: str, *, status: int = 0, code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code


class NobodyThere(CallFailed):
    """Nothing listens at the address."""


Problem = CallFailed | AntiphonError

Advise = Callable[[Problem], str]
"""What to add to the message of an error; empty for nothing."""


def advise_key(problem: Problem) -> str:
    """Says how to give the key that the server asks for."""
    is_refused = isinstance(problem, CallFailed) and problem.status == UNAUTHORIZED
    return f"Set {KEY_VARIABLE} to the server's key." if is_refused else ""


@contextmanager
def report_errors(advise: Advise = advise_key, when_interrupted: str = "") -> Iterator[None]:
    """Ends the command where the block fails or is interrupted."""
    try:
        yield
    except (CallFailed, AntiphonError) as problem:
        advice = advise(problem)
        note(f"{problem.message.removesuffix('.')}. {advice}" if advice else problem.message)
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        if when_interrupted:
            note(when_interrupted)
        raise typer.Exit(INTERRUPTED) from None
