"""The JSON types of OpenAI's requests: their fields, with ranges and meanings.

Requests are decoded by these types. The tables of fields, the docs and the OpenAPI document are made from
them. `fields` lists the other known fields, which are ignored or refused.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.bodies.strict_json import EXPECTED
from antiphon.domain import fields
from antiphon.domain.fields import MAX_IDS, Name, Need, NonNegativeInt, PositiveInt, TokenId
from antiphon.domain.tenancy import END_OF_TEXT

# --- limits, each with its reason ---------------------------------------------------------------------------

MAX_SEQUENCES = 256
"""The most sequences of one request: prompts times choices. No engine runs as many at once, and they fit the
memory."""

MAX_MESSAGES = 4096
"""The most messages of one conversation. A context of 32,768 tokens with a word in each message has fewer."""

LARGEST_BIAS = 100.0
"""The largest logit bias, positive or negative. OpenAI has the same limit."""

MAX_TOOLS = 128
"""The most tools of one conversation. OpenAI has the same limit."""

FUNCTION_NAME = "^[a-zA-Z0-9_-]{1,64}$"

MAX_CALLS = 128
"""The most calls of one message."""

MAX_BLOCKS = 1024
"""The most blocks of reasoning of one message."""

MOST_EXTRA_PARAMS = 64
"""The most fields that a caller adds to a vendor's body."""

MOST_EXTRA_HEADERS, LONGEST_HEADER = 16, 1024
"""The most headers that a caller adds to a vendor's request, and the most characters of each value. All of
them together fit the 32 KB that common servers allow."""

MOST_CHUNKS = 1024
"""The most chunks of a search. JamAI has the same limit."""

MAX_RANKED = 1000
"""The most documents of one ranking, as Cohere recommends."""

LONGEST_PATH = 4096
"""The most characters of a path, which is the system's limit in bytes."""

MARK = (
    "{type: ephemeral}, with an optional ttl of 5m or 1h. Vendors such as Anthropic keep "
    "the prompt up to this mark for later requests. Other models ignore it. The mark "
    "comes after"
)

MAX_TOKENS = (
    "Most tokens of one choice. By default a chat can use the rest of the context, and a text"
    " completion gets 16. 0 is accepted only with echo in a text completion."
)

# --- requests -----------------------------------------------------------------------------------------------

ToolName = Annotated[
    str,
    Meta(
        pattern=rf"^[a-zA-Z0-9_-]{{1,128}}{END_OF_TEXT}",
        extra={EXPECTED: "a text of 1 to 128 letters, digits, underscores and hyphens"},
    ),
]
"""The name of a tool in Messages and Responses."""

FunctionName = Annotated[str, Meta(extra_json_schema={"pattern": FUNCTION_NAME})]
Seconds = float | str
ExtraParams = Annotated[dict[str, Any], Meta(max_length=MOST_EXTRA_PARAMS)]
ExtraHeaders = Annotated[
    dict[str, Annotated[str, Meta(max_length=LONGEST_HEADER)]], Meta(max_length=MOST_EXTRA_HEADERS)
]

ModelChoice = Annotated[Name | None, "Name of a model. You can leave it out if there is only one."]

LoraName = Annotated[Name, Need.ADAPTERS, "The name that callers use as model."]


class BodyShape(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request's body, or an object in it. `BodyDecoder` needs both options, which subclasses inherit."""


class CacheControlShape(BodyShape, frozen=True):
    """A mark: the vendor keeps the prompt up to it for later requests."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    """How long the vendor stores the prompt."""


class TextPart(BodyShape, frozen=True, tag_field="type", tag="text"):
    """A part of a message's content."""

    text: Annotated[str, "The text."]
    cache_control: Annotated[CacheControlShape | None, Need.VENDOR, f"{MARK} this part."] = None


class RefusalPart(BodyShape, frozen=True, tag_field="type", tag="refusal"):
    """A part of an assistant's content that says why it does not answer."""

    refusal: Annotated[str, "The text, as of a text part."]


class ImageUrlShape(BodyShape, frozen=True):
    """An image as a data: URL, or as an address."""

    url: Annotated[
        str,
        "A data: URL with base64 of a png, jpeg, gif or webp. Or an https: address, "
        "if the operator has set `pass_addresses` or, for local models, `media.fetch`.",
    ]
    detail: Annotated[
        Literal["auto", "low", "high", "original"] | None,
        Need.VISION,
        "How closely the model looks: auto, low, high or original.",
    ] = None


class ImageUrlPart(BodyShape, frozen=True, tag_field="type", tag="image_url"):
    """A part of a content that is an image."""

    image_url: Annotated[
        ImageUrlShape,
        Need.VISION,
        "The image. A model that takes only text refuses it by name.",
    ]


class InputAudioShape(BodyShape, frozen=True):
    """A recording in base64."""

    data: Annotated[str, Need.HEARING, "The recording in base64."]
    format: Annotated[Literal["wav", "mp3"], Need.HEARING, "wav or mp3."]


class InputAudioPart(BodyShape, frozen=True, tag_field="type", tag="input_audio"):
    """A part of a content that is a recording."""

    input_audio: Annotated[
        InputAudioShape,
        Need.HEARING,
        "The recording. A model that takes no recordings refuses it by name.",
    ]


ContentPart = TextPart | RefusalPart | ImageUrlPart | InputAudioPart


class CalledFunction(BodyShape, frozen=True):
    """The function that an assistant called, with the arguments as the model wrote them."""

    name: Annotated[FunctionName, "Its name."]
    arguments: Annotated[
        str | dict[str, Any],
        "The arguments as the model wrote them: the text of a JSON object, also a "
        "cut one, or any other text. An empty text means no arguments. An object means its text.",
    ] = ""


class MessageToolCall(BodyShape, frozen=True):
    """One call of an earlier turn."""

    id: Annotated[Name, "The id to which the result refers."]
    function: Annotated[CalledFunction, "What was called."]
    type: Annotated[Literal["function"] | UnsetType, "function."] = UNSET
    index: Annotated[int | None, "Its place in the list, from 0. You can leave it out."] = None
    extra_content: Annotated[
        dict[str, Any] | None,
        Need.VENDOR,
        "The vendor's data about the call, unchanged: `google.thought_signature`. "
        "Ignored by models that do not use it.",
    ] = None


class SpeechReference(BodyShape, frozen=True):
    """A spoken answer that the vendor keeps."""

    id: Annotated[Name, "The id that the answer had."]


class ChatMessage(BodyShape, frozen=True):
    """One turn of the conversation."""

    role: Annotated[
        Literal["system", "developer", "user", "assistant", "tool"],
        "system, developer, user, assistant or tool.",
    ]
    content: Annotated[
        str | Annotated[list[ContentPart], Meta(min_length=1)] | None,
        "A text, or a list of parts. An assistant's message can have none. A user's "
        "message can contain images and recordings, a tool's images.",
    ] = None
    refusal: Annotated[
        str | None,
        "The assistant's text if content is missing or empty. Otherwise ignored.",
    ] = None
    name: Annotated[
        Name | None,
        "The name of the speaker, for the model's template. Ignored if the template does not read it.",
    ] = None
    tool_calls: Annotated[
        Annotated[list[MessageToolCall], Meta(max_length=MAX_CALLS)] | None,
        "What the assistant called in this turn; an empty list is none.",
    ] = None
    tool_call_id: Annotated[Name | None, "The call that a tool's content answers."] = None
    thinking_blocks: Annotated[
        Annotated[list[dict[str, Any]], Meta(max_length=MAX_BLOCKS)] | None,
        Need.VENDOR,
        "The vendor's blocks of reasoning, unchanged. Only in an assistant's "
        "message. Ignored by models that do not use them.",
    ] = None
    audio: Annotated[
        SpeechReference | None,
        Need.SPEECH,
        "The assistant's spoken answer, by the vendor's id. A model that cannot "
        "speak ignores it, and refuses it if there is no content.",
    ] = None
    reasoning_content: Annotated[
        str | None,
        "The assistant's reasoning, for templates that show it. Otherwise ignored.",
    ] = None
    reasoning: Annotated[
        str | None,
        "The newer name of reasoning_content. You can send both if they are equal.",
    ] = None


class Function(BodyShape, frozen=True):
    """A function that the model may call."""

    name: Annotated[
        FunctionName,
        "1 to 64 letters, digits, underscores and hyphens. Each tool has its own.",
    ]
    description: Annotated[str | None, "When to call the function. The model sees this."] = None
    parameters: Annotated[
        dict[str, Any] | None,
        "JSON Schema of the arguments. Every call satisfies it. Without it there are no arguments.",
    ] = None
    strict: Annotated[
        bool | None,
        Need.CONSTRAINTS,
        "Whether schema keywords that cannot be enforced are refused. Otherwise the "
        "header x-antiphon-relaxed names them.",
    ] = None


class ToolShape(BodyShape, frozen=True):
    """A tool."""

    type: Annotated[Literal["function"], "function."]
    function: Annotated[Function, "The function."]
    cache_control: Annotated[CacheControlShape | None, Need.VENDOR, f"{MARK} this tool."] = None


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

    include_usage: Annotated[bool | None, "Whether a last chunk without choices has the usage."] = None
    continuous_usage_stats: Annotated[
        bool | None,
        "Whether each chunk has the usage so far, of all choices. Only together with include_usage.",
    ] = None


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


ChosenFormat = Annotated[
    ResponseFormat | None,
    Need.CONSTRAINTS,
    "text; json_object: any object, or one of `schema`; json_schema: JSON of a schema. A "
    "local model does not see it, and ignores its name and description. A vendor gets it "
    "unchanged.",
]


class CommonRequest(BodyShape, frozen=True, kw_only=True):
    """The fields that chat and text completions share."""

    model: Annotated[Name, "Name of a model of /v1/models."]
    max_tokens: Annotated[PositiveInt | None, MAX_TOKENS] = None
    temperature: fields.Temperature = None
    top_p: fields.TopP = None
    top_k: fields.TopK = None
    min_p: fields.MinP = None
    typical_p: fields.TypicalP = None
    presence_penalty: fields.PresencePenalty = None
    frequency_penalty: fields.FrequencyPenalty = None
    repetition_penalty: fields.RepetitionPenalty = None
    logit_bias: fields.LogitBias = None
    mirostat_target: fields.MirostatTarget = None
    mirostat_lr: fields.MirostatLr = None
    min_tokens: fields.MinTokens = None
    ignore_eos: fields.IgnoreEos = None
    allowed_token_ids: fields.AllowedTokenIds = None
    seed: fields.Seed = None
    n: fields.Choices = None
    stop: fields.Stop = None
    stop_token_ids: fields.StopTokenIds = None
    include_stop_str_in_output: fields.IncludeStop = None
    skip_special_tokens: fields.SkipSpecialTokens = None
    best_of: fields.BestOf = None
    prompt_logprobs: fields.PromptLogprobs = None
    logprob_token_ids: fields.LogprobTokenIds = None
    return_token_ids: fields.ReturnTokenIds = None
    return_tokens_as_token_ids: fields.ReturnTokensAsTokenIds = None
    truncate_prompt_tokens: fields.TruncatePromptTokens = None
    truncation_side: fields.TruncationSide = None
    stream: fields.Stream = None
    stream_options: Annotated[StreamOptions | None, "What a stream reports. Only together with stream."] = (
        None
    )
    bad_words: fields.BadWords = None
    priority: fields.Priority = None
    cache_salt: fields.CacheSalt = None
    response_format: ChosenFormat = None
    guided_json: fields.GuidedJson = None
    guided_regex: fields.GuidedRegex = None
    guided_choice: fields.GuidedChoice = None
    guided_grammar: fields.GuidedGrammar = None
    guided_whitespace_pattern: fields.GuidedWhitespacePattern = None
    structured_outputs: Annotated[
        StructuredOutputs | None,
        Need.CONSTRAINTS,
        "vLLM's newer form of guided_*: an object with one of json, regex, choice, "
        "grammar and json_object. With JSON it can have whitespace_pattern.",
    ] = None
    user: fields.EndUser = None
    metadata: fields.Tags = None


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


Messages = Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
Tools = Annotated[
    Annotated[list[ToolShape], Meta(max_length=MAX_TOOLS)] | None,
    Need.TEMPLATE,
    "Functions that the model may call, at most 128.",
]
Prediction = Annotated[
    PredictionShape | None,
    Need.PREDICTIONS,
    "A text that the answer probably repeats, as {type: content, content: a text or text "
    "parts}. It makes the answer faster and never changes it (predictions.md). Not together with n "
    "above 1, tools or audio. A model that lacks it refuses it.",
]
Speech = Annotated[
    SpeechShape | None,
    Need.SPEECH,
    "The format (wav, aac, mp3, flac, opus, pcm16) and the voice of a spoken answer. "
    "Only together with audio in modalities.",
]
Memory = Annotated[
    MemoryShape | None,
    "Which part of the conversation the model sees: an object of `name` and its "
    "parameters. "
    "The strategies are last_k, last_tokens, summary and relevant (memory.md). The header "
    "x-antiphon-memory counts what was left out.",
]
Rag = Annotated[
    RagParams | None,
    "The knowledge table to answer from: `table_id`, `k` (3) and other fields "
    "(retrieval.md)."
    " The answer's `references` show what the model saw.",
]
"""Fields that several dialects have, and whose types are objects."""


class ChatCompletionRequest(CommonRequest, frozen=True, kw_only=True):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[Messages, Need.TEMPLATE, "The conversation so far."]
    max_completion_tokens: Annotated[PositiveInt | None, "The newer name of max_tokens."] = None
    logprobs: Annotated[
        bool | None,
        Need.TOKENS,
        "Whether you get each token's log-probability, before bias, penalties, temperature and cuts.",
    ] = None
    tools: Tools = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | ToolChoiceShape | None,
        Need.CONSTRAINTS,
        "Whether the model calls: auto, none, required, one tool by its name, or allowed_tools.",
    ] = None
    parallel_tool_calls: fields.ParallelToolCalls = None
    add_generation_prompt: fields.AddGenerationPrompt = None
    continue_final_message: fields.ContinueFinalMessage = None
    chat_template: fields.ChatTemplate = None
    chat_template_kwargs: fields.ChatTemplateKwargs = None
    documents: fields.Documents = None
    add_special_tokens: Annotated[
        bool | None,
        Need.TOKENS,
        "Whether the model's begin token is added. One that the chat template writes "
        "stays, and is not doubled. The default is what the model needs.",
    ] = None
    echo: Annotated[
        bool | None,
        Need.TOKENS,
        "Whether the answer begins with the text of the last message, which must be the assistant's.",
    ] = None
    top_logprobs: Annotated[
        fields.Count | None,
        Need.TOKENS,
        "How many of the most likely tokens you get at each place, "
        f"{fields.WIDTH}. Only together with logprobs.",
    ] = None
    safety_identifier: Annotated[
        fields.EndUser,
        "The newer name of user. The end user, for the records of usage. Ignored without keys.",
    ] = None
    prompt_cache_key: fields.PromptCacheKey = None
    service_tier: fields.ServiceTier = None
    verbosity: Annotated[
        Literal["low", "medium", "high"] | None,
        Need.VENDOR,
        "How long the answer should be: low, medium or high. A local model refuses low and "
        "high: write it into a message.",
    ] = None
    prediction: Prediction = None
    modalities: fields.Modalities = None
    audio: Speech = None
    memory_strategy: Memory = None
    rag_params: Rag = None
    reasoning_effort: fields.ReasoningEffort = None
    include_reasoning: fields.IncludeReasoning = None
    thinking_token_budget: fields.ThinkingTokenBudget = None


class CompletionRequest(CommonRequest, frozen=True, kw_only=True):
    """Body of POST /v1/completions."""

    prompt: Annotated[
        str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1, max_length=MAX_IDS)] | None,
        "A text, a list of texts, token ids, or a list of lists of them. It can contain "
        "control tokens. An empty text, or none, means the model's begin token, or its end token if it "
        "has none.",
    ] = None
    max_tokens: Annotated[NonNegativeInt | None, MAX_TOKENS] = None
    logprobs: Annotated[
        fields.Count | None,
        Need.TOKENS,
        f"How many of the most likely tokens you get with each token, {fields.WIDTH}.",
    ] = None
    add_special_tokens: Annotated[
        bool | None,
        Need.TOKENS,
        "Whether a text gets the begin token, if the model needs one; true by default. "
        "Token ids stay as they are.",
    ] = None
    suffix: fields.Suffix = None
    echo: Annotated[
        bool | None,
        Need.TOKENS,
        "Whether the text begins with the prompt. With logprobs, you get values for the "
        "prompt's tokens too. With max_tokens 0 nothing is generated.",
    ] = None


# --- other endpoints ----------------------------------------------------------------------------------------


class EmbeddingsRequest(BodyShape, frozen=True, kw_only=True):
    """Body of POST /v1/embeddings."""

    model: Annotated[Name, "Name of an embedding model of /v1/models."]
    input: Annotated[
        str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1, max_length=MAX_IDS)],
        Need.EMBEDDING,
        "A text, a list of texts, token ids, or a list of lists of them, at most "
        "2048. A text "
        "gets the model's own tokens before and after it; token ids stay as they are. A text that"
        " is too long is refused.",
    ]
    encoding_format: Annotated[
        Literal["float", "base64"] | None,
        Need.EMBEDDING,
        "float, numbers; or base64, their bytes as float32, little-endian.",
    ] = None
    dimensions: Annotated[
        PositiveInt | None,
        Need.EMBEDDING,
        "Only the model's own number: no vector is shortened.",
    ] = None
    user: fields.EndUser = None


class RerankDocument(BodyShape, frozen=True):
    """A document as an object."""

    text: str


class RerankBody(BodyShape, frozen=True, kw_only=True):
    """Body of POST /v1/rerank."""

    model: Annotated[Name, "Name of a reranker of /v1/models."]
    query: Annotated[str, Meta(min_length=1), "The text to compare with the documents."]
    documents: Annotated[
        list[str | RerankDocument],
        Meta(min_length=1, max_length=MAX_RANKED),
        "The texts to rank, at most 1000, each as a text or as an object of `text`. "
        "Nothing in "
        "them is a control token.",
    ]
    top_n: Annotated[
        PositiveInt | None,
        "The number of documents in the answer, the best first; all by default.",
    ] = None
    return_documents: Annotated[
        bool | None, "Whether the answer repeats each document's text; false by default."
    ] = None
    max_tokens_per_doc: Annotated[
        PositiveInt | None,
        "The number of tokens of each document to read, from its beginning. Without it, a "
        "document that does not fit into the context is refused.",
    ] = None
    user: fields.EndUser = None


class ConversationRequest(BodyShape, frozen=True, kw_only=True):
    """The rendering fields of a conversation."""

    model: ModelChoice = None
    add_generation_prompt: fields.AddGenerationPrompt = None
    continue_final_message: fields.ContinueFinalMessage = None
    chat_template: fields.ChatTemplate = None
    chat_template_kwargs: fields.ChatTemplateKwargs = None
    documents: fields.Documents = None
    tools: Annotated[Tools, "The tools that the model sees."] = None


class TokenizeRequest(ConversationRequest, frozen=True, kw_only=True):
    """Body of POST /tokenize: a prompt or messages."""

    prompt: Annotated[str | None, "A text as /v1/completions takes it."] = None
    messages: Annotated[Messages | None, Need.TEMPLATE, "A conversation, instead of a prompt."] = None
    add_special_tokens: Annotated[
        bool | None,
        Need.TOKENS,
        "Whether the prompt gets the model's begin token. By default a text does, and a "
        "conversation if the model wants one. One that the chat template writes stays.",
    ] = None
    tools: Annotated[Tools, "The tools that the model sees. Only with messages."] = None
    return_token_strs: Annotated[bool | None, Need.TOKENS, "Whether you get the text of each token too."] = (
        None
    )


class ApplyRequest(ConversationRequest, frozen=True, kw_only=True):
    """Body of POST /v1/apply-template."""

    messages: Annotated[Messages, Need.TEMPLATE, "The conversation."]


class DetokenizeRequest(BodyShape, frozen=True, kw_only=True):
    """Body of POST /detokenize."""

    model: ModelChoice = None
    tokens: Annotated[list[TokenId], Meta(max_length=MAX_IDS), Need.TOKENS, "The token ids."]


class LoadAdapterRequest(BodyShape, frozen=True, kw_only=True):
    """Body of POST /v1/load_lora_adapter."""

    lora_name: LoraName
    lora_path: Annotated[
        str,
        Meta(min_length=1, max_length=LONGEST_PATH),
        Need.ADAPTERS,
        "A GGUF adapter, or a directory as PEFT saves it, in one of lora.directories "
        "on the "
        "server. The path is absolute, or relative to one of them.",
    ]
    load_inplace: Annotated[
        bool | None,
        Need.ADAPTERS,
        "Whether to replace an adapter of the same name with other content. Otherwise this is an error.",
    ] = None
    base_model_name: Annotated[
        Name | None,
        Need.ADAPTERS,
        "The base model. You can leave it out if there is only one.",
    ] = None


class UnloadAdapterRequest(BodyShape, frozen=True, kw_only=True):
    """Body of POST /v1/unload_lora_adapter."""

    lora_name: LoraName
