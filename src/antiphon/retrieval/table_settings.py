"""Encodes the settings of a table as text. Every index stores this text."""

import json

from antiphon.retrieval.base import SizeUnit, TableSettings


def encode_table(settings: TableSettings) -> str:
    """Returns the settings as JSON."""
    return json.dumps(
        {
            "name": settings.name,
            "embedding_model": settings.embedding_model,
            "dimensions": settings.dimensions,
            "chunk_size": settings.chunk_size,
            "chunk_overlap": settings.chunk_overlap,
            "chunk_unit": settings.chunk_unit,
            "attributes": dict(settings.attributes),
        }
    )


def decode_table(text: str) -> TableSettings:
    """Returns the settings that `encode_table` encoded."""
    values = json.loads(text)
    return TableSettings(**{**values, "chunk_unit": SizeUnit(values["chunk_unit"])})
