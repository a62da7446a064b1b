"""Reads `rag_params` and encodes references, for all dialects that answer from knowledge tables."""

from msgspec import UNSET

from antiphon.dialects.common.request_types import RagParams
from antiphon.dialects.common.response_types import (
    MaybeReferences,
    ReferencedChunkShape,
    ReferencesShape,
)
from antiphon.domain.collect import CollectedGeneration
from antiphon.domain.retrieval import RETRIEVAL_FIELD, ReferencedChunk, References, Retrieval
from antiphon.errors import MissingParameter


def read_retrieval(wire: RagParams) -> Retrieval:
    """Returns the retrieval options. Raises MissingParameter without a table."""
    if not wire.table_id:
        param = f"{RETRIEVAL_FIELD}.table_id"
        raise MissingParameter(f"{param} is required: name a knowledge table of your project", param=param)
    reranker = wire.reranking_model or None
    return Retrieval(
        wire.table_id,
        wire.search_query.strip(),
        wire.k,
        reranker if wire.rerank else None,
        wire.concat_reranker_input,
        wire.inline_citations,
    )


def build_references(references: References, unknown: tuple[int, ...] = ()) -> ReferencesShape:
    """Builds the references. `unknown`: cited numbers without a chunk."""
    return ReferencesShape(
        chunks=[_build_chunk(chunk, references) for chunk in references.chunks],
        search_query=references.query,
        notes=list(references.notes) or UNSET,
        unknown_citations=list(unknown) or UNSET,
    )


def build_collected_references(generation: CollectedGeneration) -> MaybeReferences:
    """Builds the references of a buffered answer, if it has any."""
    if generation.references is None:
        return UNSET
    return build_references(generation.references, generation.unknown_citations)


def _build_chunk(chunk: ReferencedChunk, references: References) -> ReferencedChunkShape:
    metadata: dict[str, str | float] = {
        **chunk.metadata,
        "rrf_score": chunk.score,
        "project_id": references.project,
        "table_id": references.table,
    }
    if chunk.relevance is not None:
        metadata["relevance_score"] = chunk.relevance
    return ReferencedChunkShape(
        text=chunk.text,
        title=chunk.title,
        page=chunk.page,
        file_name=chunk.file_name,
        file_path=chunk.file_name,
        document_id=chunk.document,
        chunk_id=chunk.id,
        metadata=metadata,
    )
