"""`antiphon knowledge`: the knowledge tables of a running server."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from antiphon.cli import console
from antiphon.cli.knowledge_client import ReportItems, connect_knowledge
from antiphon.cli.output import JsonObject, format_fields, note, print_id, print_json, print_list
from antiphon.retrieval.base import SizeUnit

app = console.create_group("knowledge", "Knowledge tables of a running server.")

Table = Annotated[str, typer.Argument(help="The table's name.")]
ChunkSize = Annotated[int | None, typer.Option(help="Most units in a chunk. [the server's choice]")]
ChunkOverlap = Annotated[
    int | None, typer.Option(help="Units that a chunk repeats from the previous one. [a tenth of its size]")
]
ChunkUnit = Annotated[
    SizeUnit | None, typer.Option(help="The unit of sizes. [tokens if the server can count them]")
]

SHOWN_CHARACTERS = 300
"""Characters of a chunk that `search` shows."""


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="The table's name.")],
    model: Annotated[
        str | None, typer.Option(help="The embedding model. [the first one of the server]")
    ] = None,
    words_only: Annotated[
        bool, typer.Option("--words-only", help="Search by words, without an embedding model.")
    ] = False,
    chunk_size: ChunkSize = None,
    chunk_overlap: ChunkOverlap = None,
    chunk_unit: ChunkUnit = None,
    url: console.ServerUrl = None,
    as_json: console.Json = False,
) -> None:
    """Create a table."""
    with connect_knowledge(url) as server:
        sizes = {"chunk_size": chunk_size, "chunk_overlap": chunk_overlap, "chunk_unit": chunk_unit}
        body: dict[str, object] = {"name": name}
        body |= {field: value for field, value in sizes.items() if value is not None}
        if model or words_only:
            body["embedding_model"] = None if words_only else model
        response = server.call("POST", body=body)
        print_id(response, as_json, "name")
        if response.get("search") == "words" and not words_only:
            note("the server has no embedding model for this key: the table can only be searched by words")


@app.command()
def add(
    table: Table,
    files: Annotated[list[Path], typer.Argument(help="Files to read.")],
    chunk_size: ChunkSize = None,
    chunk_overlap: ChunkOverlap = None,
    chunk_unit: ChunkUnit = None,
    url: console.ServerUrl = None,
    as_json: console.Json = False,
) -> None:
    """Add files to a table one by one, and wait until the server has indexed them."""
    sizes = {"chunk_size": chunk_size, "chunk_overlap": chunk_overlap, "chunk_unit": chunk_unit}
    added_documents = []
    with connect_knowledge(url) as server:
        for file in files:
            with show_progress(file.name) as report_progress:
                document = server.add_file(table, file, sizes, report_progress)
            added_documents.append(document)
            warnings = document.get("warnings")
            for warning in warnings if isinstance(warnings, list) else ():
                note(f"{file.name}: {warning}")
            if not as_json:
                print(f"added {file.name}: {document.get('chunks')} chunks")
    if as_json:
        print_json({"documents": added_documents})


@app.command("list")
def list_tables(
    table: Annotated[
        str | None, typer.Argument(help="List this table's documents. [list the tables]")
    ] = None,
    wide: console.Wide = False,
    url: console.ServerUrl = None,
    as_json: console.Json = False,
) -> None:
    """List tables, or the documents of one."""
    with connect_knowledge(url) as server:
        if table is None:
            rows = server.call("GET").get("data")
            tables = rows if isinstance(rows, list) else []
            empty_message = "there is no table; antiphon knowledge create NAME makes one"
            hidden: tuple[str, ...] = () if wide else ("bytes", "updated_at")
            print_list("tables", tables, _format_table, empty_message, as_json, hidden)
        else:
            documents = [row for row, _ in server.list_rows(table, "documents")]
            empty_message = f"there is no document; antiphon knowledge add {table} FILE adds one"
            hidden = () if wide else ("created_at", "id")
            print_list("documents", documents, _format_document, empty_message, as_json, hidden)


@app.command()
def search(
    table: Table,
    query: Annotated[str, typer.Argument(help="A question or words.")],
    k: Annotated[int, typer.Option("-k", min=1, max=1000, help="Most chunks.")] = 3,
    url: console.ServerUrl = None,
    as_json: console.Json = False,
) -> None:
    """Find the chunks that answer a question."""
    with connect_knowledge(url) as server:
        response = server.call("POST", table, "search", body={"query": query, "k": k})
        hits = response.get("data")
        rows = hits if isinstance(hits, list) else []
        print_list("hits", rows, _format_hit, "nothing was found", as_json)


@app.command()
def remove(
    table: Table,
    document: Annotated[
        str | None, typer.Argument(help="The id or file name of one of its documents. [the whole table]")
    ] = None,
    url: console.ServerUrl = None,
) -> None:
    """Remove a table with its content, or one of its documents."""
    with connect_knowledge(url) as server:
        path = (table,) if document is None else (table, "documents", server.find_document(table, document))
        server.call("DELETE", *path)
        print(f"removed {table if document is None else document}")


@app.command("export")
def export_table(
    table: Table,
    file: Annotated[Path, typer.Argument(help="The new file, in JSON Lines.")],
    url: console.ServerUrl = None,
) -> None:
    """Write a table's settings, documents, chunks and vectors to one file."""
    with connect_knowledge(url) as server:
        with show_progress(table) as report_progress:
            count = server.export_table(table, file, report_progress)
        print(f"wrote {count} chunks to {file}")


@app.command("import")
def import_table(
    file: Annotated[Path, typer.Argument(help="A file that `export` wrote.")],
    name: Annotated[str | None, typer.Option(help="The table's name. [the one in the file]")] = None,
    model: Annotated[str | None, typer.Option(help="The embedding model. [the one in the file]")] = None,
    url: console.ServerUrl = None,
) -> None:
    """Create a table from an exported file. With another embedding model, its vectors are computed again."""
    replaced_settings = {"name": name, "embedding_model": model}
    changes = {field: value for field, value in replaced_settings.items() if value is not None}
    with connect_knowledge(url) as server:
        with show_progress(file.name) as report_progress:
            imported = server.import_table(file, changes, report_progress)
        print(imported.describe())


@contextmanager
def show_progress(description: str) -> Iterator[ReportItems]:
    """Shows a progress bar of chunks on standard error while the context lasts. Shows nothing if standard
    error is no terminal."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("chunks"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=sys.stderr)) as bars:
        task = bars.add_task(description, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def _format_table(row: JsonObject) -> dict[str, str]:
    fields = format_fields(
        row, "name", "search", "embedding_model", "documents", "chunks", "bytes", "updated_at"
    )
    return fields if row.get("damage") is None else {**fields, "search": "damaged"}


def _format_document(row: JsonObject) -> dict[str, str]:
    state = str(row.get("state"))
    if state == "indexing":
        total = row.get("total_chunks")
        state += ", is being read" if total is None else f" {row.get('chunks')} of {total} chunks"
    fields = format_fields(row, "name", "bytes", "chunks")
    return {**fields, "state": state, **format_fields(row, "error", "created_at", "id")}


def _format_hit(row: JsonObject) -> dict[str, str]:
    chunk, score = row.get("chunk"), row.get("score")
    chunk_fields = chunk if isinstance(chunk, dict) else {}
    return {
        "score": f"{score:.4f}" if isinstance(score, float) else "",
        **format_fields(chunk_fields, "file_name", "page"),
        "text": " ".join(str(chunk_fields.get("text")).split())[:SHOWN_CHARACTERS],
    }
