"""The fields of a request that several dialects have. Each is declared once: its type and range, what it
does, and what it needs.

A dialect's wire type names the fields that it takes. Its decoder, its table of fields, the docs and the
OpenAPI document are made from the wire type. If a product gives a field another meaning, its wire type has
its own description: `Annotated[TopP, "0 to 1, 1 by default."]` keeps the range and the
need. A field of one dialect alone is declared in its wire type.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from msgspec import Meta


class Need(StrEnum):
    """The part of an engine or a model that a supported field needs. If the model lacks it, the server
    refuses the field by name."""

    NOTHING = "every engine"
    TOKENS = "a token engine"
    CONSTRAINTS = "an engine with constraints"
    TEMPLATE = "a chat template"
    REASONING = "a model that reasons"
    ADAPTERS = "an engine that takes adapters"
    EMBEDDING = "an embedding model"
    VISION = "a model that takes images"
    HEARING = "a model that takes recordings"
    SPEECH = "a model that speaks"
    PREDICTIONS = "a model that takes predictions"
    VENDOR = "a vendor's model"


EXPLANATIONS: Mapping[Need, str] = {
    Need.TOKENS: "a local model. A vendor's model takes the fields that its vendor supports.",
    Need.CONSTRAINTS: "a local model. A vendor's model takes the fields that its vendor enforces.",
    Need.TEMPLATE: "the model's own, or the request's if `chat_template` is allowed.",
    Need.REASONING: "a model whose chat template marks its reasoning.",
    Need.ADAPTERS: "a local model.",
    Need.EMBEDDING: "a model that makes vectors and no text.",
    Need.VISION: "a model with `image` in the modalities of its profile. A local model needs a "
    "projector (`mmproj`).",
    Need.HEARING: "a model with `audio` in the modalities of its profile. A local model needs a "
    "projector (`mmproj`).",
    Need.SPEECH: "a vendor's model with `audio` in the output modalities of its profile.",
    Need.PREDICTIONS: "a local model on llama.cpp without `exact`, or a model of a provider that "
    "supports the field.",
    Need.VENDOR: "a model of a provider that supports the field. The row says whether local models refuse "
    "or ignore it.",
}
"""What has each need, for the docs."""

# --- limits, each with its reason ---------------------------------------------------------------------------

MAX_CHOICES = 128
"""The most choices of one prompt. OpenAI has the same limit."""

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

MAX_IDS = 1 << 20
"""The most items of one list of token ids. The longest contexts have as many, and a longer list would delay
other requests."""

MAX_NAME = 256
"""The most characters of a model's or speaker's name."""

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

INT32_MAX = 2**31 - 1

# --- ranges -------------------------------------------------------------------------------------------------

PositiveInt = Annotated[int, Meta(ge=1, le=INT32_MAX)]
NonNegativeInt = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Count = Annotated[int, Meta(ge=-1, le=INT32_MAX)]
"""A number for which -1 means all."""
TokenId = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
StopText = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_LENGTH)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Salt = Annotated[str, Meta(min_length=1, max_length=MAX_SALT)]

# --- the fields ---------------------------------------------------------------------------------------------

WIDTH = "at most ANTIPHON_MAX_LOGPROBS (20); -1 means the whole vocabulary"

Temperature = Annotated[
    Annotated[float, Meta(ge=0, le=2)] | None,
    "0 always takes the most likely token. The default is the model's own value, or 1.",
]
TopP = Annotated[
    Fraction | None,
    "Only the most likely tokens whose probabilities add up to this. The default is the "
    "model's own value, or 1.",
]
TopK = Annotated[Count | None, Need.TOKENS, "Only the k most likely tokens; 0 or -1 keeps all."]
MinP = Annotated[
    Fraction | None,
    Need.TOKENS,
    "Only tokens with at least this share of the probability of the most likely token; 0 keeps all.",
]
TypicalP = Annotated[
    Fraction | None,
    Need.TOKENS,
    "Only the most typical tokens whose probabilities add up to this; 1 keeps all.",
]
PresencePenalty = Annotated[
    Penalty | None,
    "Subtracted from the logit of each token that is in the output, -2 to 2.",
]
FrequencyPenalty = Annotated[
    Penalty | None,
    "Subtracted from a token's logit for each time that it is in the output, -2 to 2.",
]
RepetitionPenalty = Annotated[
    Annotated[float, Meta(gt=0, le=2)] | None,
    Need.TOKENS,
    "Divides the positive logits, and multiplies the negative logits, of tokens in "
    "the prompt or the output. Above 0, at most 2; 1 does nothing.",
]
LogitBias = Annotated[
    Annotated[dict[str, float], Meta(max_length=MAX_BIASES)] | None,
    Need.TOKENS,
    "Numbers from -100 to 100 that are added to the logits of tokens: an object with token ids as keys.",
]
MirostatTarget = Annotated[
    Annotated[float, Meta(gt=0, le=100)] | None,
    Need.TOKENS,
    "The surprise of each token, in bits, that Mirostat (version 2) aims at; 1.5 if you"
    " send only mirostat_lr. It replaces min_p, top_k, top_p and typical_p.",
]
MirostatLr = Annotated[
    Fraction | None,
    Need.TOKENS,
    "How fast Mirostat adapts; 0.1 if you send only mirostat_target.",
]
MinTokens = Annotated[
    NonNegativeInt | None,
    Need.TOKENS,
    "The least tokens of a choice. Before them, only max_tokens ends it.",
]
IgnoreEos = Annotated[
    bool | None,
    Need.TOKENS,
    "Whether generation continues after the model's end tokens.",
]
AllowedTokenIds = Annotated[
    Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_IDS)] | None,
    Need.TOKENS,
    "The only token ids that can be drawn.",
]
Seed = Annotated[
    Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None,
    "The same seed gives the same draws.",
]
Choices = Annotated[Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None, "Choices of each prompt."]
Stop = Annotated[
    StopText | Annotated[list[StopText], Meta(max_length=MAX_STOPS)] | None,
    "Texts that end a choice, at most four. They are not part of its text.",
]
StopTokenIds = Annotated[
    Annotated[list[TokenId], Meta(max_length=MAX_STOP_TOKENS)] | None,
    Need.TOKENS,
    "Token ids that end a choice, in addition to the model's own. Their text is not part of the choice.",
]
IncludeStop = Annotated[
    bool | None,
    Need.TOKENS,
    "Whether the stop text, or the text of the stop token, stays in the choice.",
]
SkipSpecialTokens = Annotated[
    bool | None,
    Need.TOKENS,
    "false shows the names of control tokens, and stop texts can match them. For "
    "the end of the turn, set include_stop_str_in_output too.",
]
BestOf = Annotated[
    Annotated[int, Meta(ge=0, le=MAX_CANDIDATES)] | None,
    Need.TOKENS,
    "The number of candidates, at most 20. You get the n with the highest mean "
    "log-probability per token. Usage counts all of them. Not in a stream. 0 means absent.",
]
PromptLogprobs = Annotated[
    Count | None,
    Need.TOKENS,
    "How many of the most likely tokens you get with each token of the prompt, with "
    f"log-probability and rank; {WIDTH}.",
]
LogprobTokenIds = Annotated[
    Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_LOGPROB_TOKENS)] | None,
    Need.TOKENS,
    "Token ids, at most 128. You get their log-probabilities at each place instead of"
    " the most likely. Only together with logprobs.",
]
ReturnTokenIds = Annotated[
    bool | None,
    Need.TOKENS,
    "Whether you get the token ids of the prompt and of each choice.",
]
ReturnTokensAsTokenIds = Annotated[
    bool | None,
    Need.TOKENS,
    "Whether log-probabilities name tokens as token_id:ID. Only together with logprobs.",
]
TruncatePromptTokens = Annotated[
    Count | None,
    Need.TOKENS,
    "Shortens the prompt to this many tokens, by default the last ones. -1 leaves room for max_tokens.",
]
TruncationSide = Annotated[
    Literal["left", "right"] | None,
    Need.TOKENS,
    "left (the default) keeps the prompt's last tokens, right keeps the first. Only "
    "together with truncate_prompt_tokens.",
]
Stream = Annotated[bool | None, "Whether the answer comes as server-sent events."]
BadWords = Annotated[
    Annotated[list[StopText], Meta(max_length=MAX_BAD_WORDS)] | None,
    Need.TOKENS,
    "Words that no choice contains, at most 128. Only the usual tokens of a word are "
    "excluded, with and without a space before it.",
]
Priority = Annotated[
    Annotated[int, Meta(ge=-(2**31), le=INT32_MAX)] | None,
    Need.TOKENS,
    "Among one caller's waiting requests, lower numbers come first. It has no effect on other callers.",
]
CacheSalt = Annotated[
    Salt | None,
    Need.TOKENS,
    "Computed prompts are shared only with requests of the same project and salt.",
]
GuidedJson = Annotated[
    dict[str, Any] | str | None,
    Need.CONSTRAINTS,
    "A JSON Schema, as an object or a text, for each choice.",
]
GuidedRegex = Annotated[
    str | None,
    Need.CONSTRAINTS,
    "A regular expression. Each choice matches it as a whole.",
]
GuidedChoice = Annotated[list[str] | None, Need.CONSTRAINTS, "Texts. Each choice is one of them."]
GuidedGrammar = Annotated[
    str | None,
    Need.CONSTRAINTS,
    "A grammar of each choice, in Lark's or llama.cpp's notation (GBNF).",
]
GuidedWhitespacePattern = Annotated[
    str | None,
    Need.CONSTRAINTS,
    "For JSON: a pattern of the whitespace between its parts, such as [ "
    "\\n]{0,2}. It matches once or not at all.",
]
EndUser = Annotated[
    Annotated[str, Meta(max_length=LONGEST_USER)] | None,
    "The end user, for the records of usage. Ignored without keys.",
]
Tags = Annotated[
    Annotated[dict[str, Annotated[str, Meta(max_length=LONGEST_TEXT)]], Meta(max_length=MOST_TAGS)] | None,
    "Up to 16 pairs of texts, of 64 and 512 characters, for the records of usage. Ignored without keys.",
]
PromptCacheKey = Annotated[
    Annotated[str, Meta(max_length=LONGEST_CACHE_KEY)] | None,
    Need.VENDOR,
    "A hint for a vendor's cache: requests with the same key have prompts with the same "
    "beginning. Local models ignore it, because they find cached prefixes themselves.",
]
ServiceTier = Annotated[
    Name | None,
    Need.VENDOR,
    "The vendor's class of service: flex, priority. A local model refuses values other than "
    "auto and default.",
]
Modalities = Annotated[
    Annotated[list[Literal["text", "audio"]], Meta(min_length=1, max_length=2)] | None,
    Need.SPEECH,
    "What the answer contains: [text], or [text, audio] of a model that speaks. Other models refuse audio.",
]
Suffix = Annotated[
    str | None,
    Need.TOKENS,
    "The text after the completion: a model with `infill` in its profile fills the middle. "
    "Local models refuse it together with token ids, echo and truncate_prompt_tokens. An "
    "empty text counts as none.",
]
AddGenerationPrompt = Annotated[
    bool | None,
    Need.TEMPLATE,
    "Whether the assistant's turn begins after the messages; true by default.",
]
ContinueFinalMessage = Annotated[
    bool | None,
    Need.TEMPLATE,
    "Whether the model continues the last message, which must be the "
    "assistant's. Its text is not repeated. Not together with add_generation_prompt.",
]
ChatTemplate = Annotated[
    Annotated[str, Meta(min_length=1, max_length=MAX_TEMPLATE)] | None,
    Need.TEMPLATE,
    "A Jinja template instead of the model's, at most 100,000 characters. It has two "
    "seconds of processor time and 256 MB. Refused unless the operator set "
    "`request_templates`.",
]
ChatTemplateKwargs = Annotated[
    Annotated[dict[str, Any], Meta(max_length=MAX_VALUES)] | None,
    Need.TEMPLATE,
    "Named values for the template, at most 64. Names that the template does "
    "not read, or that the server sets, are refused.",
]
Documents = Annotated[
    Annotated[list[dict[str, Any]], Meta(max_length=MAX_DOCUMENTS)] | None,
    Need.TEMPLATE,
    "Objects to answer from, for a template that reads documents. Otherwise refused.",
]
ParallelToolCalls = Annotated[
    bool | None,
    Need.CONSTRAINTS,
    "Whether one turn can make several calls; true by default.",
]
ReasoningEffort = Annotated[
    Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None,
    Need.REASONING,
    "How much the model reasons: none, minimal, low, medium, high or xhigh. If its chat "
    "template does not have an effort, this is refused (reasoning.md).",
]
IncludeReasoning = Annotated[
    bool | None,
    Need.REASONING,
    "Whether the answer contains the reasoning; true by default. Usage always counts it.",
]
ThinkingTokenBudget = Annotated[
    NonNegativeInt | None,
    Need.REASONING,
    "Most tokens of reasoning; then the model must answer. 0 means no reasoning.",
]
