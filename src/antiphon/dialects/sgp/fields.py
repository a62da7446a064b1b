"""The table of all request fields of Scale's page and its text completions, and how Antiphon treats them."""

from enum import StrEnum

from antiphon.dialects.common.field_table import (
    END_USER,
    MEMORY,
    NO_MEMORY,
    NO_RETRIEVAL,
    RETRIEVAL,
    SUFFIX,
    TAGS,
    FieldTable,
    RequestField,
    declare_ignored,
    declare_refused,
    declare_supported,
)
from antiphon.dialects.common.fields import RENDERED
from antiphon.dialects.sgp.legacy import FIELDS as LEGACY_FIELDS
from antiphon.dialects.sgp.legacy import LegacyScope

PREFIX = "/sgp/v4/beta"


class SgpScope(StrEnum):
    """The object that contains a field. Other fields of messages are in OpenAI's table."""

    CHAT = f"{PREFIX}/chat/completions"
    TEXT = f"{PREFIX}/completions"
    MESSAGE = "SGP's message"
    IMAGE_URL = "SGP's image_url"


CHAT = frozenset({SgpScope.CHAT})

TEXT = frozenset({SgpScope.TEXT})

BOTH = CHAT | TEXT

MESSAGE = frozenset({SgpScope.MESSAGE})

IMAGE_URL = frozenset({SgpScope.IMAGE_URL})

CHAT_ALONE = "only chats have it; send messages to chat/completions"

LEGACY = "tools took its place; send tools"

LIMITS = "max_completion_tokens comes before max_tokens, and this before max_new_tokens."

FIELDS: tuple[RequestField, ...] = (
    *declare_supported(
        CHAT,
        messages="The conversation so far.",
        chat_template=RENDERED["chat_template"],
        chat_template_kwargs=RENDERED["chat_template_kwargs"],
        guided_whitespace_pattern="The whitespace of guided JSON: one class of spaces, tabs and line ends, "
        "with an optional repetition, as [ \\n]{0,2}. It matches once or not at all wherever JSON "
        "allows whitespace.",
        tools="Functions that the model may call, at most 128.",
        tool_choice="Whether the model calls: auto, none, required, or one tool by its name.",
        modalities="What the answer contains: [text], or [text, audio] of a model that speaks. Other "
        "models refuse audio.",
        audio="The format (wav, aac, mp3, flac, opus, pcm16) and the voice of a spoken answer. "
        "Only together with audio in modalities.",
        prediction="A text that the answer probably repeats, as {type: content, content: a text or text "
        "parts}. It makes the answer faster and never changes it (predictions.md). Not together with n "
        "above 1, tools or audio. A model that lacks it refuses it.",
        parallel_tool_calls="Whether one turn can make several calls; true by default.",
    ),
    declare_ignored(
        "guided_decoding_backend",
        CHAT,
        "outlines or lm-format-enforcer. It has no effect: this server has one compiler of constraints.",
    ),
    *declare_supported(
        TEXT,
        prompt="A text. It can contain control tokens.",
        max_new_tokens=f"An older name of max_tokens. {LIMITS}",
        return_token_log_probs="Whether you get each token's log-probability, as with logprobs.",
        stop_sequences="More texts that end a choice, in addition to stop. At most four together.",
    ),
    *declare_supported(
        BOTH,
        model="Name of a model of this server, such as VENDOR/MODEL or VENDOR/MODEL/DEPLOYMENT, or an alias.",
        guided_json="A JSON Schema, as an object or a text, for each choice. At most one of the four "
        "guided_ fields is accepted.",
        guided_regex="A regular expression. Each choice matches it as a whole.",
        guided_choice="Texts. Each choice is one of them.",
        guided_grammar="A grammar of each choice, in Lark's or llama.cpp's notation (GBNF).",
        include_stop_str_in_output="Whether the stop text stays at the end of the choice.",
        stream="Whether the answer comes as server-sent events; false by default. There is no [DONE].",
        stream_options="`include_usage`: whether a last chunk without choices has the usage. Only together "
        "with stream.",
        stop="Texts that end a choice, at most four. They are not part of its text.",
        frequency_penalty="Subtracted from a token's logit for each time that it is in the output; -2 to 2.",
        logit_bias="Numbers from -100 to 100 that are added to the logits of tokens: an object with token "
        "ids as keys.",
        logprobs="Whether you get each token's log-probability, before bias, penalties, temperature "
        "and cuts.",
        top_logprobs="How many of the most likely tokens you get at each place, 0 to 20. Only together with "
        "logprobs.",
        max_tokens="Most tokens of one choice. By default a chat can use the rest of the context, and a text "
        f"makes 16. {LIMITS}",
        max_completion_tokens=f"The newer name of max_tokens. {LIMITS}",
        n="Choices, 1 to 128; 1 by default.",
        best_of="The number of candidates, at most 20. You get the n with the highest mean "
        "log-probability per token. Usage counts all of them. Not in a stream. 0 means absent.",
        presence_penalty="Subtracted from the logit of each token that is in the output; -2 to 2.",
        seed="The same seed gives the same draws.",
        temperature="0 to 2. 0 always takes the most likely token. The default is the model's own value, or "
        "1.",
        top_p="Only the most likely tokens whose probabilities add up to this. The default is the "
        "model's own value, or 1.",
        top_k="Only the k most likely tokens; 0 or -1 keeps all.",
        response_format="text; json_object: any object, or one of `schema`; json_schema; any other object "
        "is a JSON Schema. A local model does not see it, and ignores its name and "
        "description. A vendor gets it unchanged.",
    ),
    *declare_supported(BOTH, user=END_USER),
    *declare_supported(
        CHAT,
        reasoning_effort="How much the model reasons, as at /v1. The product's later clients send it.",
    ),
    *declare_supported(CHAT, memory_strategy=MEMORY, rag_params=RETRIEVAL),
    declare_refused("memory_strategy", TEXT, NO_MEMORY),
    declare_refused("rag_params", TEXT, NO_RETRIEVAL),
    *declare_supported(
        BOTH,
        inference_timeout="The most seconds of the generation, never more than the server's own limit. A "
        "longer generation ends with an error.",
        inference_extra_params="Fields to add to the request. Fields of /v1 have their effect. Others go to"
        " the vendor if the operator allows them (`extra_params`); otherwise they "
        "are refused.",
        inference_extra_headers="Headers to add to the vendor's request, if the operator allows them "
        "(`extra_headers`). Local models ignore them.",
    ),
    *declare_supported(BOTH, metadata=TAGS),
    *declare_supported(TEXT, suffix=SUFFIX),
    declare_refused("suffix", CHAT, "a conversation has no middle; send a prompt to completions", ""),
    declare_refused("audio", TEXT, CHAT_ALONE),
    declare_refused("modalities", TEXT, CHAT_ALONE, ["text"]),
    declare_refused("prediction", TEXT, CHAT_ALONE),
    declare_refused("tools", TEXT, CHAT_ALONE, []),
    declare_refused("tool_choice", TEXT, CHAT_ALONE, "none", "auto"),
    declare_refused("parallel_tool_calls", TEXT, CHAT_ALONE, False, True),
    declare_refused("store", CHAT, "nothing is stored here; leave it out", False),
    declare_refused("functions", CHAT, LEGACY, []),
    declare_refused("function_call", CHAT, LEGACY, "none", "auto"),
    *declare_supported(
        MESSAGE,
        role="system, developer, user, assistant, tool or function. If you leave it out: a "
        "message with tool_call_id is the tool's. One with tool_calls or function_call is "
        "the assistant's. Any other is the user's.",
        content="As at /v1; also one part instead of a list of parts.",
        function_call="The call of an assistant's message in the older form: an object of `name` and "
        "`arguments`. The next message of the role function has its result.",
    ),
    *declare_supported(
        IMAGE_URL,
        media_type="image/png, image/jpeg, image/gif or image/webp. The type of plain base64. For a data: "
        "URL, both types must be equal. Ignored for an https: address.",
    ),
)

FIELD_TABLE = FieldTable(
    (*FIELDS, *LEGACY_FIELDS),
    (*SgpScope, *LegacyScope),
    endpoints=(SgpScope.CHAT, SgpScope.TEXT, LegacyScope.CHAT, LegacyScope.TEXT),
)

TABLES = FIELD_TABLE.tables

filter_fields = FIELD_TABLE.filter
