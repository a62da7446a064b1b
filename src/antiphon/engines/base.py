"""The two seams that engines implement.

`Engine`: a generation request in, events out, in two steps. `prepare` makes a request ready for this engine
and says how much it will take; `PreparedRequest.stream` does the work. The contract, checked by
`antiphon.testing.check_engine`:
  - `prepare` refuses by name what the engine cannot do; it makes no token and takes no place;
  - one Started first, with the first token and not before (of a request that makes none, when its first
    choice is complete); then TextDelta and Finished of the choices in any interleaving, exactly one
    Finished for each choice and nothing of that choice after it, Drafted between them; Usage last, once;
  - an error is raised, as one of `antiphon.errors`; whatever fails before Started has made no token;
  - a request that was prepared before the engine restarted is refused with EngineUnavailable: prepare again;
  - leaving the context ends the work at once, wherever it stands; no retry inside.

`TokenEngine`: what local engines share, below the renderer. It knows no text, no template, no stop string.
The contract, checked by `antiphon.testing.check_token_engine`:
  - `generate` runs ONE sequence: one SequenceStarted when it is admitted to the batch (before that it is
    queued: if the engine goes away then, EngineUnavailable; after that, EngineDied), then PromptScores when
    asked for, then Steps, then one SequenceFinished;
  - a sequence that cannot be queued is refused with EngineBusy or Overloaded; siblings of one that is
    there never are;
  - closing the generator ends that sequence and no other, also while queued and in prefill;
  - sequences of one `group` have equal segments: the later wait for the first one's prefill and share it;
    each may be closed alone, the first included;
  - log-probabilities are of the model's raw distribution, before temperature;
  - the last step's token (an end-of-generation or stop token) is part of Steps and of the counts; none comes
    before `min_tokens`, forced by a constraint or not: where nothing else may, there is an InvalidValue.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from antiphon.domain.context import Context
from antiphon.domain.embedding import EmbeddingFacts, EmbeddingRequest, Embeddings, EmbedRequest, Vectors
from antiphon.domain.engine_load import Load
from antiphon.domain.events import Event
from antiphon.domain.identity import LOCAL_ANONYMOUS, Actor
from antiphon.domain.profile import Profile, TokenizerInfo
from antiphon.domain.request import Constraint, Conversation, GenerationRequest, Prompt
from antiphon.domain.sampling import Sampling, SamplingOptions


class EngineState(StrEnum):
    """The state of an engine. Only READY serves requests."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    """Given up: it died too often, or cannot load; needs an operator."""


@dataclass(frozen=True, slots=True)
class RequestSize:
    """How many tokens one request will take."""

    prompt_tokens: int
    """Of all prompts, each counted once."""
    output_tokens: int
    """The most that all choices together can make."""


class PreparedRequest(Protocol):
    """A generation request that is ready for one engine."""

    @property
    def size(self) -> RequestSize:
        """Known before the engine computes anything."""

    def stream(self, context: Context) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """Entering is cheap; the work runs as the iterator is read and ends when the context is left."""


class PreparedEmbedding(Protocol):
    """A request for vectors that is ready for one engine."""

    @property
    def size(self) -> RequestSize:
        """Known before the engine computes anything; the output is 0."""

    async def embed(self, context: Context) -> Embeddings:
        """All vectors; cancelling ends the work. `context.progress.embedded` counts what was computed."""


class Engine(Protocol):
    """Turns a generation request into events."""

    async def prepare(self, request: GenerationRequest, context: Context) -> PreparedRequest:
        """Prepares the request for this engine. Raises a RequestError that names what the engine cannot do,
        EngineUnavailable, or DeadlineExceeded."""

    async def profile(self) -> Profile:
        """What the model accepts and produces. Raises EngineUnavailable while it is not known."""

    def state(self) -> EngineState:
        """The engine's state now, known without asking it."""

    async def aclose(self) -> None:
        """Ends all work and frees what the engine holds."""


@runtime_checkable
class TokenizerEngine(Protocol):
    """An engine that can show its token ids; /tokenize and /detokenize use it."""

    async def encode(self, prompt: Prompt, actor: Actor = LOCAL_ANONYMOUS) -> tuple[int, ...]:
        """The token ids that generating from this prompt would start with; `actor` is the caller."""

    async def apply(self, conversation: Conversation, actor: Actor = LOCAL_ANONYMOUS) -> str:
        """Renders a conversation by the chat template."""

    async def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids, without the space that the tokenizer's prefix added."""

    async def spell(self, tokens: Sequence[int]) -> tuple[bytes, ...]:
        """The bytes that each token adds to a text, perhaps part of a character; for a control token its
        name."""

    async def describe_tokenizer(self) -> TokenizerInfo:
        """Describes the tokenizer, its special tokens and its chat template."""


@runtime_checkable
class TextEmbeddingEngine(Protocol):
    """An engine that makes vectors of texts. A model either generates or embeds, and refuses the other."""

    async def prepare_embedding(self, request: EmbeddingRequest, context: Context) -> PreparedEmbedding:
        """Prepares the request for this engine. Raises as `Engine.prepare` does."""


@runtime_checkable
class ObservableEngine(Protocol):
    """An engine that reports its load; /metrics shows it."""

    async def observe(self) -> Load:
        """The load now, and the totals so far. Raises EngineUnavailable while the engine is away."""


# --- the token engine ---------------------------------------------------------------------------------------


class KVLayout(StrEnum):
    """How cells are given to sequences."""

    POOL = "pool"
    """One pool: prefixes are shared without copying, and long prompts run beside short ones."""
    STREAMS = "streams"
    """A part of its own for each sequence: faster with many short sequences; a shared prefix is copied."""


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """What to load and how: everything an engine host is told."""

    model: str
    """Path of the GGUF file."""
    context_length: int | None = None
    """Cells of one sequence; None is the model's own, capped by memory settings above the seam."""
    sequences: int = 16
    """Sequences that run at once."""
    threads: int | None = None
    """None chooses for the machine."""
    exact: bool = False
    """Bit-equal results alone and in a batch: flash attention off, one KV stream for each sequence."""
    kv_type: str = "f16"
    """`f16` or `f32`."""
    library: str | None = None
    """Explicit path of the engine library; None searches the designed order."""
    prefill_chunk: int = 512
    """Prompt tokens that one step may compute, all sequences together."""
    layout: KVLayout = KVLayout.POOL
    """How the KV cache is laid out; `exact` implies STREAMS."""
    cells: int | None = None
    """Cells of the pool; None: `context_length` a sequence. With fewer, some wait or are computed again."""
    step_latency: float = 0.1
    """Seconds of one step that prompts may take while other sequences wait for their next token."""
    queue: int = 512
    """Sequences that may wait; more are refused with EngineBusy."""
    queue_per_actor: int = 256
    """Of these, sequences of one actor; more are refused with Overloaded."""
    keep_prefixes: bool = True
    """Whether computed prefixes stay in free cells for later requests."""
    quantum: int = 4
    """Steps that the sequences of one adapter get at least before those of another have their turn."""
    adapter_memory: int = 1 << 30
    """Bytes of adapters that stay in memory; others are read again when their turn comes."""
    weights_in_memory: bool = False
    """Whether weights are copied, to be read faster; else they are mapped from the file, and shared."""
    check_tensors: bool = False
    """Whether the library reads and checks every weight while loading."""


@dataclass(frozen=True, slots=True)
class TokenSegment:
    """A piece of the prompt as token ids."""

    tokens: tuple[int, ...]


Segment = TokenSegment


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text to tokenize. Only where `control` is set may the text of a control token become that token."""

    text: str
    control: bool = False


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """One sequence."""

    segments: tuple[Segment, ...]
    max_tokens: int
    """At least 1; 0 only scores the prompt, and needs `prompt_logprobs`."""
    sampling: Sampling = field(default_factory=Sampling)
    stop_token_ids: tuple[int, ...] = ()
    """End the sequence like the model's own end-of-generation tokens."""
    logprobs: int | None = None
    """None: none. 0: of the chosen tokens. k up to the vocabulary: and the k likeliest alternatives."""
    group: str | None = None
    """Siblings with equal segments carry the same group."""
    choice: int = 0
    """Index within the group; enters the hash of every random draw."""
    prompt_logprobs: int | None = None
    """None: none. k: PromptScores come, with the k likeliest tokens; the prompt is then computed anew."""
    cache_salt: str = ""
    """Sequences share computed prefixes only under an equal salt."""
    adapter: str | None = None
    """Digest of the adapter to generate with; None is the base model. Never shares a prefix with another."""
    constraint: Constraint | None = None
    """What the completion must look like. Fails closed: where it cannot be followed, there is an error."""
    actor: str = ""
    """Who asks, opaque: actors take turns in the queue."""
    priority: int = 0
    """Lower is admitted earlier, among what waits of one actor; never before another actor's turn."""
    logprob_token_ids: tuple[int, ...] = ()
    """With `logprobs`: the alternatives are these tokens in this order, whatever k is."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What one sequence took."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class SequenceStarted:
    """Admitted to the batch; no token yet."""

    prompt_tokens: int
    cached_tokens: int = 0
    """Prompt tokens whose KV was shared."""
    queued: float = 0.0
    """Seconds between request and admission."""


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Log-probabilities of consecutive prompt tokens, each given all before it. Several come for one prompt,
    in order, before its first Steps; together they cover it from its second token to its last."""

    start: int
    """Place in the prompt of the first of them; at least 1."""
    logprobs: bytes
    """float32, little-endian, one for each token."""
    alternative_ids: bytes = b""
    """int32, little-endian: as many for each token as were asked for, best first."""
    alternative_logprobs: bytes = b""
    """float32, little-endian, of these."""
    ranks: bytes = b""
    """int32, little-endian, one for each token: 1 and as many as are likelier at its place."""


@dataclass(frozen=True, slots=True)
class Steps:
    """One or several new tokens, in order."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    """One for each token when asked for, else empty."""
    alternatives: tuple[tuple[tuple[int, float], ...], ...] = ()
    """For each token the likeliest (id, log-probability), best first, or the wanted ones; else empty."""


class StopCause(StrEnum):
    """Why a sequence ended."""

    END = "end"
    """An end-of-generation token of the model."""
    STOP_TOKEN = "stop_token"
    LENGTH = "length"
    """max_tokens or the context's end."""


@dataclass(frozen=True, slots=True)
class SequenceFinished:
    """The sequence is complete and its cells are free."""

    cause: StopCause
    counts: Counts


TokenEvent = SequenceStarted | PromptScores | Steps | SequenceFinished


class TokenKind(StrEnum):
    """What a token id stands for in text."""

    NORMAL = "normal"
    BYTE = "byte"
    CONTROL = "control"
    """Structure, no text of its own: shows as nothing."""
    UNKNOWN = "unknown"
    UNUSED = "unused"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Bytes and kind of each id, fetched once, and the ids with a meaning."""

    pieces: tuple[bytes, ...]
    """What each id adds to the text, by id; empty for control tokens."""
    kinds: tuple[TokenKind, ...]
    names: dict[int, str]
    """Text of each control token, by id, as templates write it."""
    end_ids: tuple[int, ...]
    """End-of-generation tokens."""
    bos_id: int | None = None
    eos_id: int | None = None
    add_bos: bool = False
    """Whether the tokenizer wants a BOS before a raw prompt."""
    space_prefix: bool = False
    """Whether tokenizing text puts a space before it that detokenizing takes away."""
    embedding_frame: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    """What stands before and after a whole text whose vector is made."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What is loaded, by what, and how busy it is."""

    architecture: str
    parameters: int
    size: int
    quantization: str
    trained_context: int
    context_length: int
    """Cells that one sequence may fill."""
    vocabulary: int
    sequences: int
    threads: int
    exact: bool
    library: str
    """Name and version of the library, for people."""
    library_path: str
    cpu_features: tuple[str, ...]
    """CPU features that the library was built to use and the machine has."""
    chat_template: str | None = None
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    """Sampling defaults that the weights carry."""
    load: Load = field(default_factory=Load)
    embedding: EmbeddingFacts | None = None
    """Of a model that makes vectors, and then no tokens; None: it makes tokens and no vectors."""


class TokenEngine(Protocol):
    """Token ids and sampling in, tokens with log-probabilities out."""

    async def load(self, spec: LoadSpec) -> EngineInfo:
        """Loads the weights; once. Raises a StartupError."""

    def generate(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        """Runs one sequence; closing the generator ends it."""

    async def tokenize(self, pieces: Sequence[TextPiece], add_bos: bool) -> tuple[int, ...]:
        """Token ids of the pieces joined to one text. Runs beside decoding, never behind it."""

    async def vocabulary(self) -> Vocabulary:
        """The table of token ids."""

    async def info(self) -> EngineInfo:
        """Facts and live load."""

    async def aclose(self) -> None:
        """Ends every sequence and frees the model."""


@runtime_checkable
class AdapterEngine(Protocol):
    """A token engine that computes with adapters, each known by the digest of its content."""

    async def add_adapter(self, digest: str, path: str) -> None:
        """Makes the GGUF adapter at `path` usable, if it is not. InvalidValue: the library refuses it."""

    async def remove_adapter(self, digest: str) -> None:
        """Refuses the adapter to new sequences, and forgets it when the last sequence with it ends. An
        unknown digest is no error."""


@runtime_checkable
class ConstraintEngine(Protocol):
    """A token engine that takes constraints; others refuse such requests with UnsupportedParameter."""

    async def check(self, constraint: Constraint) -> None:
        """Raises the RequestError that says why a constraint cannot be kept. It is called before
        admission."""


@runtime_checkable
class EmbeddingEngine(Protocol):
    """An engine that makes vectors where `EngineInfo.embedding` is set; see
    `antiphon.testing.check_embedding_engine`."""

    def embed(self, request: EmbedRequest) -> AsyncGenerator[SequenceStarted | Vectors, None]:
        """One SequenceStarted with the first text, then Vectors. It behaves as `generate`; actors take turns
        text by text."""
