"""The interface of dialects. A dialect converts between one product's wire format and domain values.

A dialect declares endpoints. Each endpoint has a method, a path, a right, a body, answers and a handler. The
HTTP layer serves the declared endpoints and has no code for single products. A dialect does not depend on an
engine or an HTTP framework, and does no I/O. A handler uses the server only through `Services`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, Self, TypeVar
from urllib.parse import parse_qsl

from antiphon.domain.context import Context, Origin, RequestProgress, Span
from antiphon.domain.events import Event, EventGroup
from antiphon.domain.identity import LOCAL_ANONYMOUS, Actor, Right
from antiphon.domain.ledger import NOTHING
from antiphon.domain.limits import LimitStatus
from antiphon.domain.models import (
    Adapter,
    DeployedAdapter,
    DeployedBase,
    DeploymentRequest,
    Profile,
    TokenizerInfo,
)
from antiphon.domain.request import (
    Conversation,
    EmbeddingRequest,
    Embeddings,
    GenerationRequest,
    Prompt,
    Ranking,
    RerankRequest,
)
from antiphon.domain.stored_responses import SealedReasoning, StoredResponse
from antiphon.domain.tenancy import Key, Project
from antiphon.domain.values import Struct, field
from antiphon.errors import AntiphonError
from antiphon.retrieval.knowledge import KnowledgeTables

KEEP_ALIVE = b": keep-alive\n\n"
"""A comment. Clients of server-sent events ignore it."""

JSON = "application/json"
EVENT_STREAM = "text/event-stream"
PLAIN = "text/plain"
MULTIPART = "multipart/form-data"

T = TypeVar("T")

Headers = tuple[tuple[bytes, bytes], ...]

PROJECT_HEADERS = (b"x-project-id", b"x-selected-account-id")
"""Headers that select one of the projects of a key."""

USER_HEADERS = (b"x-user-id",)
"""Headers that name the user for whom a key acts."""

# --- requests and answers -------------------------------------------------------------------------------


class Request(Struct):
    """One HTTP request in plain types."""

    id: str
    method: str
    path: str
    """The decoded path."""
    headers: Mapping[bytes, list[bytes]]
    """All values of each header, in order, by lower-case name."""
    query_string: bytes = b""
    client: str | None = None
    """The client's address as trusted proxies report it, for the log and the audit. None if it is unknown."""
    actor: Actor = LOCAL_ANONYMOUS
    chosen_project: str | None = None
    """The project that the server chose because the request named none that the key can use. A header of the
    answer names it."""
    path_params: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    """The values of the placeholders in the endpoint's path."""
    body: bytes = b""
    progress: RequestProgress = field(default_factory=RequestProgress)
    span: Span | None = None
    """The request's span in a trace; None without tracing."""
    peer: str | None = None
    """The address of the connection, if it has one."""

    def query(self) -> list[tuple[str, str]]:
        """Returns the names and values of the query, in order. Empty values are included."""
        return parse_qsl(self.query_string.decode("latin-1"), keep_blank_values=True)


class Response(Struct, frozen=True):
    """A complete HTTP response."""

    body: bytes = b""
    status: int = 200
    media_type: str = JSON
    headers: Headers = ()


class StreamEncoder(Protocol):
    """Encodes one stream into the bytes of server-sent events."""

    def encode(self, event: Event) -> bytes:
        """Returns the bytes for one event; empty if the event is not visible."""

    def end(self) -> bytes:
        """Returns the bytes that end a complete stream."""

    def encode_error(self, error: AntiphonError) -> bytes:
        """Returns the bytes that end a broken stream."""

    def keep_alive(self) -> bytes:
        """Returns the bytes to send after a silence, at any time before the end, even before the first
        event."""
        return KEEP_ALIVE


class EventStream(Struct, frozen=True):
    """A response of server-sent events. Its status and headers are sent with the first event."""

    events: AbstractAsyncContextManager[AsyncIterator[EventGroup]]
    encoder: StreamEncoder
    headers: Callable[[], Headers]
    """Returns further headers. It is called when the first event is sent."""


class FileStream(Struct, frozen=True):
    """A response of any length, sent in parts. If it fails midway, the connection is closed."""

    parts: AsyncIterator[bytes]
    media_type: str
    headers: Headers = ()


Answer = Response | EventStream | FileStream
Handler = Callable[[Request, "Services"], Awaitable[Answer]]


class RequestBody(Struct, frozen=True):
    """The body of an endpoint's requests."""

    media_type: str = JSON
    """JSON or MULTIPART."""
    limit: int | None = None
    """The largest size in bytes; None means the server's limit."""
    shape: object = None
    """The wire type of the body, for the OpenAPI document."""


class Endpoint(Struct, frozen=True, kw_only=True, eq=False):
    """One operation of the API: its path, the required right, and its handler.

    The application, the authenticator, the OpenAPI document and the metrics' labels use the endpoints.
    """

    method: str
    path: str
    """The whole path. `{name}` matches one segment; `{name:path}` matches several."""
    handler: Handler
    right: Right | None
    """The right that the caller needs; None means that the endpoint is public."""
    aliases: tuple[str, ...] = ()
    """Other paths of the same endpoint."""
    body: RequestBody | None = None
    summary: str = ""
    """A summary for the OpenAPI document. The document omits endpoints without a summary."""
    tag: str = ""
    description: str = ""
    answers: Mapping[str, object] = field(default_factory=lambda: NOTHING)
    """Wire types or JSON schemas of the answers, by media type."""
    statuses: tuple[int, ...] = (200,)
    parameters: tuple[Mapping[str, Any], ...] = ()
    """Query parameters in OpenAPI's form."""
    ends_with_caller: bool = True
    """Whether the server cancels the work if the caller disconnects. False for changes that must be
    complete."""
    is_suggested: bool = True
    """Whether an error about an unknown path can suggest this one."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The path and its aliases."""
        return (self.path, *self.aliases)


# --- decoded requests -------------------------------------------------------------------------------------


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


class ResponseMeta(Struct, frozen=True):
    """Values that are the same in every part of one answer."""

    id: str
    """A unique id, without the dialect's prefix."""
    created: int
    """The creation time in Unix seconds."""
    model: str
    """The model's name as the caller wrote it."""


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


class ModelEntry(Struct, frozen=True):
    """One entry in a list of models."""

    name: str
    created: int
    state: str
    """The state of the model's engine."""
    profile: Profile | None = None
    """The profile of the model; None while the engine is unavailable."""
    parent: str | None = None
    """For an adapter: the name of its base model."""
    adapter: Adapter | None = None
    """For an adapter: its content."""
    alias: str | None = None
    """The alias that the caller used, if there is one."""


class PromptTokens(Struct, frozen=True):
    """The token ids of a prompt."""

    ids: tuple[int, ...]
    context_length: int
    """The most tokens that a prompt and its answer can have together."""
    pieces: tuple[bytes, ...] | None = None
    """The bytes or the name of each token; None if the caller did not request the texts."""


# --- services for handlers -----------------------------------------------------------------------------


class DeploymentService(Protocol):
    """Adapters that callers deploy by repository name."""

    async def deploy(self, deployment: DeploymentRequest, actor: Actor) -> DeployedAdapter:
        """Deploys an adapter of the hub or of the operator's directories as a model."""

    async def remove(self, name: str, actor: Actor) -> None:
        """Removes an adapter's name. Running requests finish."""

    def find(self, name: str, actor: Actor) -> DeployedAdapter:
        """Returns one adapter. Raises ModelNotFound."""

    def list_deployed(self, actor: Actor) -> Iterable[DeployedAdapter]:
        """Lists the adapters that the actor can use."""

    def find_base(self, name: str, actor: Actor) -> DeployedBase:
        """Returns one base model. Raises ModelNotFound."""

    def list_bases(self, actor: Actor) -> Iterable[DeployedBase]:
        """Lists the base models that the actor can use."""


class TokenService(Protocol):
    """Access tokens of users, and projects, within the rights of the caller."""

    def list_projects(self, actor: Actor) -> Sequence[Project]:
        """Lists the projects that the actor can see, including archived ones."""

    def list_tokens(self, actor: Actor) -> Sequence[Key]:
        """Lists the tokens of the actor's user that have not ended."""

    async def add_token(
        self, actor: Actor, name: str, project: str | None, expires: int | None
    ) -> tuple[Key, str]:
        """Creates a token of the actor's user. Returns its key and its secret. `expires`: Unix seconds.
        Raises a RequestError."""

    async def change_token(self, actor: Actor, token: str, change: Callable[[Key], Key]) -> Key:
        """Changes a token. `token`: its id or its secret. Raises NotFound."""

    async def revoke_token(self, actor: Actor, token: str) -> None:
        """Revokes a token. `token`: its id or its secret. Raises NotFound."""


class ResponseStore(Protocol):
    """The responses that the server keeps for the project of an actor. For an actor, the responses of other
    projects do not exist. Each method can raise StoreUnavailable, except `save`."""

    @property
    def is_on(self) -> bool:
        """Whether responses are kept. If not, nothing is found."""

    async def save(self, response: StoredResponse, actor: Actor) -> bool:
        """Keeps a response. Call it after the usage and before the end of the answer. Returns False if the
        response is not kept, for any reason: the answer then says `store: false`. Raises nothing."""

    async def load(self, id_: str, actor: Actor) -> StoredResponse:
        """Returns one response. Raises NotFound."""

    async def load_chain(self, id_: str, actor: Actor) -> tuple[bytes, ...]:
        """Returns the items of a response and of all its predecessors, as JSON arrays, the oldest first:
        `input`, `output`, `input`, `output`. Raises PreviousResponseNotFound if a response of the chain is
        missing, InvalidValue if the chain is too long, and UnsupportedParameter if responses are not kept.
        The errors name `previous_response_id`."""

    async def load_items(self, ids: Sequence[str], actor: Actor) -> Mapping[str, bytes]:
        """Returns items of kept responses as JSON, by id. Raises NotFound, which names `input`, if an item is
        missing, and UnsupportedParameter if responses are not kept."""

    async def delete(self, id_: str, actor: Actor) -> None:
        """Removes one response. Later responses of its chain stay, and cannot be continued. Raises
        NotFound."""


class Services(Protocol):
    """The parts of the server that a handler can use."""

    @property
    def keeps_records(self) -> bool:
        """Whether the server records the usage of each request."""

    @property
    def deployments(self) -> DeploymentService:
        """The adapters that callers deploy."""

    @property
    def tokens(self) -> TokenService | None:
        """The access tokens of users; None if keys are off."""

    @property
    def knowledge(self) -> KnowledgeTables:
        """The knowledge tables. Raises FeatureNotServed if the server has none."""

    @property
    def responses(self) -> ResponseStore:
        """The responses that the server keeps."""

    def seal(self, reasoning: SealedReasoning, actor: Actor) -> str:
        """Encrypts reasoning for a client that carries it to its next request. Only this installation can
        read it, and only for the actor's project."""

    def unseal(self, text: str, actor: Actor) -> SealedReasoning | None:
        """Returns the reasoning that `seal` encrypted for the actor's project. Returns None for any other
        text."""

    def create_meta(self, model: str) -> "ResponseMeta":
        """Returns a new id, the time and the model, for all parts of an answer."""

    def build_context(self, request: Request, origin: Origin) -> Context:
        """Builds the request's context for the pipeline."""

    def generate(
        self, request: GenerationRequest, context: Context
    ) -> AbstractAsyncContextManager[AsyncIterator[EventGroup]]:
        """Returns a context manager that gives the events of one generation. Raises ModelNotFound or
        PermissionDenied immediately, and other errors while the events are read."""

    def count_unused(self, dialect: str, names: Sequence[str]) -> None:
        """Counts the fields of a request that the server does not use, for the operator's metrics."""

    async def embed(self, request: EmbeddingRequest, context: Context) -> Embeddings:
        """Returns the vectors of texts."""

    async def rerank(self, request: RerankRequest, context: Context) -> Ranking:
        """Returns the ranking of documents for a query."""

    async def offload(self, work: Callable[[], T]) -> T:
        """Runs `work`, which takes milliseconds, in a thread. Returns its result."""

    def list_models(self, actor: Actor) -> list[ModelEntry]:
        """Lists the models that the actor can use: first the models of the settings in their order, then the
        adapters."""

    async def list_profiled_models(self, actor: Actor) -> list[ModelEntry]:
        """Lists the models that the actor can use, with their profiles."""

    async def load_model(self, name: str, request: Request) -> ModelEntry:
        """Returns one model with its profile. Raises ModelNotFound or PermissionDenied."""

    async def tokenize(self, call: TokenizeCall, request: Request) -> PromptTokens:
        """Returns the token ids of a prompt."""

    async def detokenize(self, call: DetokenizeCall, request: Request) -> str:
        """Returns the text of token ids."""

    async def apply_template(self, call: ApplyCall, request: Request) -> str:
        """Returns the rendered chat template of a conversation."""

    async def load_tokenizer(self, model: str | None, request: Request) -> TokenizerInfo:
        """Returns the description of a model's tokenizer."""

    async def load_adapter(self, call: LoadCall, actor: Actor) -> None:
        """Loads an adapter from the server's disk as a model."""

    async def unload_adapter(self, name: str, actor: Actor) -> None:
        """Removes an adapter's name. Running requests finish."""

    def require_owner(self, request: Request) -> None:
        """Raises PermissionDenied unless the caller has a key or is on this machine."""


# --- a product ----------------------------------------------------------------------------------------------


class Description(Struct, frozen=True):
    """A dialect's part of the OpenAPI document, in addition to its endpoints."""

    schemas: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = ""
    """The prefix of the dialect's schema names."""
    error_schema: str = ""
    """The name of the schema of all errors of the dialect."""


class CodecOptions:
    """The options with which a codec decodes requests."""

    def __init__(self, report_unknown: bool, strict: bool = False) -> None:
        """`report_unknown`: a response header names unknown fields, and they are not refused. `strict`: a
        schema with a keyword that is not enforced is refused."""
        self._reports_unknown = report_unknown
        self._strict = strict


class DialectOptions(Struct, frozen=True):
    """The settings of all dialects."""

    report_unknown: bool = False
    """Whether the answer names unknown fields, which are not refused."""
    strict_schemas: bool = False
    """Whether a schema with a keyword that is not enforced is refused."""
    has_keys: bool = True
    """Whether there are access tokens."""
    max_file_bytes: int | None = None
    """The largest file of a knowledge table; None means the server's limit of bodies."""
    refuses_hosted: bool = False
    """Whether tools of the Responses API that the vendor would run are refused, not left out."""


class DialectDefaults:
    """What is the same in most dialects."""

    placeholder_project: str | None = None
    chooses_project = False
    aliases: Mapping[str, str] = NOTHING
    """Names of models that callers of this product use. Aliases of the settings override them."""

    def __init__(self, report_unknown: bool = False, strict_schemas: bool = False) -> None:
        """The parameters are those of `DialectOptions`."""

    @classmethod
    def create(cls, options: DialectOptions) -> Self:
        """Creates the dialect of a server."""
        return cls(options.report_unknown, options.strict_schemas)

    def get_status(self, error: AntiphonError) -> int:
        """Returns the error's own status."""
        return error.status

    def build_error_headers(self, error: AntiphonError, request: Request, now: float) -> Headers:
        """Returns no headers."""
        return ()

    def build_limit_headers(self, measure: str, status: LimitStatus, now: float) -> Headers:
        """Returns no headers besides those that all dialects have."""
        return ()


class Dialect(Protocol):
    """One product's wire format."""

    @property
    def name(self) -> str:
        """The dialect's name in settings, docs and schema names."""

    @property
    def prefix(self) -> str:
        """The prefix of the dialect's paths, such as `/fireworks`. Errors of these paths have this dialect's
        form. The server's own dialect has an empty prefix, and all other paths."""

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """All endpoints of the dialect."""

    def get_status(self, error: AntiphonError) -> int:
        """Returns the HTTP status of an error: the error's own, unless the product uses another one."""

    @property
    def placeholder_project(self) -> str | None:
        """The project that the product's clients send if their user has chosen no project. A key that cannot
        use this project then acts in its own project. None if the clients send no such project."""

    @property
    def chooses_project(self) -> bool:
        """Whether a user with several projects may name none: the request then acts in the oldest one."""

    def encode_error(self, error: AntiphonError, request: Request | None = None) -> bytes:
        """Returns the body of an error response. `request`: None if the request could not be read."""

    def build_error_headers(self, error: AntiphonError, request: Request, now: float) -> Headers:
        """Returns the product's own headers of an error response. `now`: Unix seconds."""

    def build_limit_headers(self, measure: str, status: LimitStatus, now: float) -> Headers:
        """Returns the product's own headers of the tightest limit of a `measure`: `requests` or `tokens`.
        `now`: Unix seconds."""

    def describe(self) -> Description:
        """Returns the schemas for the OpenAPI document, made from the wire types."""

    def list_fields(self) -> frozenset[str]:
        """Returns the names of all fields of the dialect's requests. Logs contain no other field names."""
