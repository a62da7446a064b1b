"""Answers from a knowledge table: what a request asks for, and what was found."""

from collections.abc import Mapping

from antiphon.domain.values import Value

RETRIEVAL_FIELD = "rag_params"
"""The field's name in every dialect."""


class Retrieval(Value, frozen=True):
    """Which texts the model sees before it answers."""

    table: str
    """Name of a knowledge table of the caller's project."""
    query: str = ""
    """What is searched for. If it is empty, the model writes it."""
    k: int = 3
    """The most chunks."""
    reranker: str | None = None
    """The model that orders what was found, as the caller named it; None keeps the order of the search."""
    ranks_titles: bool = False
    """Whether the reranker reads the title before the text."""
    cites: bool = True
    """Whether the model is asked to name the chunks, as in `[@0; @3]`."""


class ReferencedChunk(Value, frozen=True):
    """A chunk that the model saw."""

    id: str
    document: str
    """Id of its document; empty where it has none."""
    text: str
    title: str
    page: int | None
    file_name: str
    score: float
    """The sum of 1 / (60 + rank) over the rankings by words and by vectors."""
    relevance: float | None = None
    """The reranker's score; None without a reranker."""
    metadata: Mapping[str, str] = {}


class References(Value, frozen=True):
    """What was found for a request. It is the first event of its stream. The engine has begun then."""

    table: str
    project: str
    query: str
    """What was searched for."""
    chunks: tuple[ReferencedChunk, ...]
    """What the model saw, in its order: the first is cited as `@0`."""
    notes: tuple[str, ...] = ()
    """What did not go as asked, one sentence each."""


class UnknownCitations(Value, frozen=True):
    """Numbers that the model cited and that no chunk has. The event comes before the usage, if there are
    any."""

    numbers: tuple[int, ...]
