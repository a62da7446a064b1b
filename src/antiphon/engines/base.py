"""The two interfaces that engines implement.

`Engine`: a generation request in, events out, in two steps. `prepare` makes a request ready for this engine
and tells its size; `PreparedRequest.stream` does the work. `antiphon_testing.check_engine` checks the
contract:

- `prepare` refuses a request that the engine cannot serve, and names the reason; it makes no token and puts
  nothing into the engine's queue;
- one Started comes first, together with the first token. If the request makes no token, Started comes when
  the first choice is complete. Then TextDelta and Finished of the choices come in any interleaving, and
  CandidateTokens between them. Each choice has exactly one Finished, which is its last event. Usage comes
  last, once. The events come in groups, as they arrive; no group is empty;
- errors are those of `antiphon.errors`; a request that fails before Started has made no token;
- a request that was prepared before the engine restarted is refused with EngineUnavailable: prepare it again;
- leaving the context of `stream` ends the work at once, in any state; the engine does not retry.

`TokenEngine`: the interface of local engines, below the renderer. It uses no text, no template, no stop
string. `antiphon_testing.check_token_engine` checks the contract:

- `generate` runs ONE sequence: one SequenceStarted when it is admitted to the batch, then PromptScores if
  requested, then Steps, then one SequenceFinished. Before SequenceStarted the sequence is queued: if the
  engine fails then, EngineUnavailable is raised; after SequenceStarted, EngineDied is raised;
- a sequence that cannot be queued is refused with EngineBusy or Overloaded; siblings of a queued or running
  sequence are never refused;
- closing the generator ends that sequence and no other, also while it is queued and in prefill;
- sequences of one `group` have equal prompts: one sequence computes the prefill, and the others wait for it
  and share it. Closing a sequence, even the one that computes, ends no other sequence of the group;
- log-probabilities are of the model's raw distribution, before temperature;
- an end-of-generation or stop token that ends a sequence is part of Steps and of the counts. No such token
  comes before `min_tokens`, even if a constraint forces it: if no other token is allowed, InvalidValue is
  raised.

`ControlTokens` finds the control tokens of a vocabulary in a text, for token engines.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Protocol, runtime_checkable

from antiphon.domain.context import Context, EngineReport
from antiphon.domain.events import EventGroup, TokenOrigin, Usage
from antiphon.domain.identity import LOCAL_ANONYMOUS, Actor
from antiphon.domain.media import Medium, MediumShape
from antiphon.domain.messages import MediaKind
from antiphon.domain.models import DeviceLayers, Load, Profile, TokenizerInfo
from antiphon.domain.request import (
    Constraint,
    Conversation,
    EmbeddingFacts,
    EmbeddingRequest,
    Embeddings,
    EmbedRequest,
    GenerationRequest,
    Prompt,
    Ranking,
    RerankRequest,
    Sampling,
    SamplingOptions,
    Vectors,
)
from antiphon.domain.values import Struct, field

PREFILL_CHUNK = 512
"""The most prompt tokens of one step if no setting tells the number."""

MEDIUM_CELL = -1
"""The id of each cell of a medium in a prompt. No token has it."""


class EngineState(StrEnum):
    """The state of an engine. Only READY serves requests."""

    STARTING = "starting"
    PARKED = "parked"
    """Not loaded. The first request loads it."""
    LOADING = "loading"
    """It loads because a request needs it."""
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    """The engine does not start any more: it died too often, or cannot load. An operator must act."""


class RequestSize(Struct, frozen=True):
    """The most tokens that one request can take."""

    prompt_tokens: int
    """The tokens of all prompts, each prompt counted once."""
    output_tokens: int
    """The most tokens that all choices together can make."""
    is_counted: bool = True
    """Whether deltas carry their tokens. If not, output tokens are known only at the end, so `output_tokens`
    is reserved completely before the request starts."""
    estimated_prompt_tokens: int = 0
    """What the prompts probably take, if `is_counted` is False. It is charged if the request ends before its
    usage comes. `prompt_tokens` is an upper bound."""
    choices: int = 1
    """The choices of all prompts, which are made at the same time."""


class PreparedRequest(Protocol):
    """A generation request that is ready for one engine."""

    @property
    def size(self) -> RequestSize:
        """The request's size, known before the engine computes anything."""

    @property
    def report(self) -> EngineReport:
        """The report of this request alone. Its ignored and relaxed fields are known with the first event."""

    def stream(self, context: Context) -> AbstractAsyncContextManager[AsyncIterator[EventGroup]]:
        """Streams the events, in the groups in which they arrive. Entering the context costs little. The work
        runs as the iterator is read, and ends when the context is left."""


@runtime_checkable
class LateUsageStream(Protocol):
    """What `PreparedRequest.stream` can also return: a stream that tells its usage some time after its last
    Finished."""

    @property
    def has_arrived(self) -> bool:
        """Whether the whole answer has come, whatever its reader has read of it."""

    async def read_usage(self, seconds: float) -> Usage | None:
        """Reads on to the usage, after the reader of the events was cancelled or closed. Call it
        before the context is left. Returns None if the usage does not come within `seconds`, or if nobody but
        this server counted it."""


class PreparedEmbedding(Protocol):
    """A request for vectors that is ready for one engine."""

    @property
    def size(self) -> RequestSize:
        """The request's size, known before the engine computes anything. It has no output tokens."""

    @property
    def report(self) -> EngineReport:
        """The report of this request alone."""

    async def embed(self, context: Context) -> Embeddings:
        """Computes all vectors; cancelling ends the work. `report.embedded_tokens` counts the tokens of the
        texts whose vectors are computed."""


class PreparedRerank(Protocol):
    """A request to rank documents that is ready for one engine."""

    @property
    def size(self) -> RequestSize:
        """The request's size, known before the engine computes anything. It has no output tokens."""

    @property
    def report(self) -> EngineReport:
        """The report of this request alone."""

    async def rank(self, context: Context) -> Ranking:
        """Scores all documents; cancelling ends the work. `report.embedded_tokens` counts the tokens of the
        documents that are scored."""


class Engine(Protocol):
    """Turns a generation request into events."""

    async def prepare(self, request: GenerationRequest, context: Context) -> PreparedRequest:
        """Prepares the request for this engine. Raises a RequestError that names the unsupported part,
        EngineUnavailable, or DeadlineExceeded."""

    async def profile(self) -> Profile:
        """The features that the model accepts and produces. Raises EngineUnavailable while it is unknown."""

    def state(self) -> EngineState:
        """The engine's current state, which is known without asking the engine."""

    async def aclose(self) -> None:
        """Ends all work and frees the engine's resources."""


@runtime_checkable
class ParkedEngine(Protocol):
    """An engine that may be PARKED."""

    def request_load(self) -> None:
        """Has the engine loaded if it is parked. Returns at once."""


@runtime_checkable
class TokenizerEngine(Protocol):
    """An engine that can show its token ids; /tokenize and /detokenize use it."""

    async def encode(self, prompt: Prompt, actor: Actor = LOCAL_ANONYMOUS) -> tuple[int, ...]:
        """The token ids with which generating from this prompt would start; `actor` is the caller."""

    async def apply(self, conversation: Conversation, actor: Actor = LOCAL_ANONYMOUS) -> str:
        """Renders a conversation by the chat template."""

    async def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids, without the space that the tokenizer adds before a text."""

    async def spell(self, tokens: Sequence[int]) -> tuple[bytes, ...]:
        """The bytes that each token adds to a text. They may be a part of a character. For a control token,
        they are its name."""

    async def describe_tokenizer(self) -> TokenizerInfo:
        """Describes the tokenizer, its special tokens and its chat template."""


@runtime_checkable
class TextEmbeddingEngine(Protocol):
    """An engine that makes vectors of texts. A model either generates text or makes vectors, and refuses
    requests for the other."""

    async def prepare_embedding(self, request: EmbeddingRequest, context: Context) -> PreparedEmbedding:
        """Prepares the request for this engine. Raises as `Engine.prepare` does."""


@runtime_checkable
class RerankEngine(Protocol):
    """An engine that ranks documents by a query."""

    async def prepare_rerank(self, request: RerankRequest, context: Context) -> PreparedRerank:
        """Prepares the request for this engine. Raises as `Engine.prepare` does."""


@runtime_checkable
class ObservableEngine(Protocol):
    """An engine that reports its load; /metrics shows it."""

    async def observe(self) -> Load:
        """The current load and the totals so far. Raises EngineUnavailable while the engine is away."""


# --- the token engine ---------------------------------------------------------------------------------------


class KVLayout(StrEnum):
    """How the cells of the KV cache are assigned to sequences."""

    POOL = "pool"
    """One pool: prefixes are shared without copying, and long prompts run beside short ones."""
    STREAMS = "streams"
    """A separate stream of cells for each sequence: faster with many short sequences. A shared prefix is
    copied."""


class DraftMode(StrEnum):
    """When sequences without a prediction get drafts, and whether the cost of drafts counts."""

    OFF = "off"
    """Only predictions of requests are drafts, if they probably make the sequence faster."""
    AUTO = "auto"
    """A sequence's own earlier tokens are drafts too, if they probably make it faster."""
    ALWAYS = "always"
    """As AUTO, but whatever drafts cost."""


class RefusedMedium(Struct, frozen=True):
    """A medium that has ended an engine host."""

    digest: str
    until: float
    """The Unix time at which it may be tried again."""


class LoadSpec(Struct, frozen=True):
    """Everything that an engine host needs to load a model."""

    model: str
    """The path of the GGUF file; for vLLM, of the folder of weights."""
    context_length: int | None = None
    """The cells of one sequence. None takes the model's own context length, limited by the memory
    settings."""
    sequences: int = 16
    """The most sequences that run at once."""
    threads: int | None = None
    """The number of compute threads; None chooses for the machine."""
    exact: bool = False
    """Whether a sequence gives bit-equal results alone and in a batch. Then flash attention is off, and each
    sequence has one KV stream."""
    kv_type: str = "f16"
    """`f16` or `f32`."""
    library: str | None = None
    """The path of the engine library; None searches the usual places."""
    prefill_chunk: int | None = None
    """The most prompt tokens that one step computes, all sequences together. None takes PREFILL_CHUNK; vLLM
    chooses for itself on a GPU."""
    layout: KVLayout = KVLayout.POOL
    """How the KV cache is laid out; `exact` implies STREAMS."""
    cells: int | None = None
    """The cells of the pool; None gives each sequence `context_length`. With fewer cells, some sequences wait
    or are computed again."""
    step_latency: float = 0.1
    """Seconds of one step that prompts may take while other sequences wait for their next token."""
    queue: int = 512
    """The most sequences that may wait; more are refused with EngineBusy."""
    queue_per_actor: int = 256
    """The most sequences of one actor that may wait; more are refused with Overloaded."""
    keep_prefixes: bool = True
    """Whether computed prefixes stay in free cells for later requests."""
    quantum: int = 4
    """The fewest steps that one adapter's sequences get before another adapter has its turn."""
    adapter_memory: int = 1 << 30
    """Bytes of adapters that stay in memory; others are read again when they are used."""
    weights_in_memory: bool = False
    """Whether weights are copied into memory, which reads faster. Otherwise they are mapped from the file and
    shared."""
    check_tensors: bool = False
    """Whether the library reads and checks every weight while loading."""
    dtype: str = "auto"
    """For vLLM: the number format in which it computes."""
    memory_share: float | None = None
    """For vLLM: the share of each device's memory that it takes."""
    tensor_parallel: int = 1
    """For vLLM: the number of devices over which it splits each layer."""
    adapters: bool = False
    """For vLLM: whether sequences may use adapters, which takes memory and time for all sequences."""
    gpu_layers: int | None = None
    """The number of layers on devices, counted from the end of the model; the output counts as a layer. None
    puts as many layers on devices as fit; with `exact`, it puts no layer there."""
    devices: tuple[str, ...] = ()
    """The devices to use, by the library's names, or for vLLM by the driver's numbers; empty means all."""
    tensor_split: tuple[float, ...] = ()
    """The share of layers of each device; empty uses one device where one is enough."""
    hosts: int = 1
    """The engine hosts of this model on this machine. They share its processors, and, without `devices`, all
    devices."""
    drafts: DraftMode = DraftMode.OFF
    """Which drafts are verified, several tokens of a sequence in one step."""
    mmproj: str | None = None
    """The path of the projector's GGUF file, with which the model takes pictures or recordings."""
    image_max_tokens: int = 1024
    """The most tokens of one picture, for projectors that choose by its size."""
    image_min_tokens: int | None = None
    """The fewest tokens of one picture; None takes the projector's own number."""
    media_memory: int = 1 << 28
    """Bytes of encoded media that stay in memory for later requests."""
    bind_threads: bool = False
    """Whether each compute thread stays on a core, if the threads use all cores."""

    def get_prefill_chunk(self) -> int:
        """Returns the most prompt tokens of one step."""
        return PREFILL_CHUNK if self.prefill_chunk is None else self.prefill_chunk


class MediumSpan(Struct, frozen=True):
    """Cells that one part of a medium takes in a prompt. A picture that is cut into tiles has several
    parts."""

    start: int
    """The index of the first cell in the prompt."""
    cells: int
    kind: MediaKind
    digest: str = ""
    """The digest of the medium; empty in a layout, which knows only the medium's shape."""
    part: int = 0
    """The number of the part in the medium."""


class MediumLayout(Struct, frozen=True):
    """How the tokens of a prompt show one medium: its cells, and the tokens that the model needs around
    them."""

    ids: tuple[int, ...]
    """Each cell has the id MEDIUM_CELL."""
    spans: tuple[MediumSpan, ...]
    """The parts of the medium. Their `start` counts from the beginning of `ids`."""


class PromptTokens(Struct, frozen=True):
    """The prompt of a sequence."""

    ids: tuple[int, ...]
    """The token ids. Each cell of a medium has the id MEDIUM_CELL."""
    media: tuple[MediumSpan, ...] = ()
    """Where the cells of media are, in their order."""


class TextPiece(Struct, frozen=True):
    """Text to tokenize. The text of a control token becomes that token only if `control` is set."""

    text: str
    control: bool = False


class TokenRequest(Struct, frozen=True):
    """A request to generate one sequence."""

    prompt: PromptTokens
    max_tokens: int
    """At least 1. With 0, the request only scores the prompt, and needs `prompt_logprobs`."""
    sampling: Sampling = field(default_factory=Sampling)
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the sequence like the model's own end-of-generation tokens."""
    logprobs: int | None = None
    """None: no log-probabilities. 0: those of the chosen tokens. k, at most the size of the vocabulary: also
    those of the k likeliest tokens."""
    group: str | None = None
    """Siblings with equal prompts carry the same group."""
    choice: int = 0
    """Index within the group. Every random draw depends on it."""
    prompt_logprobs: int | None = None
    """None: no scores. k: PromptScores come with the k likeliest tokens. The whole prompt is then computed,
    without cached prefixes."""
    cache_salt: str = ""
    """Sequences share computed prefixes only under an equal salt."""
    adapter: str | None = None
    """Digest of the adapter to generate with; None is the base model. Sequences with different adapters never
    share a prefix."""
    constraint: Constraint | None = None
    """The constraint on the completion. An engine that cannot follow the constraint raises an error."""
    actor: str = ""
    """The opaque id of the caller; callers take turns in the queue."""
    priority: int = 0
    """Among one actor's waiting sequences, a lower priority is admitted earlier. It never affects other
    actors' turns."""
    logprob_token_ids: tuple[int, ...] = ()
    """With `logprobs`: the alternatives are these tokens in this order, for any k."""
    prediction: tuple[int, ...] = ()
    """Tokens that the sequence probably repeats. They make it faster, and never change its tokens. They are
    not used together with a constraint."""


class Counts(Struct, frozen=True):
    """The token counts of one sequence."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


class SequenceStarted(Struct, frozen=True):
    """The sequence is admitted to the batch; it has no token yet."""

    prompt_tokens: int
    cached_tokens: int = 0
    """The number of prompt tokens whose KV cells came from the cache."""
    queued: float = 0.0
    """Seconds between the request and its admission."""


class PromptScores(Struct, frozen=True):
    """Log-probabilities of consecutive prompt tokens, each given all tokens before it. The scores of one
    prompt come in several events, in order, before the first Steps. Together they include each prompt token
    except the first."""

    start: int
    """The index in the prompt of the first scored token; at least 1."""
    logprobs: bytes
    """float32, little-endian, one for each token."""
    alternative_ids: bytes = b""
    """int32, little-endian: for each token the ids of the k likeliest tokens, the likeliest first."""
    alternative_logprobs: bytes = b""
    """float32, little-endian: the log-probabilities of `alternative_ids`."""
    ranks: bytes = b""
    """int32, little-endian, one for each token: 1 plus the number of tokens that are likelier at the same
    position."""


class Steps(Struct, frozen=True):
    """One or several new tokens, in order."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    """One log-probability for each token if requested, otherwise empty."""
    alternatives: tuple[tuple[tuple[int, float], ...], ...] = ()
    """For each token the likeliest (id, log-probability) pairs, best first, or those of `logprob_token_ids`.
    Empty unless requested."""
    predicted: int = 0
    """The number of these tokens, from the first on, that were computed ahead from the request's
    prediction."""
    mispredicted: int = 0
    """The number of tokens of the prediction that were computed ahead and are not in the sequence."""
    origins: tuple[TokenOrigin | None, ...] = ()
    """The origin of each token if log-probabilities are requested; empty if all tokens were drawn."""


class StopCause(StrEnum):
    """Why a sequence ended."""

    END = "end"
    """An end-of-generation token of the model."""
    STOP_TOKEN = "stop_token"
    LENGTH = "length"
    """`max_tokens` or the end of the context was reached."""


class SequenceFinished(Struct, frozen=True):
    """The sequence is complete and its cells are free."""

    cause: StopCause
    counts: Counts


TokenEvent = SequenceStarted | PromptScores | Steps | SequenceFinished


class TokenKind(StrEnum):
    """The meaning of a token id in text."""

    NORMAL = "normal"
    BYTE = "byte"
    CONTROL = "control"
    """Structure without text; it is shown as nothing."""
    UNKNOWN = "unknown"
    UNUSED = "unused"


class PairFrame(Struct, frozen=True):
    """The tokens that a reranker needs before, between and after a query and a document."""

    before: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


class InfillTokens(Struct, frozen=True):
    """The control tokens of a model that fills in the middle of a text."""

    prefix: int
    """Comes before the text that precedes the middle."""
    suffix: int
    """Comes before the text that follows the middle."""
    middle: int
    """Comes last. The model then generates the middle."""


class Vocabulary(Struct, frozen=True):
    """Bytes and kind of each id, loaded once, and the special ids."""

    pieces: tuple[bytes, ...]
    """The bytes that each id adds to the text, by id; empty for control tokens."""
    kinds: tuple[TokenKind, ...]
    names: dict[int, str]
    """The text of each control token in templates, by id."""
    end_ids: tuple[int, ...]
    """End-of-generation tokens."""
    bos_id: int | None = None
    eos_id: int | None = None
    add_bos: bool = False
    """Whether the tokenizer puts a BOS before a raw prompt."""
    space_prefix: bool = False
    """Whether the tokenizer puts a space before a text, which decoding the tokens removes again."""
    embedding_frame: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    """The tokens before and after a whole text in an embedding model."""
    infill: InfillTokens | None = None
    """The tokens for filling in the middle; None where the model has none."""
    pair_frame: PairFrame = PairFrame()
    """The tokens around a pair of texts in a reranker without a template of its own."""


class MediaFacts(Struct, frozen=True):
    """The media that a model takes."""

    kinds: tuple[MediaKind, ...]
    sample_rate: int = 0
    """Samples of a recording for each second; 0 if the model takes no recordings."""


class EngineInfo(Struct, frozen=True):
    """The loaded model, the library that runs it, and its current load."""

    architecture: str
    parameters: int
    """The number of weights."""
    size: int
    """Bytes of the weights."""
    quantization: str
    trained_context: int
    """The context length that the model was trained for, in tokens."""
    context_length: int
    """The most cells that one sequence may fill."""
    vocabulary: int
    """The number of token ids."""
    sequences: int
    """The most sequences that run at once."""
    threads: int
    exact: bool
    library: str
    """Name and version of the library, for people."""
    library_path: str
    cpu_features: tuple[str, ...]
    """CPU features that the library was built to use and the machine supports."""
    chat_template: str | None = None
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    """Sampling defaults from the model file."""
    license: str | None = None
    """The licence in the model file."""
    organization: str | None = None
    """The maker in the model file."""
    load: Load = field(default_factory=Load)
    embedding: EmbeddingFacts | None = None
    """The facts of an embedding model, which makes no tokens; None for a model that makes tokens."""
    devices: tuple[DeviceLayers, ...] = ()
    """The devices that compute layers, besides the processor."""
    rerank_template: str | None = None
    """For a reranker: the template of a pair's text, with `{query}` and `{document}`; None if the model file
    has no template."""
    portable_seeds: bool = True
    """Whether Antiphon's sampler draws all tokens, so that equal seeds draw equally on every engine."""
    takes_predictions: bool = False
    """Whether `TokenRequest.prediction` can make a sequence faster. If not, the engine refuses it."""
    media: MediaFacts | None = None
    """The media that the model takes in prompts; None for text alone."""


class TokenEngine(Protocol):
    """Token ids and sampling in, tokens with log-probabilities out."""

    async def load(self, spec: LoadSpec) -> EngineInfo:
        """Loads the weights; call it once. Raises a StartupError."""

    def generate(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        """Runs one sequence; closing the generator ends it."""

    async def tokenize(self, pieces: Sequence[TextPiece], add_bos: bool) -> tuple[int, ...]:
        """The token ids of the joined pieces. Tokenizing runs beside decoding and never waits for it."""

    async def vocabulary(self) -> Vocabulary:
        """The table of token ids."""

    async def info(self) -> EngineInfo:
        """The model's facts and the current load."""

    async def aclose(self) -> None:
        """Ends every sequence and frees the model."""


class EventSink(Protocol):
    """Takes the events of one sequence. One thread at a time calls it, but not always the same one."""

    def put(self, event: TokenEvent) -> None:
        """Takes an event, which `flush` sends."""

    def flush(self) -> None:
        """Sends the events that this sink and others of the same connection have taken."""


@runtime_checkable
class PushingEngine(Protocol):
    """A token engine that passes events to a sink from its own thread, so that no event loop has to wake."""

    async def push(self, request: TokenRequest, sink: EventSink) -> None:
        """Runs one sequence as `generate` does, and passes its events to the sink. Returns when the sequence
        has ended and all its events were passed. A cancellation ends the sequence."""


@runtime_checkable
class RemoteEngine(Protocol):
    """A token engine that computes on other machines, all of which can be away for a while."""

    def watch_absence(self, notify: Callable[[str], None]) -> None:
        """Calls `notify` now and at each change: with the reason why no call can be served, or with an empty
        text if calls can be served."""


@runtime_checkable
class AdapterEngine(Protocol):
    """A token engine that computes with adapters, each known by the digest of its content."""

    async def add_adapter(self, digest: str, path: str) -> None:
        """Makes the GGUF adapter at `path` usable, unless it is already usable. Raises InvalidValue if the
        library refuses it."""

    async def remove_adapter(self, digest: str) -> None:
        """Refuses the adapter to new sequences, and forgets it after its last sequence. It ignores an unknown
        digest."""


@runtime_checkable
class ConstraintEngine(Protocol):
    """A token engine that takes constraints; others refuse such requests with UnsupportedParameter."""

    async def check(self, constraint: Constraint) -> None:
        """Raises a RequestError with the reason if the engine cannot follow a constraint. Callers use it
        before a request is admitted."""


@runtime_checkable
class MediaEngine(Protocol):
    """A token engine that takes media in prompts if `EngineInfo.media` is set."""

    async def lay_out(self, shapes: Sequence[MediumShape]) -> tuple[MediumLayout, ...]:
        """Tells how a prompt shows media of these shapes, without encoding one. Raises a RequestError for a
        shape that the model cannot take."""

    def hold(self, medium: Medium, cache_salt: str = "") -> AbstractAsyncContextManager[None]:
        """Gives the engine a medium. While the context lasts, sequences with this cache salt may name it by
        its digest."""


@runtime_checkable
class EncodingEngine(MediaEngine, Protocol):
    """A media engine in the process of its encoder, whose library may end the process."""

    def has_encoded(self, digest: str, cache_salt: str) -> bool:
        """Whether `hold` needs no data of this medium now, for sequences with this cache salt."""

    def watch_encodes(self, report: Callable[[str], None]) -> None:
        """Calls `report` from any thread with the digest of the medium whose encode begins, and with an empty
        text when it has ended."""

    def refuse_medium(self, refused: "RefusedMedium") -> None:
        """Refuses a medium before it is encoded, with InvalidValue."""


@runtime_checkable
class EmbeddingEngine(Protocol):
    """An engine that makes vectors if `EngineInfo.embedding` is set; see
    `antiphon_testing.check_embedding_engine`."""

    def embed(self, request: EmbedRequest) -> AsyncGenerator[SequenceStarted | Vectors, None]:
        """Yields one SequenceStarted when the first text is computed, then Vectors. Closing the generator
        ends the request. Actors take turns text by text."""


class ControlTokens:
    """The control tokens of one vocabulary."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        """`ids`: the id of each control token by its text. No text may be empty."""
        self._ids = ids
        longest_first = sorted(ids, key=len, reverse=True)
        self._texts = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def split(self, pieces: Sequence[TextPiece]) -> Iterator[str | int]:
        """Yields text and the ids of control tokens, in order. Only pieces with `control` are searched.
        If two control tokens begin at the same character, the longer one is taken."""
        for piece in pieces:
            if not piece.control or self._texts is None:
                yield piece.text
                continue
            index = 0
            for match in self._texts.finditer(piece.text):
                yield piece.text[index : match.start()]
                yield self._ids[match[0]]
                index = match.end()
            yield piece.text[index:]
