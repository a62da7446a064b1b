"""The JSON types of OpenAI's requests, with ranges.

Requests are decoded by these types, and the OpenAPI document is built from them. `fields` lists the other
known fields, which are ignored or refused.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

# --- limits, each with its reason ---------------------------------------------------------------------------

MAX_CHOICES = 128
"""The most choices of one prompt. OpenAI has the same limit."""

MAX_SEQUENCES = 256
"""The most sequences of one request: prompts times choices. No engine runs as many at once, and they fit the
memory."""

MAX_MESSAGES = 4096
"""The most messages of one conversation. A context of 32,768 tokens with a word in each message has fewer."""

MAX_STOPS = 4
"""The most stop texts of one request. OpenAI has the same limit."""

MAX_STOP_LENGTH = 1024
"""The most characters of one stop text. The detokenizer delays as many characters of every stream."""

MAX_STOP_TOKENS = 128
"""The most stop token ids of one request. Every step of every sequence is compared with them."""

MAX_LOGPROB_TOKENS = 128
"""The most tokens whose log-probabilities a caller can request. vLLM has the same limit."""

MAX_CANDIDATES = 20
"""The largest value of `best_of`. OpenAI has the same limit."""

MAX_BAD_WORDS = 128
"""The most forbidden words of one request. Each word is tokenized twice, and compared at every step."""

MAX_BIASES = 1024
"""The most tokens of one logit bias. Each token costs time at every step of every sequence."""

MAX_SALT = 256
"""The most characters of a cache salt."""

LARGEST_BIAS = 100.0
"""The largest logit bias, positive or negative. OpenAI has the same limit."""

MAX_IDS = 1 << 20
"""The most items of one list of token ids. The longest contexts have as many, and a longer list would delay
other requests."""

MAX_NAME = 256
"""The most characters of a model's or speaker's name."""

MAX_TOOLS = 128
"""The most tools of one conversation. OpenAI has the same limit."""

FUNCTION_NAME = "^[a-zA-Z0-9_-]{1,64}$"

MAX_CALLS = 128
"""The most calls of one message."""

MAX_BLOCKS = 1024
"""The most blocks of reasoning of one message."""

MAX_TEMPLATE = 100_000
"""The most characters of a request's chat template. The longest template of the known models has 30,000."""

MAX_VALUES = 64
"""The most values that a request can pass to a chat template."""

MAX_DOCUMENTS = 1024
"""The most documents of one conversation. Most contexts with a paragraph in each document have fewer."""

LONGEST_USER = 512
"""The most characters of an end user's name. Any email address is shorter, and the name is stored with each
request."""

LONGEST_CACHE_KEY = 1024
"""The most characters of a prompt cache key. Routes are chosen by it, and vendors accept fewer."""

MOST_TAGS, LONGEST_TAG, LONGEST_TEXT = 16, 64, 512
"""The most pairs of `metadata`, and the most characters of a key and of a value. The bounds are OpenAI's."""

MOST_EXTRA_PARAMS = 64
"""The most fields that a caller adds to a vendor's body."""

MOST_EXTRA_HEADERS, LONGEST_HEADER = 16, 1024
"""The most headers that a caller adds to a vendor's request, and the most characters of each value. All of
them together fit the 32 KB that common servers allow."""

INT32_MAX = 2**31 - 1

# --- requests -----------------------------------------------------------------------------------------------

PositiveInt = Annotated[int, Meta(ge=1, le=INT32_MAX)]
TokenId = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
FunctionName = Annotated[str, Meta(extra_json_schema={"pattern": FUNCTION_NAME})]
StopText = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_LENGTH)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Repetition = Annotated[float, Meta(gt=0, le=2)]
MirostatTarget = Annotated[float, Meta(gt=0, le=100)]
MirostatRate = Annotated[float, Meta(ge=0, le=1)]
NonNegativeInt = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
Bias = Annotated[dict[str, float], Meta(max_length=MAX_BIASES)]
AllowedTokenIds = Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_IDS)]
Salt = Annotated[str, Meta(min_length=1, max_length=MAX_SALT)]
Alternatives = Annotated[int, Meta(ge=-1, le=INT32_MAX)]
LogprobTokenIds = Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_LOGPROB_TOKENS)]
BestOf = Annotated[int, Meta(ge=0, le=MAX_CANDIDATES)]
TruncatedLength = Annotated[int, Meta(ge=-1, le=INT32_MAX)]
TopK = Annotated[int, Meta(ge=-1, le=INT32_MAX)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Choices = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
Stop = StopText | Annotated[list[StopText], Meta(max_length=MAX_STOPS)]
TemplateSource = Annotated[str, Meta(min_length=1, max_length=MAX_TEMPLATE)]
TemplateValues = Annotated[dict[str, Any], Meta(max_length=MAX_VALUES)]
Documents = Annotated[list[dict[str, Any]], Meta(max_length=MAX_DOCUMENTS)]
BadWords = Annotated[list[StopText], Meta(max_length=MAX_BAD_WORDS)]
Priority = Annotated[int, Meta(ge=-(2**31), le=INT32_MAX)]
CacheKey = Annotated[str, Meta(max_length=LONGEST_CACHE_KEY)]
EndUser = Annotated[str, Meta(max_length=LONGEST_USER)]
Tags = Annotated[dict[str, Annotated[str, Meta(max_length=LONGEST_TEXT)]], Meta(max_length=MOST_TAGS)]
Modalities = Annotated[list[Literal["text", "audio"]], Meta(min_length=1, max_length=2)]
StopTokens = Annotated[list[TokenId], Meta(max_length=MAX_STOP_TOKENS)]
Seconds = float | str
ExtraParams = Annotated[dict[str, Any], Meta(max_length=MOST_EXTRA_PARAMS)]
ExtraHeaders = Annotated[
    dict[str, Annotated[str, Meta(max_length=LONGEST_HEADER)]], Meta(max_length=MOST_EXTRA_HEADERS)
]


class BodyShape(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request's body, or an object in it. `BodyDecoder` needs both options, which subclasses inherit."""


class CacheControlShape(BodyShape, frozen=True):
    """A mark: the vendor keeps the prompt up to it for later requests."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    """How long the vendor stores the prompt."""


class TextPart(BodyShape, frozen=True, tag_field="type", tag="text"):
    """A part of a message's content."""

    text: str
    cache_control: CacheControlShape | None = None


class RefusalPart(BodyShape, frozen=True, tag_field="type", tag="refusal"):
    """A part of an assistant's content that says why it does not answer."""

    refusal: str


class ImageUrlShape(BodyShape, frozen=True):
    """An image as a data: URL, or as an address that only a vendor opens."""

    url: str
    detail: Literal["auto", "low", "high", "original"] | None = None


class ImageUrlPart(BodyShape, frozen=True, tag_field="type", tag="image_url"):
    """A part of a content that is an image."""

    image_url: ImageUrlShape


class InputAudioShape(BodyShape, frozen=True):
    """A recording in base64."""

    data: str
    format: Literal["wav", "mp3"]


class InputAudioPart(BodyShape, frozen=True, tag_field="type", tag="input_audio"):
    """A part of a content that is a recording."""

    input_audio: InputAudioShape


ContentPart = TextPart | RefusalPart | ImageUrlPart | InputAudioPart


class CalledFunction(BodyShape, frozen=True):
    """The function that an assistant called, with the arguments as the model wrote them."""

    name: FunctionName
    arguments: str | dict[str, Any] = ""


class MessageToolCall(BodyShape, frozen=True):
    """One call of an earlier turn."""

    id: Name
    function: CalledFunction
    type: Literal["function"] | UnsetType = UNSET
    index: int | None = None
    extra_content: dict[str, Any] | None = None
    """Google's own data about the call: its thought signature."""


class SpeechReference(BodyShape, frozen=True):
    """A spoken answer that the vendor keeps."""

    id: Name


class ChatMessage(BodyShape, frozen=True):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[ContentPart], Meta(min_length=1)] | None = None
    """The text of the turn. It can be missing in an assistant's turn."""
    refusal: str | None = None
    """The assistant's refusal, which is its text if the content is empty."""
    name: Name | None = None
    tool_calls: Annotated[list[MessageToolCall], Meta(max_length=MAX_CALLS)] | None = None
    tool_call_id: Name | None = None
    reasoning_content: str | None = None
    """The reasoning of the assistant before its content."""
    reasoning: str | None = None
    """The same as `reasoning_content`, under its newer name."""
    thinking_blocks: Annotated[list[dict[str, Any]], Meta(max_length=MAX_BLOCKS)] | None = None
    """The vendor's own blocks of reasoning, as the answer had them."""
    audio: SpeechReference | None = None
    """The assistant's spoken answer."""


class Function(BodyShape, frozen=True):
    """A function that the model may call."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """The JSON Schema of the function's arguments. A function without a schema takes no arguments."""
    strict: bool | None = None


class ToolShape(BodyShape, frozen=True):
    """A tool."""

    type: Literal["function"]
    function: Function
    cache_control: CacheControlShape | None = None


class NamedFunction(BodyShape, frozen=True):
    """A function by its name."""

    name: Name


class NamedTool(BodyShape, frozen=True):
    """A tool by its name."""

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(BodyShape, frozen=True):
    """Some of the tools, and whether the model must call one of them."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Meta(min_length=1, max_length=MAX_TOOLS)]


class ToolChoiceShape(BodyShape, frozen=True):
    """One tool that the model must call, or some tools that it can call."""

    type: Literal["function", "allowed_tools"]
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


class StreamOptions(BodyShape, frozen=True):
    """How a stream ends."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class NamedSchema(BodyShape, frozen=True):
    """A JSON Schema for an answer. The answer always satisfies it, whatever the value of `strict` is."""

    schema: dict[str, Any] | bool
    name: Name | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(BodyShape, frozen=True):
    """The form of an answer: text, any JSON object, or JSON that satisfies a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    schema: dict[str, Any] | None = None
    """With json_object: the schema of the object."""


class StructuredOutputs(BodyShape, frozen=True):
    """One constraint, as vLLM writes it."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    whitespace_pattern: str | None = None


class VoiceShape(BodyShape, frozen=True):
    """A voice of one's own at the vendor."""

    id: Name


class SpeechShape(BodyShape, frozen=True):
    """The form of a spoken answer."""

    format: Literal["wav", "aac", "mp3", "flac", "opus", "pcm16"]
    voice: Name | VoiceShape


class PredictedPart(BodyShape, frozen=True):
    """A part of a predicted text."""

    text: str
    type: Literal["text"] | UnsetType = UNSET


class PredictionShape(BodyShape, frozen=True):
    """A text that the answer probably repeats, as when a file is edited."""

    type: Literal["content"]
    content: str | Annotated[list[PredictedPart], Meta(min_length=1)]


class CommonRequest(BodyShape, frozen=True, kw_only=True):
    """The fields that chat and text completions share."""

    model: Name
    max_tokens: PositiveInt | None = None
    temperature: Temperature | None = None
    top_p: Fraction | None = None
    top_k: TopK | None = None
    min_p: Fraction | None = None
    typical_p: Fraction | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Repetition | None = None
    logit_bias: Bias | None = None
    mirostat_target: MirostatTarget | None = None
    mirostat_lr: MirostatRate | None = None
    min_tokens: NonNegativeInt | None = None
    ignore_eos: bool | None = None
    allowed_token_ids: AllowedTokenIds | None = None
    seed: Seed | None = None
    n: Choices | None = None
    stop: Stop | None = None
    stop_token_ids: StopTokens | None = None
    bad_words: BadWords | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    best_of: BestOf | None = None
    prompt_logprobs: Alternatives | None = None
    logprob_token_ids: LogprobTokenIds | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    truncate_prompt_tokens: TruncatedLength | None = None
    truncation_side: Literal["left", "right"] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: Salt | None = None
    priority: Priority | None = None
    response_format: ResponseFormat | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    structured_outputs: StructuredOutputs | None = None
    user: EndUser | None = None
    metadata: Tags | None = None


class MemoryParameters(BodyShape, frozen=True, kw_only=True):
    """The parameters of a memory strategy."""

    k: PositiveInt | None = None
    """With last_k: the most messages to keep."""
    tokens: PositiveInt | None = None
    """With last_tokens, summary and relevant: the most tokens of the prompt."""
    model: Name | None = None
    """With summary: the model that writes the summary. With relevant: the embedding model."""


class MemoryShape(MemoryParameters, frozen=True, kw_only=True):
    """Which part of the conversation the model sees."""

    name: Literal["last_k", "last_tokens", "summary", "relevant"] | None = None
    """The strategy; if it is missing, the parameters determine it."""
    params: MemoryParameters | None = None
    """The parameters, in their other layout."""


MOST_CHUNKS = 1024
"""The most chunks of a search. JamAI has the same limit."""


class RagParams(BodyShape, frozen=True, kw_only=True):
    """How a chat is answered from a knowledge table."""

    table_id: str = ""
    reranking_model: Name | None = None
    search_query: str = ""
    """The text to search for. If it is empty, the model writes it."""
    k: Annotated[int, Meta(ge=1, le=MOST_CHUNKS)] = 3
    """The number of chunks."""
    rerank: bool = True
    """Whether `reranking_model` is used. It is an older switch, which JamAI's clients still send."""
    concat_reranker_input: bool = False
    """Whether the reranker reads the title before the text."""
    inline_citations: bool = True


class ChatCompletionRequest(CommonRequest, frozen=True, kw_only=True):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: PositiveInt | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: TemplateSource | None = None
    chat_template_kwargs: TemplateValues | None = None
    documents: Documents | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None
    tools: Annotated[list[ToolShape], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoiceShape | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    reasoning_effort: Effort | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: NonNegativeInt | None = None
    safety_identifier: EndUser | None = None
    prompt_cache_key: CacheKey | None = None
    service_tier: Name | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    prediction: PredictionShape | None = None
    modalities: Modalities | None = None
    audio: SpeechShape | None = None
    memory_strategy: MemoryShape | None = None
    rag_params: RagParams | None = None


class CompletionRequest(CommonRequest, frozen=True, kw_only=True):
    """Body of POST /v1/completions."""

    prompt: (
        str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1, max_length=MAX_IDS)] | None
    ) = None
    """An empty or missing prompt means the model's start token."""
    max_tokens: NonNegativeInt | None = None
    """The value 0 is allowed only together with `echo`."""
    suffix: str | None = None
    logprobs: Alternatives | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None
