"""The seam of dialects: bytes of one product's wire format on one side, domain values on the other.

A dialect knows paths, field names, defaults, ranges and the shapes of answers, streams and errors. It knows
no engine, no HTTP framework and no caller. Everything here is free of input and output, so the edge may run
it where it likes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from antiphon.domain.adapter import Adapter
from antiphon.domain.collect import Generation
from antiphon.domain.deployment import Deployed, DeployedBase, Deployment
from antiphon.domain.embedding import EmbeddingRequest, Embeddings
from antiphon.domain.events import Event
from antiphon.domain.ledger import NOTHING
from antiphon.domain.profile import Profile
from antiphon.domain.request import Conversation, GenerationRequest, Prompt
from antiphon.domain.tokenizer import TokenizerInfo
from antiphon.errors import AntiphonError


@dataclass(frozen=True, slots=True)
class Attribution:
    """To whom a caller ascribes a request, in the records of usage."""

    end_user: str | None = None
    tags: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    fields: tuple[str, ...] = ()
    """Those that say so, as the caller calls them."""


UNASCRIBED = Attribution()


@dataclass(frozen=True, slots=True)
class Call:
    """A decoded body: what is asked for, and how the answer shall travel."""

    request: GenerationRequest
    stream: bool = False
    include_usage: bool = False
    """Whether a stream ends with the usage. A buffered answer always holds it."""
    ignored: tuple[str, ...] = ()
    """Fields that were sent, are accepted and do nothing; the edge names them in a header."""
    relaxed: tuple[str, ...] = ()
    """Keywords of schemas that are not kept, each with its place; the edge names them in a header."""
    continuous_usage: bool = False
    """Whether each part of a stream that includes the usage tells what was made so far."""
    token_names: bool = False
    """Whether log-probabilities call tokens by their ids."""
    attribution: Attribution = UNASCRIBED


@dataclass(frozen=True, slots=True)
class Head:
    """What every part of one answer repeats."""

    id: str
    """Unique, without the dialect's prefix."""
    created: int
    """Unix time in seconds."""
    model: str
    """As the caller spelt it."""


class Chunks(Protocol):
    """Encodes one stream, event by event, into the bytes of server-sent events."""

    def encode(self, event: Event) -> bytes:
        """The events on the wire that this one becomes; empty when it shows nothing."""

    def end(self) -> bytes:
        """What closes a stream that is whole."""

    def error(self, error: AntiphonError) -> bytes:
        """What closes a stream that is not."""


class Operation(Protocol):
    """One generating endpoint."""

    @property
    def path(self) -> str:
        """Where it lies, from the root."""

    def decode(self, body: bytes) -> Call:
        """Raises a RequestError that names the field at fault."""

    def answer(self, head: Head, call: Call, generation: Generation) -> bytes:
        """The buffered answer."""

    def chunks(self, head: Head, call: Call) -> Chunks:
        """The encoder of one streamed answer."""


@dataclass(frozen=True, slots=True)
class TokenizeCall:
    """A prompt whose token ids are asked for."""

    model: str | None
    """None is the only model there is."""
    prompt: Prompt
    texts: bool = False
    """Whether each token's text is asked for too."""


@dataclass(frozen=True, slots=True)
class ApplyCall:
    """A conversation whose prompt is asked for as text."""

    model: str | None
    """None is the only model there is."""
    conversation: Conversation


@dataclass(frozen=True, slots=True)
class DetokenizeCall:
    """Token ids whose text is asked for."""

    model: str | None
    tokens: tuple[int, ...]


class TokenOperations(Protocol):
    """The endpoints that show what a prompt becomes, token ids and the template's text, each at several
    paths; and what the tokenizer is."""

    tokenize_paths: tuple[str, ...]
    detokenize_paths: tuple[str, ...]
    apply_paths: tuple[str, ...]
    tokenizer_path: str

    def decode_tokenize(self, body: bytes) -> TokenizeCall:
        """Raises a RequestError that names the field at fault."""

    def decode_detokenize(self, body: bytes) -> DetokenizeCall:
        """Raises a RequestError that names the field at fault."""

    def decode_apply(self, body: bytes) -> ApplyCall:
        """Raises a RequestError that names the field at fault."""

    def tokenized(
        self, tokens: tuple[int, ...], context_length: int, pieces: tuple[bytes, ...] | None = None
    ) -> bytes:
        """The answer to tokenize; `pieces`: each token's bytes or name, when its text was asked for."""

    def detokenized(self, text: str) -> bytes:
        """The answer to detokenize."""

    def applied(self, text: str) -> bytes:
        """The answer to apply-template."""

    def tokenizer(self, info: TokenizerInfo) -> bytes:
        """What a model's tokenizer is."""


@dataclass(frozen=True, slots=True)
class LoadCall:
    """An adapter that shall become a model."""

    name: str
    path: str
    """As the caller wrote it."""
    base: str | None
    """None is the only model there is."""
    in_place: bool
    """Whether it may take the place of one of the same name."""


class AdapterOperations(Protocol):
    """The two endpoints that load and unload adapters."""

    load_path: str
    unload_path: str

    def decode_load(self, body: bytes) -> LoadCall:
        """Raises a RequestError that names the field at fault."""

    def decode_unload(self, body: bytes) -> str:
        """The adapter's name. Raises a RequestError that names the field at fault."""

    def loaded(self, name: str) -> str:
        """The answer to load, plain text."""

    def unloaded(self, name: str) -> str:
        """The answer to unload, plain text."""


class LoraOperations(Protocol):
    """The endpoints that deploy adapters from elsewhere, and show what is deployed."""

    loras_path: str
    """The list of adapters, and where one is deployed; each lies below it, under its name."""
    bases_path: str
    """The list of base models; each lies below it, under its name."""

    def decode_deploy(self, body: bytes) -> Deployment:
        """Raises a RequestError that names the field at fault."""

    def deployed(self, lora: Deployed) -> bytes:
        """One adapter."""

    def removed(self, name: str) -> bytes:
        """The answer to a removal."""

    def listed(self, loras: Iterable[Deployed]) -> bytes:
        """All adapters."""

    def base(self, base: DeployedBase) -> bytes:
        """One base model."""

    def bases(self, bases: Iterable[DeployedBase]) -> bytes:
        """All base models."""


@dataclass(frozen=True, slots=True)
class EmbeddingCall:
    """Texts whose vectors are asked for, and how they shall be written."""

    request: EmbeddingRequest
    packed: bool = False
    """Whether vectors are written as bytes, not as numbers."""
    ignored: tuple[str, ...] = ()
    """As of a Call."""
    attribution: Attribution = UNASCRIBED


class EmbeddingOperation(Protocol):
    """The endpoint that makes vectors."""

    path: str

    def decode(self, body: bytes) -> EmbeddingCall:
        """Raises a RequestError that names the field at fault."""

    def answer(self, call: EmbeddingCall, embeddings: Embeddings) -> bytes:
        """All vectors, in the order of the inputs."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """What a list of models says of one."""

    name: str
    created: int
    state: str
    """Where its engine stands."""
    profile: Profile | None = None
    """None while the engine cannot say."""
    parent: str | None = None
    """Of an adapter, the base model's name."""
    adapter: Adapter | None = None
    """Of an adapter, what it is."""
    alias: str | None = None
    """What the caller called it, where that is not its name."""


class ModelOperations(Protocol):
    """The endpoints that show which models there are."""

    path: str
    """The list; one model lies below it, under its name."""
    profiled: bool
    """Whether the list wants profiles."""

    def listed(self, models: Iterable[ModelEntry]) -> bytes:
        """The list of models."""

    def shown(self, model: ModelEntry) -> bytes:
        """One model with its profile."""


@dataclass(frozen=True, slots=True)
class Description:
    """A dialect's part of the OpenAPI document."""

    paths: Mapping[str, Any] = field(default_factory=dict)
    schemas: Mapping[str, Any] = field(default_factory=dict)
    error_schema: str = ""
    """Name of the schema that all errors have."""


class Dialect(Protocol):
    """One product's wire format, whole. What only some products have is in protocols that extend this one,
    with a handler of its own in `http` for each."""

    @property
    def name(self) -> str:
        """In the settings, the docs and the names of its schemas."""

    @property
    def prefix(self) -> str:
        """Beginning of all its paths and of no other dialect's: `/fireworks`. What fails below it is answered
        with its errors. Empty: the server's own, which speaks wherever no other does."""

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Its generating endpoints."""

    @property
    def models(self) -> ModelOperations | None:
        """Its list of models; None where the product has none."""

    def status(self, error: AntiphonError) -> int:
        """The status of an error response: the error's own, where the product has no other for it."""

    def error(self, error: AntiphonError) -> bytes:
        """The body of an error response."""

    def describe(self) -> Description:
        """Paths and schemas for the OpenAPI document, made from the wire types."""

    def fields(self) -> frozenset[str]:
        """Names of all fields that its requests have. A log holds no other names of a request's."""


class OwnDialect(Dialect, Protocol):
    """The dialect that the server speaks of itself: the one with all that it has."""

    @property
    def models(self) -> ModelOperations:
        """Its list of models."""

    @property
    def tokens(self) -> TokenOperations:
        """Its endpoints of token ids."""

    @property
    def adapters(self) -> AdapterOperations:
        """Its endpoints that load and unload adapters."""

    @property
    def embeddings(self) -> EmbeddingOperation:
        """Its endpoint that makes vectors."""


@runtime_checkable
class LoraDialect(Dialect, Protocol):
    """A dialect in which callers deploy adapters."""

    @property
    def loras(self) -> LoraOperations:
        """Its endpoints of adapters and base models."""
