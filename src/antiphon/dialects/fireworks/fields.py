"""The table of every request field of Fireworks' page and its later documentation. It says what Antiphon does
with each field.

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
    """The object that a field belongs to. The fields of messages and tools are in OpenAI's table."""

    CHAT = f"{PREFIX}/chat/completions"
    TEXT = f"{PREFIX}/completions"


CHAT = frozenset({FireworksScope.CHAT})
TEXT = frozenset({FireworksScope.TEXT})
BOTH = CHAT | TEXT

RAW = "what a raw prompt makes is not read for reasoning; send messages to chat/completions"
GUESS = "guesses of the answer are not used to make it faster; leave it out"
LEGACY = "tools took its place; send tools"

FIELDS: tuple[RequestField, ...] = (
    *declare_supported(
        TEXT,
        prompt="A text, a list of texts, token ids, or a list of lists of them; several prompts give several "
        "choices, in order. May hold control tokens.",
        echo="Whether the text begins with the prompt; with logprobs its tokens are scored too. False by "
        "default.",
        images="Images for the places of <image> in the prompt, as many as there are; refused, as "
        "prompts contain only text: send messages with image_url parts. An empty list is taken.",
    ),
    *declare_supported(
        CHAT,
        messages="The conversation so far.",
        tools="Functions that the model may call, at most 128.",
        tool_choice="Whether it calls: auto, none, required or any (it must call one), or one tool by its "
        "name.",
        parallel_tool_calls="Whether one turn may make several calls; true by default.",
        reasoning_effort="How much a model that reasons shall do so: low, medium, high or none; true is "
        "medium, false none; a number is the most tokens of reasoning. What the model cannot do is refused.",
        thinking="The same in Anthropic's words: an object of `type`, enabled or disabled, and perhaps "
        "`budget_tokens`, at least 1024. Not together with reasoning_effort.",
    ),
    *declare_supported(
        BOTH,
        model="Name of a model, also as accounts/fireworks/models/NAME, or an alias of the settings.",
        context_length_exceeded_behavior="What becomes of max_tokens that do not fit the context beside the "
        "prompt: truncate lowers them, error is a 400. truncate by default. The prompt is never shortened.",
        frequency_penalty="Taken from a token's logit for each time it is in the output; -2 to 2, 0 by "
        "default.",
        ignore_eos="Whether generation goes on past the model's end tokens until max_tokens; false by "
        "default.",
        logprobs="A number of 0 to 5 gives each token's log-probability and so many of the likeliest tokens "
        "at its place, in arrays; true gives one entry for each token, as OpenAI's chats do, with so many of "
        "the likeliest as top_logprobs says. All in the model's raw distribution: before bias, penalties, "
        "temperature and cuts.",
        max_tokens="Most tokens of one choice; 16 by default, for a chat 200. 0 is taken with echo.",
        mirostat_lr="How fast Mirostat follows; 0.1 when only mirostat_target is sent.",
        mirostat_target="Surprise in bits that each token is steered to (Mirostat, version 2); 1.5 when only "
        "mirostat_lr is sent. Without either Mirostat is off.",
        n="Choices of each prompt, 1 to 128; 1 by default. Prompts times n are at most 256.",
        presence_penalty="Taken from the logit of each token that is in the output; -2 to 2, 0 by default.",
        repetition_penalty="Divides positive and multiplies negative logits of tokens in prompt or output; "
        "0 to 2, 1 by default, which does nothing; 0 is taken as a millionth.",
        response_format="text; json_object, any object or one of `schema`; json_schema, JSON of a schema; "
        "grammar, a text of `grammar` in llama.cpp's notation (GBNF) or Lark's. A model of this server is "
        "shown none of it, and x-antiphon-ignored names the schema's name and description. A vendor's gets "
        "it as it is.",
        stop="Texts that end a choice, at most four; the text holds the one that did.",
        stream="Whether the answer comes as server-sent events, the usage with each choice's last; false by "
        "default.",
        temperature="0 is greedy; 0 to 2, 1 by default.",
        top_k="The k likeliest tokens, 1 to 128; all by default.",
        top_p="Smallest set of tokens whose probability reaches this; 0 to 1, 1 by default.",
    ),
    *declare_supported(BOTH, user=END_USER, metadata=TAGS),
    *declare_supported(
        BOTH,
        max_completion_tokens="The newer name of max_tokens; both are taken only where they are equal.",
        top_logprobs="How many of the likeliest tokens are given at each place, 0 to 5; only together with "
        "logprobs, in whose number's place it stands.",
        logit_bias="Added to the logits of tokens: an object of token ids, as texts, to numbers of -100 to "
        "100.",
        min_p="Tokens at least this fraction as likely as the likeliest; 0 keeps all.",
        typical_p="The most typical tokens whose probability reaches this; 1 keeps all.",
        seed="The same seed gives the same draws.",
        return_token_ids="Whether the ids of the prompt's and of the completion's tokens are given too.",
        prompt_cache_isolation_key="What is kept of a prompt is shared only with requests of the same "
        "project and key.",
    ),
    *declare_supported(BOTH, prompt_cache_key=CACHE_KEY, service_tier=SERVICE_TIER),
    *declare_supported(CHAT, memory_strategy=MEMORY, rag_params=RETRIEVAL),
    declare_refused("memory_strategy", TEXT, NO_MEMORY),
    declare_refused("rag_params", TEXT, NO_RETRIEVAL),
    declare_refused("stream_options", BOTH, "usage always comes; leave it out", {}, {"include_usage": True}),
    declare_refused("echo", CHAT, "a conversation is not repeated; leave it out", False),
    declare_refused("echo_last", BOTH, "send echo, which repeats the whole prompt of a text completion", 0),
    declare_refused("raw_output", BOTH, "/tokenize shows what a model reads; leave it out", False),
    declare_refused("perf_metrics_in_response", BOTH, "/metrics has the server's times; leave it out", False),
    declare_refused("prediction", BOTH, GUESS),
    declare_refused("speculation", BOTH, GUESS),
    declare_refused("reasoning_effort", TEXT, RAW, "none", False),
    declare_refused("thinking", TEXT, RAW, {"type": "disabled"}),
    declare_refused("reasoning_history", BOTH, "the model's template decides it; leave it out"),
    declare_refused(
        "prompt_truncate_len", CHAT, "messages are never left out unasked; shorten the conversation"
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
