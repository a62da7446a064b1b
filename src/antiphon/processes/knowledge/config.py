"""The configuration that the supervisor writes to the knowledge process."""

from dataclasses import dataclass, field
from typing import Literal

from antiphon.retrieval.base import IndexLimits


@dataclass(frozen=True, slots=True)
class KnowledgeConfig:
    """The configuration of the knowledge process. Its only secret is the database's password."""

    socket: str
    """The path on which it listens; its directory is the runtime directory."""
    status_fd: int
    directory: str
    """Where the files of knowledge tables are."""
    database: str | None = field(repr=False)
    """The address of the PostgreSQL database that contains the tables; None if files contain them."""
    limits: IndexLimits
    memory_bytes: int
    """The most bytes of vectors that stay in memory."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
