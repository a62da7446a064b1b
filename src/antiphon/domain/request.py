"""Requests of callers as frozen values, independent of dialects: generations, embeddings and rankings of
documents.

ARCHITECTURE.md ("Semantics") defines the order of sampling. Masks (allowed tokens, minimum length), logit
bias and penalties come first. Temperature comes next, then min-p, top-k, top-p and typical-p, or Mirostat
instead of these four. Temperature 0 is greedy over the penalised logits. Each draw depends on hash(seed,
choice, position) alone.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from enum import StrEnum

from antiphon.domain.events import UsageSource
from antiphon.domain.ledger import NOTHING
from antiphon.domain.memory import MemoryStrategy
from antiphon.domain.messages import Content, Message, Role, TextContent, Tools
from antiphon.domain.retrieval import Retrieval
from antiphon.domain.values import Struct, Value, field

SPEECH = "audio"
"""The modality of spoken answers."""

FLOAT_BYTES = 4
"""The size in bytes of one number of a vector, a little-endian float32."""


class Mirostat(Struct, frozen=True):
    """Sampling that steers the surprise of each token towards a target (Basu and others, 2020)."""

    target: float = 1.5
    """The target of the surprise in bits (the paper's tau)."""
    rate: float = 0.1
    """The learning rate of the threshold (the paper's eta)."""
    version: int = 2
    """2 cuts by surprise; 1 estimates a top-k from Zipf's law."""


class Sampling(Struct, frozen=True):
    """The sampling values that an engine gets. Every option has a value."""

    temperature: float = 1.0
    """0 is greedy; at most 2 by the dialects' ranges."""
    top_p: float = 1.0
    """Only the smallest set of tokens whose probability reaches this can be drawn; 1 allows all tokens."""
    top_k: int = 0
    """Only the k likeliest tokens can be drawn; 0 allows all tokens."""
    min_p: float = 0.0
    """Only tokens at least this fraction as likely as the likeliest can be drawn; 0 allows all tokens."""
    seed: int = 0
    """Any 64-bit integer; equal seeds give equal draws."""
    typical_p: float = 1.0
    """Only the most typical tokens whose probability reaches this can be drawn (Meister and others, 2022); 1
    allows all tokens."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output; 1 does nothing."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of each token in the output."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit for each time it is in the output."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Added to the logits of these tokens."""
    mirostat: Mirostat | None = None
    """Replaces min-p, top-k, top-p and typical-p."""
    min_tokens: int = 0
    """Tokens before which no end-of-generation and no stop token may be drawn."""
    ignore_eos: bool = False
    """The model's end tokens are drawn like any other and do not end the sequence."""
    allowed_token_ids: tuple[int, ...] | None = None
    """Only these tokens can be drawn; None allows all."""
    banned: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens that the output never contains. If the output ends with all tokens of a sequence
    except its last one, the last one cannot be drawn. The prompt is not part of the output."""


class SamplingOptions(Value, frozen=True):
    """Sampling options of the caller or of a model's profile. None means that the option is not set."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] | None = None
    mirostat: Mirostat | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    allowed_token_ids: tuple[int, ...] | None = None

    def build_sampling(self, defaults: "SamplingOptions", seed: int) -> Sampling:
        """Returns the sampling values of a request. For an option that is not set here, takes the value of
        `defaults`, which is the model's profile. If it has none, takes the default of `Sampling`. `seed`: the
        seed for a request without one."""
        options = self.with_defaults(defaults)
        set_options = {
            name: value for name in self.__struct_fields__ if (value := getattr(options, name)) is not None
        }
        return Sampling(**({"seed": seed} | set_options))

    def with_defaults(self, defaults: "SamplingOptions") -> "SamplingOptions":
        """Returns these options, with the values of `defaults` for those that are not set."""
        return SamplingOptions(
            *(
                own_value if (own_value := getattr(self, name)) is not None else getattr(defaults, name)
                for name in self.__struct_fields__
            )
        )


NO_SAMPLING = SamplingOptions()


class ConstraintKind(StrEnum):
    """The language of a constraint."""

    JSON_OBJECT = "json_object"
    """Any JSON object. This kind has no source."""
    JSON_SCHEMA = "json_schema"
    """JSON that a schema accepts; the source is the schema as JSON."""
    REGEX = "regex"
    """A text that a regular expression matches completely."""
    CHOICE = "choice"
    """One of several texts; the source is a JSON list of them."""
    LARK = "lark"
    """A text of a context-free grammar in Lark's notation."""
    GBNF = "gbnf"
    """A text of a context-free grammar in llama.cpp's notation."""
    CALLS = "calls"
    """Calls of functions, perhaps in free text; `constraints.grammar_types` reads the source."""


class SchemaDeclaration(Struct, frozen=True):
    """A JSON Schema as the caller declared it, for vendors, which enforce it themselves."""

    source: str
    """The schema as JSON, as the caller wrote it."""
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Constraint:
    """The form that generated text must have. A constraint that cannot be enforced is refused."""

    kind: ConstraintKind
    source: str = ""
    whitespace: str | None = None
    """For JSON only: a regular expression for the optional whitespace wherever JSON allows it. None allows
    one space after each comma and colon, and no other whitespace."""
    declared: SchemaDeclaration | None = dataclasses.field(default=None, compare=False)
    """For JSON_SCHEMA: the schema before keywords were left out, for vendors. Token engines do not get it."""
    field: str = dataclasses.field(default="response_format", compare=False)
    """The caller's name of the field, for errors."""
    prelude: str = ""
    """The text before the constrained text, which is a model's reasoning, in the form of
    `constraints.grammar.Prelude`. The renderer makes it, never a caller. Empty means no such text."""


class Overflow(StrEnum):
    """What to do with a request whose prompt and `max_tokens` together exceed the context length."""

    ERROR = "error"
    """Refuse the request."""
    SHORTEN = "shorten"
    """Lower `max_tokens` to the rest of the context. A prompt that leaves no room is still refused."""


class Truncation(StrEnum):
    """The end at which a prompt is cut."""

    LEFT = "left"
    """Keep the last tokens."""
    RIGHT = "right"
    """Keep the first tokens."""


class ReasoningFieldNames(Struct, frozen=True):
    """A dialect's names of the reasoning fields, for errors."""

    effort: str = "reasoning_effort"
    """The field of the effort."""
    budget: str = "thinking_token_budget"
    """The field of the budget."""
    off: str = "none"
    on: str = "medium"
    min_budget: int = 0
    """The smallest budget that the dialect allows."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reasoning:
    """The reasoning that a model does before it answers."""

    effort: str | None = None
    """The requested effort, such as `none`, `minimal`, `low`, `medium` or `high`. The chat template gets it.
    With None the model decides."""
    budget: int | None = None
    """The most tokens of reasoning; after them the reasoning is ended. With None only `max_tokens` limits the
    reasoning."""
    shown: bool = True
    """Whether the answer contains the reasoning. The tokens of the reasoning count also if it does not."""
    is_required: bool = False
    """Whether a model without reasoning refuses the request."""
    field_names: ReasoningFieldNames = dataclasses.field(default=ReasoningFieldNames(), compare=False)


class MessagesBody(Struct, frozen=True):
    """A body of Anthropic's Messages API, whose conversation Anthropic's own models get unchanged: its cache
    finds only equal prompts, and its signatures belong to exact blocks. Other engines read the conversation
    that was made of it."""

    body: bytes
    messages: tuple[Message, ...]
    """The messages that were made of it. If a step of the pipeline replaces them, the body is out of date."""
    betas: str = ""
    """The caller's header `anthropic-beta`."""
    has_foreign_reasoning: bool = False
    """Whether it has reasoning without a signature of Anthropic's, which Anthropic refuses."""
    names: tuple[str, ...] = ()
    """The fields, blocks and tools in it that only Anthropic uses. Other engines ignore and name them."""
    hosted_tools: tuple[str, ...] = ()
    """Those of `names` that are tools which Anthropic runs."""
    own_tools: tuple[str, ...] = ()
    """The fields of tools whose schemas only Anthropic knows, with their types. Other engines refuse them."""


class Conversation(Struct, frozen=True):
    """A prompt of messages, rendered by the model's chat template."""

    messages: tuple[Message, ...]
    generation_prompt: bool = True
    """Whether the prompt ends with the assistant's header."""
    tools: Tools | None = None
    """The tools that the model sees and may call."""
    continues: bool = False
    """Whether the model continues the last message, which stays open. Cannot be combined with
    `generation_prompt`."""
    template: str | None = None
    """The request's own template, instead of the model's."""
    template_values: Mapping[str, object] = field(default_factory=dict)
    """Further values for the template."""
    documents: tuple[Mapping[str, object], ...] | None = None
    """Texts to answer from, for a template that reads documents."""
    add_special: bool | None = None
    """Whether the prompt begins with the model's begin token; a template that writes the token itself is not
    given a second one. None follows the model's rule."""
    reasoning: Reasoning = field(default_factory=Reasoning)
    original: MessagesBody | None = None
    """The body from which the conversation was made, if it came by the Messages API."""


class RawPrompt(Struct, frozen=True):
    """A prompt that no template changes: a text, which may contain control tokens, token ids, or texts with
    images between them."""

    text: str | None = None
    tokens: tuple[int, ...] | None = None
    add_special: bool = True
    """Whether a text gets the model's begin token."""
    content: tuple[Content, ...] = ()
    """Texts and images in their order, instead of `text` and `tokens`; empty without an image."""


Prompt = Conversation | RawPrompt


def build_user_message(prompt: RawPrompt) -> Conversation:
    """Returns a prompt with images as a message of the user, for a model that sees images only there."""
    text = "".join(part.text for part in prompt.content if isinstance(part, TextContent))
    message = Message(Role.USER, text, content=prompt.content)
    return Conversation((message,), reasoning=Reasoning(shown=False))


class Output(Value, frozen=True):
    """The form of the result, and when it ends."""

    max_tokens: int | None = None
    """The most completion tokens of each choice. None means the rest of the context. 0 needs `echo`."""
    choices: int = 1
    """Completions of each prompt (`n`)."""
    stop: tuple[str, ...] = ()
    """Texts that end a choice."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a choice, besides the model's own."""
    best_of: int | None = None
    """The number of candidates for each prompt. The `choices` candidates with the highest mean
    log-probability are returned. None generates only `choices`."""
    echo: bool = False
    """Whether a choice's text begins with the prompt. A conversation must end with a message of the
    assistant, and the text begins with that message."""
    constraint: Constraint | None = None
    """The form of each choice; enforced, or refused before a token is made."""
    logprobs: int | None = None
    """None: no log-probabilities. 0: those of the generated tokens, and with `echo` also the prompt's. k:
    also the k likeliest alternatives. -1: the whole vocabulary."""
    logprob_token_ids: tuple[int, ...] = ()
    """The tokens that replace the likeliest alternatives at each generated position; needs `logprobs`."""
    prompt_logprobs: int | None = None
    """As `logprobs` for the prompt's tokens, with or without `echo`."""
    bad_words: tuple[str, ...] = ()
    """Texts that no choice may contain, compared by their tokens."""
    show_special: bool = False
    """Whether control tokens show their names."""
    token_ids: bool = False
    """Whether the answer contains the token ids of prompt and completion."""
    names_by_id: bool = False
    """Whether log-probabilities name tokens by id. This changes only the answer's form, but needs the ids."""
    running_usage: bool = False
    """Whether each chunk of a stream contains the usage so far, which needs the tokens of each delta."""
    truncate_prompt: int | None = None
    """The number of prompt tokens to keep. -1 keeps as many as fit beside `max_tokens`, or beside one token.
    None keeps all."""
    truncation: Truncation = Truncation.LEFT
    """The end that is cut."""
    include_stop: bool = False
    """Whether the text that ended a choice stays in it."""
    suffix: str = ""
    """The text after the completion: the model fills the middle. Only for a raw prompt."""
    overflow: Overflow = Overflow.ERROR
    is_default_max_tokens: bool = False
    """Whether `max_tokens` is the dialect's default, because the caller did not set it."""


class SpeechOptions(Value, frozen=True):
    """The form of a spoken answer."""

    format: str
    """The format of the recording: `wav`, `mp3`, `flac`, `opus`, `pcm16`."""
    voice: str
    """The name of a voice of the vendor."""
    is_custom: bool = False
    """Whether `voice` is the id of the caller's own voice at the vendor."""


class Prediction(Value, frozen=True):
    """What the answer probably repeats. It can make an answer faster, and never changes its text."""

    text: str
    tokens: tuple[int, ...] | None = None
    """Token ids of the model, instead of the text. Vendors do not take them."""
    field: str = "prediction"
    """The caller's name of the field."""


class VendorOptions(Value, frozen=True):
    """Options of vendors' models. Of these, a local engine takes only `prediction`. It refuses or ignores the
    others."""

    verbosity: str | None = None
    """The requested length of the answer: `low`, `medium`, `high`."""
    service_tier: str | None = None
    """The vendor's class of service: `flex`, `priority`."""
    prompt_cache_key: str | None = None
    """Requests with the same key have a common prompt prefix."""
    modalities: tuple[str, ...] = ()
    """The kinds of output that the caller wants: `text`, `audio`. Empty is the model's own."""
    audio: SpeechOptions | None = None
    """The form of a spoken answer; needs `audio` among the modalities."""
    prediction: Prediction | None = None
    extra_params: Mapping[str, object] = NOTHING
    """Fields that the caller adds to the vendor's request body, if the operator allows them."""
    extra_headers: Mapping[str, str] = NOTHING
    """Headers that the caller adds to the vendor's request, if the operator allows them."""

    @property
    def wants_speech(self) -> bool:
        """Whether the caller requests a spoken answer."""
        return SPEECH in self.modalities or self.audio is not None


NO_VENDOR_OPTIONS = VendorOptions()


class GenerationRequest(Value, frozen=True):
    """A request to generate text. Choice `i` of prompt `p` has the index `p * output.choices + i`."""

    model: str
    prompts: tuple[Prompt, ...]
    sampling: SamplingOptions = SamplingOptions()
    output: Output = Output()
    cache_salt: str = ""
    """Prompts share cached prefixes only under an equal salt, within the caller's project."""
    priority: int = 0
    """Lower is admitted earlier, among the requests of one actor."""
    vendor_options: VendorOptions = NO_VENDOR_OPTIONS
    memory: MemoryStrategy | None = None
    """The strategy that selects the messages for the model; None selects all."""
    retrieval: Retrieval | None = None
    """The search in a knowledge table whose results the model sees; None means no search."""
    timeout: float | None = None
    """The most seconds that the generation can take; None is only the server's own limit."""
    is_buffered: bool = False
    """Whether the caller gets the whole answer at once. Then an engine may produce all events together."""
    optional: frozenset[str] = frozenset()
    """The names, as errors have them, of the parameters that an engine may leave out if it lacks them."""


class Pooling(StrEnum):
    """How the rows of a text's tokens become one vector."""

    MEAN = "mean"
    CLS = "cls"
    """The first token's row."""
    LAST = "last"
    """The last token's row."""
    RANK = "rank"
    """For a reranker: one number for a query and a document, the logarithm of the odds that they match."""


class EmbeddingFacts(Struct, frozen=True):
    """The vectors that an embedding model makes."""

    dimensions: int
    """How many numbers a vector has; 1 for a reranker."""
    pooling: Pooling

    @property
    def ranks(self) -> bool:
        """Whether the model is a reranker, which scores documents and makes no vectors."""
        return self.pooling is Pooling.RANK


class EmbeddingRequest(Struct, frozen=True):
    """A request for embeddings."""

    model: str
    inputs: tuple[RawPrompt, ...]
    """Text, in which nothing is a control token, or token ids as they are."""
    dimensions: int | None = None
    """How many numbers each vector shall have; None means the model's own dimensions."""


class Embeddings(Struct, frozen=True):
    """The vectors of a request."""

    vectors: bytes
    """All vectors, one after the other, in the order of the inputs."""
    dimensions: int
    prompt_tokens: int
    """Tokens of all inputs, including the special tokens that the tokenizer adds."""
    source: UsageSource = UsageSource.ENGINE
    """Who counted them."""

    def __len__(self) -> int:
        """Number of vectors."""
        return len(self.vectors) // (self.dimensions * FLOAT_BYTES)

    def __iter__(self) -> Iterator[bytes]:
        """The vectors, one by one."""
        size = self.dimensions * FLOAT_BYTES
        return (self.vectors[index : index + size] for index in range(0, len(self.vectors), size))


class EmbedRequest(Struct, frozen=True):
    """A request to a token engine: compute the vectors of several texts, given as token ids."""

    texts: tuple[tuple[int, ...], ...]
    """The token ids of each text, special tokens included."""
    actor: str = ""
    """An opaque id; actors take turns."""


class Vectors(Struct, frozen=True):
    """Vectors of consecutive texts. An engine yields several `Vectors` for one request. Together they contain
    all texts, in order."""

    start: int
    """Index of the first text in the request."""
    values: bytes
    """The vectors, one after the other, as little-endian float32. Each vector has unit length."""


class RerankRequest(Struct, frozen=True):
    """A request to rank documents."""

    model: str
    query: str
    documents: tuple[str, ...]
    """In these texts and in the query, nothing is a control token."""
    tokens_per_document: int | None = None
    """The number of tokens of each document to keep, from its beginning; None keeps all."""


class Ranking(Struct, frozen=True):
    """The result of a request to rank documents."""

    scores: tuple[float, ...]
    """The score of each document, in the order of the documents. A local reranker gives a probability."""
    prompt_tokens: int
    """Tokens of all pairs of the query and a document, including the special tokens that the model adds."""
    source: UsageSource = UsageSource.ENGINE
    """Who counted the tokens."""

    def order(self) -> list[int]:
        """Returns the documents' indexes, best first. Equal scores keep the order of the documents."""
        return sorted(range(len(self.scores)), key=lambda index: -self.scores[index])
