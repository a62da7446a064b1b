"""Settings of knowledge tables."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from antiphon.settings.server import GIB, KIB, MIB, describe


class KnowledgeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Knowledge tables: their place, and limits for each project (knowledge.md)."""

    directory: Annotated[
        str | None,
        describe(
            "ANTIPHON_KNOWLEDGE_DIRECTORY",
            "Directory of uploads and of tables in files. It must be on a local disk, and only one server "
            "can use it. None means `knowledge` in `ANTIPHON_HOME`, or in the platform's data directory.",
        ),
    ] = None
    storage: Annotated[
        Literal["auto", "files", "database"],
        describe(
            "ANTIPHON_KNOWLEDGE_STORAGE",
            "Where tables are: in `files` of the directory, or in the `database` of `keys.store`, "
            "PostgreSQL with pgvector. `auto` takes the database if it is PostgreSQL.",
        ),
    ] = "auto"
    memory_bytes: Annotated[
        int,
        describe(
            "ANTIPHON_KNOWLEDGE_MEMORY_BYTES",
            "Bytes of vectors in memory, for all tables in files. If they are not enough, tables are "
            "read again at their next search.",
        ),
        Meta(ge=16 * MIB),
    ] = 512 * MIB
    max_file_bytes: Annotated[
        int,
        describe(
            "ANTIPHON_KNOWLEDGE_MAX_FILE_BYTES",
            "Largest file in bytes. A larger one is a 413. It must arrive within `receive_timeout`, "
            "and counts in `max_bodies_bytes` meanwhile.",
        ),
        Meta(ge=KIB, le=GIB),
    ] = 32 * MIB
    max_tables: Annotated[
        int,
        describe("ANTIPHON_KNOWLEDGE_MAX_TABLES", "Most knowledge tables of one project."),
        Meta(ge=1, le=10_000),
    ] = 100
    max_documents: Annotated[
        int,
        describe("ANTIPHON_KNOWLEDGE_MAX_DOCUMENTS", "Most documents in all tables of one project."),
        Meta(ge=1),
    ] = 100_000
    max_chunks: Annotated[
        int,
        describe("ANTIPHON_KNOWLEDGE_MAX_CHUNKS", "Most chunks in all tables of one project."),
        Meta(ge=1),
    ] = 2_000_000
    max_bytes: Annotated[
        int,
        describe(
            "ANTIPHON_KNOWLEDGE_MAX_BYTES",
            "Most bytes of texts and vectors in all tables of one project. On the disk they need up "
            "to three times as much.",
        ),
        Meta(ge=MIB),
    ] = 20 * GIB
