"""The table of all request fields of Fireworks' page and its later documentation, and how Antiphon treats
them.

A field of the page has the page's default and range.
"""

from enum import StrEnum

from antiphon.dialects.common.field_table import (
    CACHE_KEY,
    END_USER,
    MEMORY,
    NO_MEMORY,
    NO_RETRIEVAL,
    RETRIEVAL,
    SERVICE_TIER,
    TAGS,
    FieldTable,
    RequestField,
    declare_refused,
    declare_supported,
)

PREFIX = "/fireworks/inference/v1"


class FireworksScope(StrEnum):
    """The object that contains a field. The fields of messages and tools are in OpenAI's table."""

    CHAT = f"{PREFIX}/chat/completions"
    TEXT = f"{PREFIX}/completions"


CHAT = frozenset({FireworksScope.CHAT})

TEXT = frozenset({FireworksScope.TEXT})

BOTH = CHAT | TEXT

RAW = "text completions do not separate reasoning; send messages to chat/completions"

LEGACY = "tools took its place; send tools"

FIELDS: tuple[RequestField, ...] = (
    *declare_supported(
        TEXT,
        prompt="A text, a list of texts, token ids, or a list of lists of them. Several prompts "
        "give several choices, in order. Control tokens are possible.",
        echo="Whether the text begins with the prompt; false by default. With logprobs its tokens "
        "are scored too.",
        images="data: URLs with base64, one for each <image> of the only prompt. Prompt and images become "
        "one message of the user, each image in its place. Local models, and vendors' models that take only "
        "text, refuse them.",
    ),
    *declare_supported(
        CHAT,
        messages="The conversation so far.",
        tools="Functions that the model may call, at most 128.",
        tool_choice="Whether the model calls: auto, none, required or any (it must call), or one tool by "
        "its name.",
        parallel_tool_calls="Whether one turn can make several calls; true by default.",
        reasoning_effort="How much the model reasons: low, medium (true), high or none (false). A number is"
        " the most tokens of reasoning. If the model does not have an effort, this is "
        "refused.",
        thinking="Reasoning in Anthropic's form: an object of `type`, enabled or disabled, and "
        "`budget_tokens`, at least 1024. Not together with reasoning_effort.",
    ),
    *declare_supported(
        BOTH,
        model="Name of a model, also as accounts/fireworks/models/NAME, or an alias of the settings.",
        context_length_exceeded_behavior="What happens if max_tokens does not fit together with the prompt:"
        " truncate (the default) lowers it, error is a 400. The prompt is "
        "never shortened.",
        frequency_penalty="Subtracted from a token's logit for each time that it is in the output; -2 to 2,"
        " 0 by default.",
        ignore_eos="Whether generation continues past the model's end tokens until max_tokens; false by "
        "default.",
        logprobs="A number from 0 to 5: arrays with each token's log-probability and this many of the most"
        " likely tokens. With true: entries as in OpenAI's chats, with top_logprobs of the most "
        "likely. Values are before bias, penalties, temperature and cuts.",
        max_tokens="Most tokens of one choice: 16 by default, 200 in a chat. 0 only with echo.",
        mirostat_lr="How fast Mirostat adapts; 0.1 if you send only mirostat_target.",
        mirostat_target="The surprise of each token, in bits, that Mirostat (version 2) aims at; 1.5 if you"
        " send only mirostat_lr. Without either, Mirostat is off.",
        n="Choices of each prompt, 1 to 128; 1 by default. Prompts times n are at most 256.",
        presence_penalty="Subtracted from the logit of each token that is in the output; -2 to 2, 0 by "
        "default.",
        repetition_penalty="Divides the positive logits, and multiplies the negative logits, of tokens in "
        "the prompt or the output. 0 to 2. 1, the default, does nothing. 0 counts as a "
        "millionth.",
        response_format="text; json_object, any object or one of `schema`; json_schema; grammar, in "
        "llama.cpp's notation (GBNF) or Lark's. A local model does not see it, and ignores "
        "its name and description. A vendor gets it unchanged.",
        stop="Texts that end a choice, at most four. The stop text stays in the choice.",
        stream="Whether the answer comes as server-sent events, with the usage in each choice's "
        "last; false by default.",
        temperature="0 to 2, 1 by default. 0 always takes the most likely token.",
        top_k="Only the k most likely tokens, 1 to 128; all by default.",
        top_p="Only the most likely tokens whose probabilities add up to this; 0 to 1, 1 by default.",
    ),
    *declare_supported(BOTH, user=END_USER, metadata=TAGS),
    *declare_supported(
        BOTH,
        max_completion_tokens="The newer name of max_tokens. You can send both if they are equal.",
        top_logprobs="How many of the most likely tokens you get at each place, 0 to 5. Only together with "
        "logprobs: true.",
        logit_bias="Numbers from -100 to 100 that are added to the logits of tokens: an object with token "
        "ids as keys.",
        min_p="Only tokens with at least this share of the probability of the most likely token; 0 "
        "keeps all.",
        typical_p="Only the most typical tokens whose probabilities add up to this; 1 keeps all.",
        seed="The same seed gives the same draws.",
        return_token_ids="Whether you get the ids of the prompt's and the completion's tokens.",
        prompt_cache_isolation_key="Computed prompts are shared only with requests of the same project and "
        "key.",
    ),
    *declare_supported(BOTH, prompt_cache_key=CACHE_KEY, service_tier=SERVICE_TIER),
    *declare_supported(
        BOTH,
        prediction="A text that the answer probably repeats, or {type: content, content: the text}. It makes "
        "the answer faster and never changes it (predictions.md). A model that lacks it refuses it.",
        speculation="The older name of prediction: a text, or token ids, which vendors' models refuse. Send "
        "one of the two.",
    ),
    *declare_supported(CHAT, memory_strategy=MEMORY, rag_params=RETRIEVAL),
    declare_refused("memory_strategy", TEXT, NO_MEMORY),
    declare_refused("rag_params", TEXT, NO_RETRIEVAL),
    declare_refused("stream_options", BOTH, "usage always comes; leave it out", {}, {"include_usage": True}),
    declare_refused("echo", CHAT, "a conversation is not repeated; leave it out", False),
    declare_refused("echo_last", BOTH, "send echo, which repeats the whole prompt of a text completion", 0),
    declare_refused("raw_output", BOTH, "/tokenize shows what a model reads; leave it out", False),
    declare_refused("perf_metrics_in_response", BOTH, "/metrics has the server's times; leave it out", False),
    declare_refused("reasoning_effort", TEXT, RAW, "none", False),
    declare_refused("thinking", TEXT, RAW, {"type": "disabled"}),
    declare_refused("reasoning_history", BOTH, "the model's template decides it; leave it out"),
    declare_refused(
        "prompt_truncate_len", CHAT, "messages are never left out silently; shorten the conversation"
    ),
    declare_refused(
        "safe_tokenization", CHAT, "no text in a message is ever a control token; leave it out", True
    ),
    declare_refused("functions", CHAT, LEGACY, []),
    declare_refused("function_call", CHAT, LEGACY, "none", "auto"),
)

FIELD_TABLE = FieldTable(FIELDS, tuple(FireworksScope), endpoints=tuple(FireworksScope))

TABLES = FIELD_TABLE.tables

filter_fields = FIELD_TABLE.filter
