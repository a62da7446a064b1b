"""The parts of the server that a handler can use. A handler uses the server only through `Services`."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from antiphon.dialects.calls import ApplyCall, DetokenizeCall, LoadCall, TokenizeCall
from antiphon.dialects.http_types import Request
from antiphon.domain.context import Context, Origin
from antiphon.domain.events import EventGroup
from antiphon.domain.identity import Actor
from antiphon.domain.models import (
    Adapter,
    DeployedAdapter,
    DeployedBase,
    DeploymentRequest,
    Profile,
    TokenizerInfo,
)
from antiphon.domain.request import (
    EmbeddingRequest,
    Embeddings,
    GenerationRequest,
    Ranking,
    RerankRequest,
)
from antiphon.domain.stored_responses import SealedReasoning, StoredResponse
from antiphon.domain.tenancy import Key, Project
from antiphon.domain.values import Struct
from antiphon.retrieval.knowledge import KnowledgeTables

T = TypeVar("T")


class ResponseMeta(Struct, frozen=True):
    """Values that are the same in every part of one answer."""

    id: str
    """A unique id, without the dialect's prefix."""
    created: int
    """The creation time in Unix seconds."""
    model: str
    """The model's name as the caller wrote it."""


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
