"""The table of all request fields of JamAI Base's page, its embeddings and rankings, and how Antiphon treats
them."""

from enum import StrEnum

from antiphon.dialects.common.field_table import (
    END_USER,
    RETRIEVAL,
    FieldTable,
    RequestField,
    declare_ignored,
    declare_supported,
)

BASE = "/jamai/api"


class JamaiScope(StrEnum):
    """The object that contains a field. Other fields of messages are in OpenAI's table."""

    CHAT = f"{BASE}/v1/chat/completions"
    MESSAGE = "JamAI's message"
    EMBEDDINGS = f"{BASE}/v1/embeddings"
    RERANK = f"{BASE}/v1/rerank"


CHAT = frozenset({JamaiScope.CHAT})

MESSAGE = frozenset({JamaiScope.MESSAGE})

EMBEDDINGS = frozenset({JamaiScope.EMBEDDINGS})

RERANK = frozenset({JamaiScope.RERANK})

OPTIONAL = "Ignored by models that do not support it."

CHOSEN = "If it is empty, the server takes the first model that can do the request."

FIELDS: tuple[RequestField, ...] = (
    *declare_supported(
        CHAT,
        model=f"Id of a model, as antiphon/NAME or NAME. {CHOSEN}",
        messages="The conversation so far. An empty system message becomes `.`. If the first message is "
        "the assistant's, messages with `.` are added before it.",
        tools="Functions that the model can call, 1 to 128. Empty texts and lists in the schemas "
        "of their properties count as absent.",
        tool_choice="Whether the model calls: auto, none, required, or one tool by its name.",
        temperature=f"0 to 2, 0.2 by default. 0 always takes the most likely token. {OPTIONAL}",
        top_p=f"Only the most likely tokens whose probabilities add up to this; 0.6 by default. {OPTIONAL}",
        stream="Whether the answer comes as server-sent events; false by default.",
        max_tokens="Most tokens of one choice; 2048 by default. It is lowered to what fits the model.",
        max_completion_tokens="The newer name of max_tokens. If you send both, max_tokens is ignored.",
        stop=f"Texts that end a choice, 1 to 4; cut from its text. {OPTIONAL}",
        presence_penalty=f"Taken from the logit of each token that is in the output; -2 to 2. {OPTIONAL}",
        frequency_penalty="Taken from a token's logit for each time it is in the output; -2 to 2. "
        f"{OPTIONAL}",
        logit_bias="Added to the logits of tokens: an object of token ids, as texts, to numbers of -100 to "
        f"100. {OPTIONAL}",
        id="The tag `id` in the records of usage, at most 512 characters. Ignored without keys. "
        "The request's own id is the header X-REQUEST-ID.",
        n="Choices, 1 to 128; 1 by default.",
        rag_params=RETRIEVAL,
        user=END_USER,
        reasoning_effort="How much the model reasons: disable, minimal, low, medium, high. "
        f"{OPTIONAL} Later clients of the product send it.",
        thinking_budget=f"Most tokens of reasoning, at most max_tokens; 0 means none. {OPTIONAL} "
        "Later clients of the product send it.",
    ),
    declare_ignored(
        "reasoning_summary",
        CHAT,
        "auto, concise or detailed. It has no effect: you get the reasoning as the model wrote it.",
    ),
    declare_ignored("stream_options", CHAT, "every stream brings the usage."),
    *declare_supported(
        MESSAGE,
        content="As at /v1. null and an empty list mean an empty text.",
        name="The name of the speaker. Characters besides letters, digits, _ and - become _.",
    ),
    *declare_supported(
        EMBEDDINGS,
        model=f"Id of an embedding model. {CHOSEN}",
        input="A text or a list of texts, at most 2048.",
        encoding_format="float, numbers; or base64, their bytes as float32, little-endian.",
        dimensions="Only the model's own number: no vector is shortened.",
    ),
    declare_ignored(
        "type", EMBEDDINGS, "query or document. It has no effect: a text's vector is the same for both."
    ),
    *declare_supported(
        RERANK,
        model=f"Id of a reranker. {CHOSEN}",
        query="The text to compare with the documents.",
        documents="The texts to rank, at most 1000.",
    ),
)

FIELD_TABLE = FieldTable(
    FIELDS, tuple(JamaiScope), endpoints=(JamaiScope.CHAT, JamaiScope.EMBEDDINGS, JamaiScope.RERANK)
)

TABLES = FIELD_TABLE.tables

filter_fields = FIELD_TABLE.filter
