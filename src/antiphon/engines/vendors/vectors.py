"""Joins the vectors of a vendor's answer, and refuses invalid ones."""

from array import array
from collections.abc import Sequence
from math import isfinite
from sys import byteorder

from antiphon.domain.events import UsageSource
from antiphon.domain.request import EmbeddingRequest, Embeddings
from antiphon.engines.vendors.estimate import MAX_TOKENS, estimate_inputs


def join_vectors(
    vectors: "Sequence[array[float]]", request: EmbeddingRequest, prompt_tokens: int | None
) -> Embeddings:
    """Returns the vectors, float32 in the machine's order, as one value. `prompt_tokens`: the vendor's count.
    Raises ValueError if the vectors do not match the inputs, or contain infinity or NaN."""
    widths = {len(vector) for vector in vectors}
    if len(vectors) != len(request.inputs) or len(widths) != 1 or 0 in widths:
        raise ValueError("the vectors do not match the inputs")
    if not all(isfinite(sum(vector)) for vector in vectors):  # the sum is not finite if any number is not
        raise ValueError("a vector contains infinity or NaN")
    if byteorder == "big":
        for vector in vectors:
            vector.byteswap()
    (width,) = widths
    joined = b"".join(vector.tobytes() for vector in vectors)
    if prompt_tokens is None or not 0 <= prompt_tokens <= MAX_TOKENS:
        return Embeddings(joined, width, estimate_inputs(request), UsageSource.ESTIMATED)
    return Embeddings(joined, width, prompt_tokens, UsageSource.REPORTED)
