"""Schemas that many requests have, each kept once with what was built from it.

Agents send the same tools in each turn. What is built from a tool's schema takes longer than to recognise it.
"""

from collections.abc import Mapping
from hashlib import blake2b
from threading import Lock

import msgspec

from antiphon.constraints.segmented_lru import SegmentedLRU
from antiphon.domain.messages import SharedSchema

LONGEST_SCHEMA = 1 << 17
"""The most bytes of a schema that is kept, as JSON."""

MOST_BYTES, MOST_SCHEMAS = 2 << 20, 1_024
"""The most bytes of all kept schemas as JSON, and the most schemas. In memory, a schema with all that is
built from it needs about thirty times its bytes."""

DIGEST_BYTES = 16

_encode = msgspec.json.Encoder().encode

_schemas: SegmentedLRU[bytes, SharedSchema] = SegmentedLRU(MOST_BYTES, MOST_SCHEMAS)

_lock = Lock()
"""Guards `_schemas`."""


def share_schema(schema: Mapping[str, object]) -> SharedSchema:
    """Returns the schema as other requests have it, too. Any thread can call it. Do not change a schema
    after this call."""
    try:
        source = _encode(schema)
        if len(source) > LONGEST_SCHEMA:
            return SharedSchema(schema)
        digest = blake2b(source, digest_size=DIGEST_BYTES).digest()
        with _lock:
            shared = _schemas.get(digest)
            if shared is None:
                shared = SharedSchema(schema)
                _schemas.put(digest, shared, len(source))
        # An infinite number is encoded as null, so equal digests alone do not prove it.
        return shared if shared.schema == schema else SharedSchema(schema)
    except (ValueError, OverflowError, RecursionError):  # no JSON, or nested too deeply
        return SharedSchema(schema)
