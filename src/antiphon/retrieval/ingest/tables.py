"""Writes tables as text: as Markdown tables, or as records with lines `name: value`."""

from collections.abc import Iterable, Sequence


def format_row(cells: Sequence[str]) -> str:
    """Returns one line of a Markdown table. Escapes bars, and joins the lines of a cell."""
    texts = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return "| " + " | ".join(texts) + " |"


def format_table(rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table. The first row becomes the header. Rows without text are left out."""
    lines = [format_row(row) for row in rows if any(cell.strip() for cell in row)]
    if lines:
        columns = lines[0].replace("\\|", "").count("|") - 1
        lines.insert(1, format_row(["---"] * columns))
    return "\n".join(lines)


def format_records(rows: Iterable[Sequence[str]]) -> str:
    """Returns one paragraph for each row after the first row, which contains the names of the columns. Rows
    without text are left out."""
    filled = [row for row in rows if any(cell.strip() for cell in row)]
    if len(filled) < 2:
        return "\n".join(", ".join(filter(None, map(str.strip, row))) for row in filled)
    return "\n\n".join(format_record(filled[0], row) for row in filled[1:])


def format_record(names: Sequence[str], cells: Sequence[str]) -> str:
    """Returns a row as lines `name: value`. A column without a name is named by its number. An empty cell
    gets no line."""
    lines = []
    for position, cell in enumerate(cells):
        name = names[position].strip() if position < len(names) else ""
        if value := cell.strip():
            lines.append(f"{name or f'column {position + 1}'}: {value}")
    return "\n".join(lines)
