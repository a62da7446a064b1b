"""The output of commands: results on standard output, notes on standard error, and exit statuses."""

import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import typer

from antiphon.errors import AntiphonError

PIPE_WIDTH = 500
"""Columns of output to a pipe, so that no text is cut."""

COLUMN_GAP = 2
"""Blanks between two columns of a table."""

JsonObject = Mapping[str, object]
"""A JSON object of the admin API."""

FAILED, INTERRUPTED = 1, 130
"""Exit statuses. INTERRUPTED is the shell's status after Ctrl-C."""

UNAUTHORIZED, FORBIDDEN = 401, 403

KEY_VARIABLE = "ANTIPHON_API_KEY"


MOST_UNITS = 2

UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def escape_unprintable(text: str) -> str:
    r"""Escapes unprintable characters, as in `\\x1b`, so that the text cannot control a terminal."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def note(text: str) -> None:
    """Prints a message on standard error."""
    print(f"antiphon: {escape_unprintable(text)}", file=sys.stderr)


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def print_list(
    noun: str,
    rows: Sequence[JsonObject],
    format_row: Callable[[JsonObject], Mapping[str, str]],
    empty_message: str,
    as_json: bool,
    wide_columns: Sequence[str] = (),
    long_column: str | None = None,
) -> None:
    """Prints objects as JSON under their noun, or as a table without `wide_columns`; without objects, prints
    `empty_message`. See `print_table` for `long_column`."""
    if as_json:
        print_json({noun: rows})
    else:
        print_table([format_row(row) for row in rows], empty_message, wide_columns, long_column)


def print_object(json_object: JsonObject, as_json: bool) -> None:
    """Prints an object as JSON, or as one line for each field."""
    if as_json:
        print_json(json_object)
    else:
        print_fields(json_object)


def print_id(json_object: JsonObject, as_json: bool, field: str = "id") -> None:
    if as_json:
        print_json(json_object)
    else:
        print(json_object.get(field))


def format_fields(row: JsonObject, *names: str) -> dict[str, str]:
    """Formats some fields of an object."""
    return {name: format_field(name, row.get(name)) for name in names}


def print_table(
    rows: Sequence[Mapping[str, str]],
    empty_message: str,
    hidden_columns: Sequence[str] = (),
    long_column: str | None = None,
) -> None:
    """Prints rows as a table without `hidden_columns`, or `empty_message` if there are no rows.

    Output to a pipe has one line for each row, of any length. `long_column`: see `_print_in_terminal`.
    """
    if not rows:
        print(empty_message)
        return
    from rich.cells import cell_len

    columns = {
        name: [escape_unprintable(row[name]) for row in rows]
        for name in rows[0]
        if name not in hidden_columns
    }
    widths = {name: max(map(cell_len, (name, *cells))) for name, cells in columns.items()}
    if not sys.stdout.isatty():
        for cells in ([name.upper() for name in columns], *zip(*columns.values(), strict=True)):
            padded = (
                text + " " * (widths[name] - cell_len(text))
                for name, text in zip(columns, cells, strict=True)
            )
            print((" " * COLUMN_GAP).join(padded).rstrip())
    else:
        _print_in_terminal(columns, widths, long_column)


def _print_in_terminal(
    columns: Mapping[str, Sequence[str]], widths: Mapping[str, int], long_column: str | None
) -> None:
    """Prints the columns of a table, each with the width of its longest cell.

    Cells of a table that is too wide break between words, and `long_column` follows below each row. If words
    would break, each row becomes a block with a line for each column, because users copy names and ids.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    least_widths = {
        name: max(map(cell_len, (name, *(word for cell in cells for word in cell.split()))))
        for name, cells in columns.items()
    }

    def find_excess(sizes: Mapping[str, int]) -> int:
        return sum(sizes.values()) + COLUMN_GAP * (len(sizes) - 1) - console.width

    has_long_cells = long_column is not None and find_excess(widths) > 0
    names = [name for name in columns if not (has_long_cells and name == long_column)]
    if find_excess({name: least_widths[name] for name in names}) > 0:
        for index, cells in enumerate(zip(*columns.values(), strict=True)):
            block = Table.grid("name", "text", padding=(0, COLUMN_GAP, 0, 0))
            block.columns[1].overflow = "fold"
            for name, text in zip(columns, cells, strict=True):
                block.add_row(Text(name.upper(), "bold"), Text(text))
            console.print(*([] if index == 0 else [""]), block, sep="\n")
        return
    shown_widths = {name: widths[name] for name in names}
    while find_excess(shown_widths) > 0:
        widest = max(names, key=lambda name: (shown_widths[name] > least_widths[name], shown_widths[name]))
        shown_widths[widest] -= 1

    def build_table(first: int, end: int | None) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, COLUMN_GAP, 0, 0))
        table.show_header = first == 0
        for name, width in shown_widths.items():
            table.add_column(name.upper(), overflow="fold", width=width)
        for cells in zip(*(columns[name][first:end] for name in names), strict=True):
            table.add_row(*map(Text, cells))
        return table

    if not has_long_cells or long_column is None:
        console.print(build_table(0, None))
        return
    for index, text in enumerate(columns[long_column]):
        console.print(build_table(index, index + 1))
        if text:
            console.print(Padding(Text(text), (0, 0, 0, 2 * COLUMN_GAP)))


def print_fields(json_object: JsonObject) -> None:
    """Prints one line for each field of an object."""
    fields = {name: format_field(name, value) for name, value in json_object.items() if name != "object"}
    width = max(map(len, fields))
    for name, text in fields.items():
        print(f"{name:{width}}  {escape_unprintable(text)}".rstrip())


def format_field(name: str, value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return " ".join(str(item) for item in value) or "none"
    if isinstance(value, int) and (name in ("at", "since", "until") or name.endswith("_at")):
        return format_time(value)
    return str(value)


def format_time(seconds: int) -> str:
    """Formats Unix seconds as a time in UTC."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):  # outside of the calendar's range
        return str(seconds)


def format_duration(seconds: float) -> str:
    """Formats seconds by the two largest units, rounded up: `6d 4h`, `35s`."""
    parts: list[str] = []
    remaining = math.ceil(seconds)
    for unit, size in UNITS:
        if remaining >= size and len(parts) < MOST_UNITS:
            parts.append(f"{remaining // size}{unit}")
            remaining %= size
    return " ".join(parts) or "now"


class CallFailed(Exception):
    """The server rejected the request, or the connection failed. The message is for users."""

    def __init__(self, message: str, *, status: int = 0, code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code


class ServerUnreachable(CallFailed):
    """No server listens at the address."""


Problem = CallFailed | AntiphonError

AdviceFunction = Callable[[Problem], str]
"""Returns advice that follows an error's message; empty if there is none."""


def advise_on_key(problem: Problem) -> str:
    """Returns advice about the required key if the server rejected the key; empty for other problems."""
    is_unauthorized = isinstance(problem, CallFailed) and problem.status == UNAUTHORIZED
    return f"Set {KEY_VARIABLE} to the server's key." if is_unauthorized else ""


@contextmanager
def report_errors(advise: AdviceFunction = advise_on_key, interrupt_message: str = "") -> Iterator[None]:
    """Prints an error of the context and ends the command with an exit status.

    `advise`: returns the advice about an error. `interrupt_message`: printed after Ctrl-C; empty for none.
    """
    try:
        yield
    except (CallFailed, AntiphonError) as problem:
        advice = advise(problem)
        note(f"{problem.message.removesuffix('.')}. {advice}" if advice else problem.message)
        raise typer.Exit(FAILED) from None
    except (OutputFailed, BrokenPipeError):
        raise  # `report_output_errors` reports these
    except OSError as problem:  # such as a file without rights, or a full disk
        note(f"{problem.filename or 'a file'} cannot be used: {problem.strerror or problem}")
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        if interrupt_message:
            note(interrupt_message)
        raise typer.Exit(INTERRUPTED) from None


class OutputFailed(OSError):
    """Standard output cannot be written. A pipe that its reader closed raises BrokenPipeError instead."""


class _OutputFile(io.FileIO):
    """The file of standard output. Its errors differ from those of other files."""

    def write(self, data: memoryview, /) -> int:  # type: ignore[override]
        """See `io.FileIO.write`. `data`: the bytes of a `BufferedWriter`. Raises OutputFailed."""
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as problem:
            raise OutputFailed(problem.errno, problem.strerror) from None


@contextmanager
def report_output_errors() -> Iterator[None]:
    """Writes all that the context prints. If standard output cannot be written, prints one line on standard
    error and ends the command with status 1. A closed pipe ends it without a message."""
    _buffer_output()
    try:
        try:
            yield
        finally:
            flush_output()
    except OutputFailed as problem:
        discard_output()
        note(f"the output cannot be written: {problem.strerror}")
        raise SystemExit(FAILED) from None
    except BrokenPipeError:
        discard_output()
        raise SystemExit(FAILED) from None


def _buffer_output() -> None:
    """Opens standard output again, with a buffer.

    With PYTHONUNBUFFERED Python has none. It then ignores that the system wrote only a part of the bytes.
    """
    stdout = sys.stdout
    if not isinstance(stdout, io.TextIOWrapper) or not isinstance(
        stdout.buffer, io.BufferedWriter | io.FileIO
    ):
        return
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_OutputFile(stdout.fileno(), "wb", closefd=False)),
        encoding=stdout.encoding,
        errors=stdout.errors,
        line_buffering=stdout.line_buffering or stdout.write_through,
    )


def flush_output() -> None:
    """Writes what standard output still holds. Raises OutputFailed and BrokenPipeError."""
    if sys.stdout is not None:
        sys.stdout.flush()


def discard_output() -> None:
    """Discards what could not be written, so that the interpreter does not try again when it ends."""
    with open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), sys.stdout.fileno())
    sys.stdout.flush()
