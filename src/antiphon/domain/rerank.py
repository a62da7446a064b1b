"""Requests that rank documents by how well they match a query, and the results."""

from antiphon.domain.events import UsageSource
from antiphon.domain.values import Struct


class RerankRequest(Struct, frozen=True):
    """A request to rank documents."""

    model: str
    query: str
    documents: tuple[str, ...]
    """In these texts and in the query, nothing is a control token."""
    tokens_per_document: int | None = None
    """The number of tokens of each document to keep, from its beginning; None keeps all."""


class Ranking(Struct, frozen=True):
    """The result of a request to rank documents."""

    scores: tuple[float, ...]
    """The score of each document, in the order of the documents. A local reranker gives a probability."""
    prompt_tokens: int
    """Tokens of all pairs of the query and a document, including the special tokens that the model adds."""
    source: UsageSource = UsageSource.ENGINE
    """Who counted the tokens."""

    def order(self) -> list[int]:
        """Returns the documents' indexes, best first. Equal scores keep the order of the documents."""
        return sorted(range(len(self.scores)), key=lambda index: -self.scores[index])
