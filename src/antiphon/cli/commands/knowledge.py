"""`antiphon knowledge`: the knowledge tables of a running server."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from antiphon.cli import options
from antiphon.cli.knowledge_client import TellProgress, connect_knowledge
from antiphon.cli.output import Card, note, pick, print_id, print_json, print_list
from antiphon.retrieval.base import SizeUnit

app = options.make_group("knowledge", "Knowledge tables of a running server.")

Table = Annotated[str, typer.Argument(help="Its name, as `list` shows it.")]
ChunkSize = Annotated[int | None, typer.Option(help="Largest size of a chunk. [the server's choice]")]
ChunkOverlap = Annotated[
    int | None, typer.Option(help="How much a chunk repeats of the chunk before it. [a tenth of its size]")
]
ChunkUnit = Annotated[
    SizeUnit | None, typer.Option(help="Unit of both sizes. [tokens if the server can count them]")
]

SHOWN = 300
"""Characters of a chunk that `search` shows."""


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="The table's name.")],
    model: Annotated[
        str | None, typer.Option(help="The embedding model. [the first one of the server]")
    ] = None,
    words_only: Annotated[
        bool, typer.Option("--words-only", help="Search by words only, without an embedding model.")
    ] = False,
    chunk_size: ChunkSize = None,
    chunk_overlap: ChunkOverlap = None,
    chunk_unit: ChunkUnit = None,
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """Create a table."""
    with connect_knowledge(url) as server:
        sizes = {"chunk_size": chunk_size, "chunk_overlap": chunk_overlap, "chunk_unit": chunk_unit}
        body: dict[str, object] = {"name": name}
        body |= {field: value for field, value in sizes.items() if value is not None}
        if model or words_only:
            body["embedding_model"] = None if words_only else model
        card = server.call("POST", body=body)
        print_id(card, as_json, "name")
        if card.get("search") == "words" and not words_only:
            note("the server has no embedding model for this key: the table finds by words only")


@app.command()
def add(
    table: Table,
    files: Annotated[list[Path], typer.Argument(help="Files to read.")],
    chunk_size: ChunkSize = None,
    chunk_overlap: ChunkOverlap = None,
    chunk_unit: ChunkUnit = None,
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """Add files to a table, one after the other, and wait until they are read."""
    sizes = {"chunk_size": chunk_size, "chunk_overlap": chunk_overlap, "chunk_unit": chunk_unit}
    added = []
    with connect_knowledge(url) as server:
        for file in files:
            with show_progress(file.name) as tell:
                card = server.add_file(table, file, sizes, tell)
            added.append(card)
            warnings = card.get("warnings")
            for warning in warnings if isinstance(warnings, list) else ():
                note(f"{file.name}: {warning}")
            if not as_json:
                print(f"added {file.name}: {card.get('chunks')} chunks")
    if as_json:
        print_json({"documents": added})


@app.command("list")
def list_tables(
    table: Annotated[
        str | None, typer.Argument(help="List the documents of this table. [list all tables]")
    ] = None,
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """List tables, or the documents of one."""
    with connect_knowledge(url) as server:
        if table is None:
            rows = server.call("GET").get("data")
            tables = rows if isinstance(rows, list) else []
            none = "there is no table; antiphon knowledge create NAME makes one"
            print_list("tables", tables, _format_table, none, as_json)
        else:
            documents = [row for row, _ in server.list_pages(table, "documents")]
            none = f"there is no document; antiphon knowledge add {table} FILE adds one"
            print_list("documents", documents, _format_document, none, as_json)


@app.command()
def search(
    table: Table,
    query: Annotated[str, typer.Argument(help="A question, or words.")],
    k: Annotated[int, typer.Option("-k", min=1, max=1000, help="Most chunks.")] = 3,
    url: options.ServerUrl = None,
    as_json: options.Json = False,
) -> None:
    """Find the chunks that answer a question."""
    with connect_knowledge(url) as server:
        answer = server.call("POST", table, "search", body={"query": query, "k": k})
        hits = answer.get("data")
        rows = hits if isinstance(hits, list) else []
        print_list("hits", rows, _format_hit, "nothing was found", as_json)


@app.command()
def remove(
    table: Table,
    document: Annotated[
        str | None, typer.Argument(help="The id or file name of one of its documents. [the whole table]")
    ] = None,
    url: options.ServerUrl = None,
) -> None:
    """Remove a table with all that it contains, or one document of it."""
    with connect_knowledge(url) as server:
        path = (table,) if document is None else (table, "documents", server.find_document(table, document))
        server.call("DELETE", *path)
        print(f"removed {table if document is None else document}")


@app.command("export")
def export_table(
    table: Table,
    file: Annotated[Path, typer.Argument(help="The new file, in JSON Lines.")],
    url: options.ServerUrl = None,
) -> None:
    """Write a table's settings, documents, chunks and vectors to one file."""
    with connect_knowledge(url) as server:
        with show_progress(table) as tell:
            count = server.export_table(table, file, tell)
        print(f"wrote {count} chunks to {file}")


@app.command("import")
def import_table(
    file: Annotated[Path, typer.Argument(help="A file that `export` has written.")],
    name: Annotated[str | None, typer.Option(help="The table's name. [the one in the file]")] = None,
    model: Annotated[str | None, typer.Option(help="The embedding model. [the one in the file]")] = None,
    url: options.ServerUrl = None,
) -> None:
    """Create a table from an exported file. Vectors are made again if the embedding model is different."""
    given = {"name": name, "embedding_model": model}
    changes = {field: value for field, value in given.items() if value is not None}
    with connect_knowledge(url) as server:
        with show_progress(file.name) as tell:
            made = server.import_table(file, changes, tell)
        print(made.describe())


@contextmanager
def show_progress(what: str) -> Iterator[TellProgress]:
    """Shows a bar on standard error while the context lasts; nothing where that is no terminal."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(file=sys.stderr)) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def _format_table(card: Card) -> dict[str, str]:
    shown = pick(card, "name", "search", "embedding_model", "documents", "chunks", "bytes", "updated_at")
    return shown if card.get("damage") is None else {**shown, "search": "damaged"}


def _format_document(card: Card) -> dict[str, str]:
    state = str(card.get("state"))
    shown = f"{state} {card.get('progress')}%" if state == "indexing" else state
    fields = pick(card, "id", "name", "bytes", "chunks")
    return {**fields, "state": shown, **pick(card, "created_at", "error")}


def _format_hit(card: Card) -> dict[str, str]:
    chunk, score = card.get("chunk"), card.get("score")
    shown = chunk if isinstance(chunk, dict) else {}
    return {
        "score": f"{score:.4f}" if isinstance(score, float) else "",
        **pick(shown, "file_name", "page"),
        "text": " ".join(str(shown.get("text")).split())[:SHOWN],
    }
