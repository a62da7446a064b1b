"""Decoded requests: what the codecs of dialects make of bodies, before a handler does the work."""

from collections.abc import Mapping

from antiphon.domain.ledger import NOTHING
from antiphon.domain.request import (
    Conversation,
    EmbeddingRequest,
    GenerationRequest,
    Prompt,
    RerankRequest,
)
from antiphon.domain.values import Struct, field


class Attribution(Struct, frozen=True):
    """The end user and tags that the caller sent, for the usage records."""

    end_user: str | None = None
    tags: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    fields: tuple[str, ...] = ()
    """The names of the fields that contained these values."""


NO_ATTRIBUTION = Attribution()


class GenerationCall(Struct, frozen=True):
    """A decoded body: the request, and options of its answer."""

    request: GenerationRequest
    stream: bool = False
    include_usage: bool = False
    """Whether a stream ends with the usage. A buffered answer always contains it."""
    ignored: tuple[str, ...] = ()
    """Fields that are accepted and have no effect. A response header names them."""
    relaxed: tuple[str, ...] = ()
    """Schema keywords that this server's compiler does not enforce, with their paths. A response header names
    them, unless the engine gets the original schemas."""
    attribution: Attribution = NO_ATTRIBUTION


class EmbeddingCall(Struct, frozen=True):
    """A request for vectors of texts, and options of the answer."""

    request: EmbeddingRequest
    as_base64: bool = False
    """Whether vectors are encoded as bytes instead of numbers."""
    ignored: tuple[str, ...] = ()
    """Fields that are accepted and have no effect, as in `GenerationCall`."""
    attribution: Attribution = NO_ATTRIBUTION


class RerankCall(Struct, frozen=True):
    """A request to rank documents, and options of the answer."""

    request: RerankRequest
    top_n: int | None = None
    """The number of documents in the answer; None means all."""
    returns_documents: bool = False
    """Whether the answer repeats the documents' texts."""
    ignored: tuple[str, ...] = ()
    """Fields that are accepted and have no effect, as in `GenerationCall`."""
    attribution: Attribution = NO_ATTRIBUTION


class TokenizeCall(Struct, frozen=True):
    """A request for the token ids of a prompt."""

    model: str | None
    """None means the only model."""
    prompt: Prompt
    with_texts: bool = False
    """Whether the answer contains each token's text."""


class ApplyCall(Struct, frozen=True):
    """A request for the rendered chat template of a conversation."""

    model: str | None
    """None means the only model."""
    conversation: Conversation


class DetokenizeCall(Struct, frozen=True):
    """A request for the text of token ids."""

    model: str | None
    tokens: tuple[int, ...]


class LoadCall(Struct, frozen=True):
    """A request to load an adapter."""

    name: str
    path: str
    """The path as the caller wrote it."""
    base: str | None
    """None means the only model."""
    in_place: bool
    """Whether the adapter can replace an adapter with the same name."""
