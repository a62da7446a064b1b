"""Retrieval from a knowledge table: the request's options, and the chunks that were found."""

from collections.abc import Mapping

from antiphon.domain.values import Value

RETRIEVAL_FIELD = "rag_params"
"""The field's name in every dialect."""


class Retrieval(Value, frozen=True):
    """The options of a search whose results the model sees."""

    table: str
    """Name of a knowledge table of the caller's project."""
    query: str = ""
    """The search query. If it is empty, the model writes it."""
    k: int = 3
    """The most chunks to find."""
    reranker: str | None = None
    """The reranker that sorts the chunks, as the caller named it; None keeps the order of the search."""
    ranks_titles: bool = False
    """Whether the reranker reads the title before the text."""
    cites: bool = True
    """Whether the model is asked to name the chunks, as in `[@0; @3]`."""


class ReferencedChunk(Value, frozen=True):
    """A chunk that the model saw."""

    id: str
    document: str
    """Id of its document; empty if it has none."""
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
    """The chunks found for a request. It is the first event of the stream, and comes when the engine has
    begun."""

    table: str
    project: str
    query: str
    """The search query."""
    chunks: tuple[ReferencedChunk, ...]
    """The chunks in the order in which the model saw them: the first is cited as `@0`."""
    notes: tuple[str, ...] = ()
    """What could not be done of the retrieval, one sentence each."""


class UnknownCitations(Value, frozen=True):
    """The numbers that the model cited, and that are the number of no chunk. The event comes before the
    usage, and only if there are such numbers."""

    numbers: tuple[int, ...]
