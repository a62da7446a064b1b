"""The interface between the vendor engine and the upstream dialects, and what several dialects share.

An upstream dialect translates between this server's requests and events and one vendor's wire format. It does
no I/O, and keeps no state between requests.

The dialects share two things. They estimate the tokens of a request if the vendor reports no usage, or
impossible numbers. They join the vectors of an answer, and refuse invalid ones.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from sys import byteorder
from types import MappingProxyType
from typing import Protocol, TypeVar

import msgspec
from msgspec import Raw, Struct

from antiphon.domain.events import Event, Usage, UsageSource
from antiphon.domain.messages import BYTES_PER_TOKEN, estimate_tokens, measure_text
from antiphon.domain.request import (
    Conversation,
    EmbeddingRequest,
    Embeddings,
    GenerationRequest,
    Prompt,
    Ranking,
    RerankRequest,
)
from antiphon.domain.values import Value, field
from antiphon.engines.vendors.profiles import VendorProfile

T = TypeVar("T")

UNREADABLE = (ValueError, RecursionError)
"""The errors of decoding a vendor's bytes. JSON that is nested too deeply raises a RecursionError."""

MAX_ERROR_BODY = 65_536
"""The most bytes of a vendor's error that are read."""

MAX_OBJECTS, MAX_VALUES = 150_000, 1_000_000
"""The most objects, and the most elements of lists and objects, in one JSON text. The decoder keeps the
interpreter's lock until all are made, so a thread does not help. These take less than a tenth of a second."""

MAX_FREE_VALUES = 50_000
"""The most elements of a part whose fields this server does not know. Their names become keys of dicts, which
take ten times as long as known fields."""

BYTES_PER_VECTOR = 131_072
"""The most bytes of one vector in an answer, written as numbers."""

MAX_NUMBERS = 10_000_000
"""The most numbers of all vectors in an answer. The decoder only finds their ends."""

COUNTED_AT_ONCE = 1 << 20
"""Bytes that are searched for brackets before other threads get their turn."""

NO_TAGS: Mapping[str, str] = MappingProxyType({})

NULL, EMPTY = Raw(b"null"), (Raw(b"{}"), Raw(b"[]"))

CONTENT_FLAGGED = "content_flagged"
"""The kind of an error about a prompt that a vendor's moderation refused."""

MAX_TOKENS = 1 << 31
"""A bound that is larger than the tokens of any request."""


class Wire(Struct, gc=False):
    """A part of a vendor's answer. The garbage collector does not follow it, because it visits the objects of
    a large answer many times while they are made."""


def require_bounded(data: bytes, max_objects: int, max_values: int) -> None:
    """Raises ValueError if a JSON text can have more objects or more elements, by its brackets and commas."""
    objects = values = 0
    for begin in range(0, len(data), COUNTED_AT_ONCE):
        end = begin + COUNTED_AT_ONCE
        objects += data.count(b"{", begin, end)
        values += data.count(b"[", begin, end) + data.count(b",", begin, end)
        if objects > max_objects or values > max_values:
            raise ValueError("the answer has too many parts")


def has_value(part: Raw) -> bool:
    """Whether a field is in an answer, and is not null."""
    return bool(part) and part != NULL


def has_content(part: Raw) -> bool:
    """Whether a field is in an answer, and is neither null nor empty."""
    return has_value(part) and part not in EMPTY


def read_free_json(part: Raw, type_: type[T]) -> T:
    """Reads a part whose fields this server does not know. Raises ValueError if it has too many."""
    text = bytes(part)
    require_bounded(text, MAX_FREE_VALUES, MAX_FREE_VALUES)
    return msgspec.json.decode(text, type=type_)


def require_vector_size(vector: Raw) -> None:
    """Raises ValueError for a vector that is too long to be decoded at once."""
    if len(vector) > BYTES_PER_VECTOR:
        raise ValueError("a vector of the answer is too long")


class VendorModel(Struct, frozen=True):
    """One model of a vendor, as an upstream dialect needs it."""

    name: str
    """The vendor's name of the model."""
    provider: str
    """The operator's name of the provider, for errors."""
    profile: VendorProfile = field(default_factory=VendorProfile)
    extra_parameters: frozenset[str] = frozenset()
    """Parameters that this provider takes beyond those of its wire format: `top_k` and `min_p` of vLLM."""
    refused_parameters: frozenset[str] = frozenset()
    """Parameters of its wire format that this provider does not take."""
    token_limit_name: str = "max_tokens"
    """The vendor's field for the most output tokens: some have `max_completion_tokens`."""
    asks_usage: bool = True
    """Whether a request can ask for the usage of a stream. If it cannot, the vendor sends the usage always,
    or never."""
    reasoning_field: str | None = None
    """The field of messages that contains reasoning, in OpenAI's format; None if there is no such field."""
    renames: Mapping[str, str] = field(default_factory=dict)
    """Maps the names of parameters in callers' requests to the provider's own names."""
    body: Mapping[str, object] = field(default_factory=dict)
    """Fields that the operator adds to the body of each generation request."""
    passes_addresses: bool = False
    """Whether the vendor gets `https:` addresses of images. If not, they are refused."""
    passes_hosted_tools: bool = False
    """Whether the vendor gets the tools that it runs itself. If not, they are left out."""
    extra_fields: frozenset[str] = frozenset()
    """Fields that callers can add to the body, because the operator allows them. This server does not know
    their meaning, while it checks and translates `extra_parameters`."""
    extra_headers: frozenset[str] = frozenset()
    """Headers that callers can add, in lower case."""


class Attributes(Value, frozen=True):
    """The end user and the tags of a request, for vendors that accept them."""

    end_user: str | None = None
    tags: Mapping[str, str] = NO_TAGS


NO_ATTRIBUTES = Attributes()


class UpstreamCall(Value, frozen=True):
    """One HTTP request to a vendor, without the vendor's address and key, which `Provider` adds."""

    path: str
    """Below the provider's base URL: `/chat/completions`."""
    body: bytes
    is_streamed: bool
    """Whether the answer comes as server-sent events."""
    headers: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    """Parts of messages that the vendor's format cannot express, by the caller's names. The header
    x-antiphon-ignored of the response to the caller lists them. A parameter that the vendor lacks is refused
    instead."""


class VendorError(Value, frozen=True):
    """An error that a vendor reports in a body, or in an event of a stream."""

    message: str
    kind: str = ""
    """The vendor's code or type: `rate_limit_exceeded`, `overloaded_error`, `RESOURCE_EXHAUSTED`."""
    status: int | None = None
    """The HTTP status of an error event, if the vendor's code implies one."""
    retry_after: float | None = None
    """Seconds, if the body contains them."""
    param: str | None = None
    """The field at fault, in the vendor's notation."""


class StreamDecoder(Protocol):
    """Decodes one streamed answer."""

    @property
    def is_complete(self) -> bool:
        """Whether the end mark has arrived: OpenAI's `[DONE]`, Anthropic's `message_stop`. In a format
        without an end mark this is always False, and the answer ends with its body."""

    def feed(self, name: str, data: bytes) -> Sequence[Event]:
        """Returns the events of one server-sent event. `name`: the text after `event:`, or empty.

        The first returned event is Started, with source ESTIMATED. Raises StreamFailure for an error event.
        Raises ValueError or msgspec.MsgspecError for an event that cannot be read.
        """

    def close(self) -> Sequence[Event]:
        """Returns the last events, Usage included, once the answer's body has ended. Raises ValueError if the
        body ended before the end mark, or before every choice was finished."""


class StreamFailure(Exception):
    """The vendor reported an error inside a stream."""

    def __init__(self, error: VendorError) -> None:
        super().__init__(error.message)
        self.error = error


class UpstreamDialect(Protocol):
    """One vendor's wire format."""

    @property
    def credential_header(self) -> tuple[str, str]:
        """The name of the header with the key, and the text before the key."""

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """Headers of every request, unless the operator sets others: `anthropic-version`."""

    def encode(self, request: GenerationRequest, model: VendorModel, attributes: Attributes) -> UpstreamCall:
        """Translates a request. Raises a RequestError that names the field that the vendor lacks."""

    def decode_answer(self, request: GenerationRequest, model: VendorModel, body: bytes) -> Iterable[Event]:
        """Returns all events of a whole answer: Started, deltas, Finished and Usage. Raises StreamFailure for
        an error in the place of an answer. Raises ValueError or msgspec.MsgspecError if it cannot be read."""

    def start_stream(self, request: GenerationRequest, model: VendorModel) -> StreamDecoder:
        """Creates the decoder of a streamed answer."""

    def decode_error(self, status: int, body: bytes) -> VendorError:
        """Reads the body of an error. A body that cannot be read gives an empty message."""

    def encode_embedding(self, request: EmbeddingRequest, model: VendorModel) -> UpstreamCall:
        """Translates a request for vectors. Raises UnsupportedParameter if the vendor makes none."""

    def decode_embedding(self, request: EmbeddingRequest, body: bytes) -> Embeddings:
        """Reads the vectors. Raises ValueError or msgspec.MsgspecError if they cannot be read."""

    def encode_rerank(self, request: RerankRequest, model: VendorModel) -> UpstreamCall:
        """Translates a request to rank documents. Raises UnsupportedParameter if the vendor ranks none."""

    def decode_rerank(self, request: RerankRequest, body: bytes) -> Ranking:
        """Reads the scores. Raises ValueError or msgspec.MsgspecError if they cannot be read."""

    def build_models_path(self) -> str:
        """Returns the path of the GET request that lists the vendor's models. It costs nothing."""

    def decode_models(self, body: bytes) -> tuple[str, ...]:
        """Returns the names in a list of models. Raises ValueError or msgspec.MsgspecError if it cannot be
        read."""


def is_possible(usage: Usage) -> bool:
    """Whether a vendor's counts are possible. Impossible counts could cause a negative or an enormous
    bill."""
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    return (
        max(prompt, completion) <= MAX_TOKENS
        and 0 <= usage.cached_tokens <= prompt
        and 0 <= usage.cache_write_tokens <= prompt
        and 0 <= usage.prompt_audio_tokens <= prompt
        and 0 <= usage.reasoning_tokens <= completion
        and 0 <= usage.completion_audio_tokens <= completion
        and 0 <= usage.accepted_prediction_tokens + usage.rejected_prediction_tokens <= completion
    )


def estimate_usage(request: GenerationRequest, output_size: int) -> Usage:
    """Returns an estimate of the usage. `output_size`: the bytes of the answer."""
    prompt, completion = estimate_prompt(request), estimate_tokens(output_size)
    return Usage(prompt, completion, source=UsageSource.ESTIMATED)


def estimate_prompt(request: GenerationRequest) -> int:
    """Returns an estimate of the prompts' tokens, without images and recordings."""
    suffixes = measure_text(request.output.suffix) * len(request.prompts)
    return estimate_tokens(sum(map(_measure_prompt, request.prompts)) + suffixes)


def estimate_inputs(request: EmbeddingRequest) -> int:
    """Returns an estimate of the tokens of all inputs."""
    return estimate_tokens(sum(map(_measure_prompt, request.inputs)))


def _measure_prompt(prompt: Prompt) -> int:
    """Returns the bytes of a prompt's text. For token ids, estimates the bytes by their number."""
    if isinstance(prompt, Conversation):
        return sum([measure_text(message.text) for message in prompt.messages])
    if prompt.tokens is not None:
        return len(prompt.tokens) * BYTES_PER_TOKEN
    return measure_text(prompt.text or "")


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
