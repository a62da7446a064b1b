"""The seam of dialects: bytes of one product's wire format on one side, domain values on the other.

A dialect declares endpoints. Each names its method, path, right, body and answers, and has a handler. The
edge serves what dialects declare: it knows no product. A dialect knows no engine and no HTTP framework, and
does no input or output: a handler reaches the server through `Services` alone.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl

from antiphon.domain.adapters import Adapter, DeployedAdapter, DeployedBase, DeploymentRequest
from antiphon.domain.context import Context, Origin, RequestProgress
from antiphon.domain.embedding import EmbeddingRequest, Embeddings
from antiphon.domain.events import Event
from antiphon.domain.identity import LOCAL_ANONYMOUS, Actor, Right
from antiphon.domain.ledger import NOTHING
from antiphon.domain.profile import Profile, TokenizerInfo
from antiphon.domain.request import Conversation, GenerationRequest, Prompt
from antiphon.errors import AntiphonError

JSON = "application/json"
EVENT_STREAM = "text/event-stream"
PLAIN = "text/plain"
MULTIPART = "multipart/form-data"

T = TypeVar("T")

Headers = tuple[tuple[bytes, bytes], ...]

# --- what a handler takes and gives -------------------------------------------------------------------------


@dataclass(slots=True)
class Request:
    """One request while it is answered, in plain types."""

    id: str
    method: str
    path: str
    """As it was sent, decoded."""
    headers: Mapping[bytes, list[bytes]]
    """Every value of each header, in order, by lower-case name."""
    query_string: bytes = b""
    client: str | None = None
    """Address of the caller, where it is known."""
    actor: Actor = LOCAL_ANONYMOUS
    path_params: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    """Values of the braces in the endpoint's path."""
    body: bytes = b""
    progress: RequestProgress = field(default_factory=RequestProgress)

    def query(self) -> list[tuple[str, str]]:
        """Names and values of the query, in order; an empty value counts."""
        return parse_qsl(self.query_string.decode("latin-1"), keep_blank_values=True)


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer."""

    body: bytes = b""
    status: int = 200
    media_type: str = JSON
    headers: Headers = ()


class StreamEncoder(Protocol):
    """Encodes one stream, event by event, into the bytes of server-sent events."""

    def encode(self, event: Event) -> bytes:
        """The bytes of an event; empty for an event without bytes."""

    def end(self) -> bytes:
        """The bytes that end a complete stream."""

    def error(self, error: AntiphonError) -> bytes:
        """The bytes that end a broken stream."""


@dataclass(frozen=True, slots=True)
class EventStream:
    """An answer of server-sent events. Its status and headers are sent with the first event."""

    events: AbstractAsyncContextManager[AsyncIterator[Event]]
    encoder: StreamEncoder
    headers: Callable[[], Headers]
    """Returns more headers of the answer; called when the answer begins."""


@dataclass(frozen=True, slots=True)
class FileStream:
    """An answer of any length, sent part by part. One that fails on the way breaks off."""

    parts: AsyncIterator[bytes]
    media_type: str
    headers: Headers = ()


Answer = Response | EventStream | FileStream
Handler = Callable[[Request, "Services"], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class RequestBody:
    """The body that an endpoint takes."""

    media_type: str = JSON
    """JSON or MULTIPART."""
    limit: int | None = None
    """Bytes; None is the server's own limit."""
    shape: object = None
    """Its wire type, for the OpenAPI document."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Endpoint:
    """One operation of the API: where it is, what it asks of its caller, and who answers it.

    The application, the authenticator, the OpenAPI document and the labels of metrics read these.
    """

    method: str
    path: str
    """From the root. Braces hold a segment; `{name:path}` holds several."""
    handler: Handler
    right: Right | None
    """The right that the caller needs; None makes the endpoint public."""
    aliases: tuple[str, ...] = ()
    """Other paths of the same."""
    body: RequestBody | None = None
    summary: str = ""
    """In the OpenAPI document, which leaves out an endpoint that has none."""
    tag: str = ""
    description: str = ""
    answers: Mapping[str, object] = field(default_factory=lambda: NOTHING)
    """Wire types, or JSON schemas, of the answer by media type."""
    statuses: tuple[int, ...] = (200,)
    parameters: tuple[Mapping[str, Any], ...] = ()
    """Those of the query, as OpenAPI has them."""
    ends_with_caller: bool = True
    """Whether the work ends when the caller leaves. False for changes that are made whole or not at all."""

    @property
    def paths(self) -> tuple[str, ...]:
        """All of them."""
        return (self.path, *self.aliases)


# --- what a request asks for --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attribution:
    """The end user and the tags that a caller names, for the records of usage."""

    end_user: str | None = None
    tags: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    fields: tuple[str, ...] = ()
    """Names of the fields that say so."""


NO_ATTRIBUTION = Attribution()


@dataclass(frozen=True, slots=True)
class GenerationCall:
    """A decoded body: the request, and how to send its answer."""

    request: GenerationRequest
    stream: bool = False
    include_usage: bool = False
    """Whether a stream ends with the usage. A buffered answer always holds it."""
    ignored: tuple[str, ...] = ()
    """Accepted fields without effect. A header of the answer names them."""
    relaxed: tuple[str, ...] = ()
    """Keywords of schemas that are not enforced, each with its path. A header of the answer names them."""
    continuous_usage: bool = False
    """Whether each part of a stream that includes the usage tells what was made so far."""
    token_names: bool = False
    """Whether log-probabilities call tokens by their ids."""
    attribution: Attribution = NO_ATTRIBUTION


@dataclass(frozen=True, slots=True)
class ResponseMeta:
    """The values that every part of one answer repeats."""

    id: str
    """Unique, without the dialect's prefix."""
    created: int
    """Unix time in seconds."""
    model: str
    """As the caller spelt it."""


@dataclass(frozen=True, slots=True)
class TokenizeCall:
    """A request for the token ids of a prompt."""

    model: str | None
    """None is the only model there is."""
    prompt: Prompt
    texts: bool = False
    """Whether the answer also has each token's text."""


@dataclass(frozen=True, slots=True)
class ApplyCall:
    """A request for the prompt of a conversation, as text."""

    model: str | None
    """None is the only model there is."""
    conversation: Conversation


@dataclass(frozen=True, slots=True)
class DetokenizeCall:
    """A request for the text of token ids."""

    model: str | None
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LoadCall:
    """A request to make an adapter a model."""

    name: str
    path: str
    """As the caller wrote it."""
    base: str | None
    """None is the only model there is."""
    in_place: bool
    """Whether it may take the place of one of the same name."""


@dataclass(frozen=True, slots=True)
class EmbeddingCall:
    """A request for vectors of texts, and how to write them."""

    request: EmbeddingRequest
    packed: bool = False
    """Whether vectors are written as bytes, not as numbers."""
    ignored: tuple[str, ...] = ()
    """As of a Call."""
    attribution: Attribution = NO_ATTRIBUTION


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model in a list of models."""

    name: str
    created: int
    state: str
    """The state of its engine."""
    profile: Profile | None = None
    """None while the engine cannot say."""
    parent: str | None = None
    """Of an adapter, the base model's name."""
    adapter: Adapter | None = None
    """Of an adapter, what it is."""
    alias: str | None = None
    """The name that the caller used, if it is another one."""


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Token ids of a prompt."""

    ids: tuple[int, ...]
    context_length: int
    """Tokens that a prompt and its answer must fit."""
    pieces: tuple[bytes, ...] | None = None
    """Each token's bytes or name, if the request asks for texts."""


# --- what the server does for handlers ----------------------------------------------------------------------


class DeploymentService(Protocol):
    """Adapters that callers deploy by the names of repositories."""

    async def deploy(self, deployment: DeploymentRequest, actor: Actor) -> DeployedAdapter:
        """Makes an adapter of the hub, or of the operator's directories, a model."""

    async def remove(self, name: str, actor: Actor) -> None:
        """Takes an adapter's name away; what runs with it ends."""

    def find(self, name: str, actor: Actor) -> DeployedAdapter:
        """One adapter. Raises ModelNotFound."""

    def list_deployed(self, actor: Actor) -> Iterable[DeployedAdapter]:
        """All adapters that the actor may use."""

    def find_base(self, name: str, actor: Actor) -> DeployedBase:
        """One base model. Raises ModelNotFound."""

    def list_bases(self, actor: Actor) -> Iterable[DeployedBase]:
        """All base models that the actor may use."""


class Services(Protocol):
    """The operations of the server that handlers use."""

    @property
    def keeps_records(self) -> bool:
        """Whether each request's usage is written down."""

    @property
    def deployments(self) -> DeploymentService:
        """Adapters from elsewhere."""

    def create_meta(self, model: str) -> "ResponseMeta":
        """Creates the values that all parts of an answer repeat."""

    def build_context(self, request: Request, origin: Origin) -> Context:
        """The request's circumstances, for the pipeline."""

    def generate(
        self, request: GenerationRequest, context: Context
    ) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """Events of one generation. Raises ModelNotFound or PermissionDenied at once; the rest while they are
        read."""

    async def embed(self, request: EmbeddingRequest, context: Context) -> Embeddings:
        """Vectors of texts."""

    async def offload(self, work: Callable[[], T]) -> T:
        """The result of work that takes milliseconds, done in a thread."""

    def list_models(self, actor: Actor) -> list[ModelEntry]:
        """The models that an actor may use: those of the settings in their order, then adapters."""

    async def list_profiled_models(self, actor: Actor) -> list[ModelEntry]:
        """The same with their profiles."""

    async def load_model(self, name: str, request: Request) -> ModelEntry:
        """One model with its profile. Raises ModelNotFound or PermissionDenied."""

    async def tokenize(self, call: TokenizeCall, request: Request) -> PromptTokens:
        """The token ids of a prompt."""

    async def detokenize(self, call: DetokenizeCall, request: Request) -> str:
        """The text of token ids."""

    async def apply_template(self, call: ApplyCall, request: Request) -> str:
        """The prompt that the chat template makes of a conversation."""

    async def load_tokenizer(self, model: str | None, request: Request) -> TokenizerInfo:
        """Describes a model's tokenizer."""

    async def load_adapter(self, call: LoadCall, actor: Actor) -> None:
        """Makes an adapter on the server's disk a model."""

    async def unload_adapter(self, name: str, actor: Actor) -> None:
        """Takes an adapter's name away; what runs with it ends."""

    def require_owner(self, request: Request) -> None:
        """Raises PermissionDenied unless the caller has a key, or is a program of this machine."""


# --- a product ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Description:
    """A dialect's part of the OpenAPI document, besides its endpoints."""

    schemas: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = ""
    """Beginning of the names of its schemas."""
    error_schema: str = ""
    """Name of the schema that all errors have."""


class Dialect(Protocol):
    """One product's wire format, whole."""

    @property
    def name(self) -> str:
        """In the settings, the docs and the names of its schemas."""

    @property
    def prefix(self) -> str:
        """Beginning of all its paths and of no other dialect's: `/fireworks`. What fails below it is answered
        with its errors. Empty: the server's own, which speaks wherever no other does."""

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """All that it serves."""

    def status(self, error: AntiphonError) -> int:
        """The status of an error response: the error's own, where the product has no other for it."""

    def error(self, error: AntiphonError) -> bytes:
        """The body of an error response."""

    def describe(self) -> Description:
        """Schemas for the OpenAPI document, made from the wire types."""

    def fields(self) -> frozenset[str]:
        """Names of all fields that its requests have. A log holds no other names of a request's."""
