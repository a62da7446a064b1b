"""The table of all request fields of OpenAI's endpoints, with vLLM's common extensions, and how Antiphon
treats them."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from antiphon.dialects.common.field_table import (
    CACHE_KEY,
    END_USER,
    MEMORY,
    NO_MEMORY,
    NO_RETRIEVAL,
    RETRIEVAL,
    SERVICE_TIER,
    SUFFIX,
    TAGS,
    FieldReport,
    FieldTable,
    RequestField,
    declare_echoed,
    declare_refused,
    declare_supported,
)


class FieldScope(StrEnum):
    """The object that contains a field."""

    CHAT = "/v1/chat/completions"
    TEXT = "/v1/completions"
    MESSAGE = "message"
    PART = "content part"
    REFUSAL = "refusal part"
    IMAGE = "image part"
    IMAGE_URL = "image part's image_url"
    AUDIO = "audio part"
    INPUT_AUDIO = "audio part's input_audio"
    SPEECH = "assistant message's audio"
    TOOL = "tool"
    FUNCTION = "tool's function"
    CALL = "tool call"
    CALLED = "tool call's function"
    STREAM = "stream_options"
    EMBEDDINGS = "/v1/embeddings"
    RERANK = "/v1/rerank"
    TOKENIZE = "/tokenize"
    DETOKENIZE = "/detokenize"
    APPLY = "/v1/apply-template"
    LOAD = "/v1/load_lora_adapter"
    UNLOAD = "/v1/unload_lora_adapter"


CHAT = frozenset({FieldScope.CHAT})
TEXT = frozenset({FieldScope.TEXT})
BOTH = CHAT | TEXT
MESSAGE = frozenset({FieldScope.MESSAGE})
PART = frozenset({FieldScope.PART})
REFUSAL = frozenset({FieldScope.REFUSAL})
IMAGE = frozenset({FieldScope.IMAGE})
IMAGE_URL = frozenset({FieldScope.IMAGE_URL})
AUDIO = frozenset({FieldScope.AUDIO})
INPUT_AUDIO = frozenset({FieldScope.INPUT_AUDIO})
SPEECH = frozenset({FieldScope.SPEECH})
TOOL = frozenset({FieldScope.TOOL})
FUNCTION = frozenset({FieldScope.FUNCTION})
CALL = frozenset({FieldScope.CALL})
CALLED = frozenset({FieldScope.CALLED})
STREAM = frozenset({FieldScope.STREAM})
EMBEDDINGS = frozenset({FieldScope.EMBEDDINGS})
RERANK = frozenset({FieldScope.RERANK})
TOKENIZE = frozenset({FieldScope.TOKENIZE})
DETOKENIZE = frozenset({FieldScope.DETOKENIZE})
APPLY = frozenset({FieldScope.APPLY})
LOAD = frozenset({FieldScope.LOAD})
UNLOAD = frozenset({FieldScope.UNLOAD})

RENDERED: Mapping[str, str] = MappingProxyType(
    {
        "add_generation_prompt": "Whether the assistant's turn begins after the messages; true by default.",
        "continue_final_message": "Whether the model continues the last message, which must be the "
        "assistant's. Its text is not repeated. Not together with add_generation_prompt.",
        "chat_template": "A Jinja template instead of the model's, at most 100,000 characters. It has two "
        "seconds of processor time and 256 MB. Refused unless the operator set "
        "`request_templates`.",
        "chat_template_kwargs": "Named values for the template, at most 64. Names that the template does "
        "not read, or that the server sets, are refused.",
        "documents": "Objects to answer from, for a template that reads documents. Otherwise refused.",
    }
)

LEGACY = "OpenAI has replaced it by tools; send tools"
WIDTH = "at most ANTIPHON_MAX_LOGPROBS (20); -1 means the whole vocabulary"
STORE = "nothing is stored here; leave it out"
HOSTED = "it belongs to OpenAI's hosted service; leave it out"

GENERATING: tuple[RequestField, ...] = (
    *declare_supported(
        CHAT,
        messages="The conversation so far.",
        max_completion_tokens="The newer name of max_tokens.",
        logprobs="Whether you get each token's log-probability, before bias, penalties, temperature "
        "and cuts.",
        tools="Functions that the model may call, at most 128.",
        tool_choice="Whether the model calls: auto, none, required, one tool by its name, or allowed_tools.",
        parallel_tool_calls="Whether one turn can make several calls; true by default.",
        **RENDERED,
        add_special_tokens="Whether the model's begin token is added. One that the chat template writes "
        "stays, and is not doubled. The default is what the model needs.",
        echo="Whether the answer begins with the text of the last message, which must be the assistant's.",
        top_logprobs=f"How many of the most likely tokens you get at each place, {WIDTH}. Only together with "
        "logprobs.",
    ),
    *declare_supported(
        TEXT,
        prompt="A text, a list of texts, token ids, or a list of lists of them. It can contain control "
        "tokens. An empty text, or none, means the model's begin token, or its end token if it "
        "has none.",
        logprobs=f"How many of the most likely tokens you get with each token, {WIDTH}.",
        add_special_tokens="Whether a text gets the begin token, if the model needs one; true by default. "
        "Token ids stay as they are.",
        suffix=SUFFIX,
        echo="Whether the text begins with the prompt. With logprobs, you get values for the prompt's "
        "tokens too. With max_tokens 0 nothing is generated.",
    ),
    *declare_supported(
        BOTH,
        model="Name of a model of /v1/models.",
        max_tokens="Most tokens of one choice. By default a chat can use the rest of the context, and a text"
        " completion gets 16. 0 is accepted only with echo in a text completion.",
        temperature="0 always takes the most likely token. The default is the model's own value, or 1.",
        top_p="Only the most likely tokens whose probabilities add up to this. The default is the "
        "model's own value, or 1.",
        top_k="Only the k most likely tokens; 0 or -1 keeps all.",
        min_p="Only tokens with at least this share of the probability of the most likely token; 0 "
        "keeps all.",
        typical_p="Only the most typical tokens whose probabilities add up to this; 1 keeps all.",
        presence_penalty="Subtracted from the logit of each token that is in the output, -2 to 2.",
        frequency_penalty="Subtracted from a token's logit for each time that it is in the output, -2 to 2.",
        repetition_penalty="Divides the positive logits, and multiplies the negative logits, of tokens in "
        "the prompt or the output. Above 0, at most 2; 1 does nothing.",
        logit_bias="Numbers from -100 to 100 that are added to the logits of tokens: an object with token "
        "ids as keys.",
        mirostat_target="The surprise of each token, in bits, that Mirostat (version 2) aims at; 1.5 if you"
        " send only mirostat_lr. It replaces min_p, top_k, top_p and typical_p.",
        mirostat_lr="How fast Mirostat adapts; 0.1 if you send only mirostat_target.",
        min_tokens="The least tokens of a choice. Before them, only max_tokens ends it.",
        ignore_eos="Whether generation continues after the model's end tokens.",
        allowed_token_ids="The only token ids that can be drawn.",
        seed="The same seed gives the same draws.",
        n="Choices of each prompt.",
        stop="Texts that end a choice, at most four. They are not part of its text.",
        stop_token_ids="Token ids that end a choice, in addition to the model's own. Their text is not part"
        " of the choice.",
        include_stop_str_in_output="Whether the stop text, or the text of the stop token, stays in the "
        "choice.",
        skip_special_tokens="false shows the names of control tokens, and stop texts can match them. For "
        "the end of the turn, set include_stop_str_in_output too.",
        best_of="The number of candidates, at most 20. You get the n with the highest mean "
        "log-probability per token. Usage counts all of them. Not in a stream. 0 means absent.",
        prompt_logprobs="How many of the most likely tokens you get with each token of the prompt, with "
        f"log-probability and rank; {WIDTH}.",
        logprob_token_ids="Token ids, at most 128. You get their log-probabilities at each place instead of"
        " the most likely. Only together with logprobs.",
        return_token_ids="Whether you get the token ids of the prompt and of each choice.",
        return_tokens_as_token_ids="Whether log-probabilities name tokens as token_id:ID. Only together "
        "with logprobs.",
        truncate_prompt_tokens="Shortens the prompt to this many tokens, by default the last ones. -1 "
        "leaves room for max_tokens.",
        truncation_side="left (the default) keeps the prompt's last tokens, right keeps the first. Only "
        "together with truncate_prompt_tokens.",
        stream="Whether the answer comes as server-sent events.",
        stream_options="What a stream reports. Only together with stream.",
        bad_words="Words that no choice contains, at most 128. Only the usual tokens of a word are "
        "excluded, with and without a space before it.",
        priority="Among one caller's waiting requests, lower numbers come first. It has no effect on other"
        " callers.",
        cache_salt="Computed prompts are shared only with requests of the same project and salt.",
    ),
    *declare_supported(
        BOTH,
        response_format="text; json_object: any object, or one of `schema`; json_schema: JSON of a schema. A "
        "local model does not see it, and ignores its name and description. A vendor gets it "
        "unchanged.",
        guided_json="A JSON Schema, as an object or a text, for each choice.",
        guided_regex="A regular expression. Each choice matches it as a whole.",
        guided_choice="Texts. Each choice is one of them.",
        guided_grammar="A grammar of each choice, in Lark's or llama.cpp's notation (GBNF).",
        guided_whitespace_pattern="For JSON: a pattern of the whitespace between its parts, such as [ "
        "\\n]{0,2}. It matches once or not at all.",
        structured_outputs="vLLM's newer form of guided_*: an object with one of json, regex, choice, "
        "grammar and json_object. With JSON it can have whitespace_pattern.",
    ),
    *declare_supported(
        STREAM,
        include_usage="Whether a last chunk without choices has the usage.",
        continuous_usage_stats="Whether each chunk has the usage so far, of all choices. Only together with "
        "include_usage.",
    ),
    *declare_supported(BOTH, user=END_USER, metadata=TAGS),
    *declare_supported(CHAT, safety_identifier=f"The newer name of user. {END_USER}"),
    *declare_supported(
        CHAT,
        prompt_cache_key=CACHE_KEY,
        service_tier=SERVICE_TIER,
        verbosity="How long the answer should be: low, medium or high. A local model refuses low and high: "
        "write it into a message.",
        prediction="A text that the answer probably repeats, as {type: content, content: a text or text "
        "parts}. It makes the answer faster and never changes it (predictions.md). Not together with n "
        "above 1, tools or audio. A model that lacks it refuses it.",
        modalities="What the answer contains: [text], or [text, audio] of a model that speaks. Other "
        "models refuse audio.",
        audio="The format (wav, aac, mp3, flac, opus, pcm16) and the voice of a spoken answer. "
        "Only together with audio in modalities.",
        memory_strategy=MEMORY,
        rag_params=RETRIEVAL,
    ),
    declare_refused("memory_strategy", TEXT, NO_MEMORY),
    declare_refused("rag_params", TEXT, NO_RETRIEVAL),
    declare_refused("functions", CHAT, LEGACY, []),
    declare_refused("function_call", CHAT, LEGACY, "none", "auto"),
    declare_refused("store", CHAT, STORE, False),
    declare_refused("web_search_options", CHAT, HOSTED),
    declare_refused("moderation", CHAT, HOSTED),
    declare_refused("prompt_cache_options", CHAT, HOSTED, {}),
    declare_refused("prompt_cache_retention", CHAT, HOSTED, "in_memory"),
    declare_refused("include_obfuscation", STREAM, "streams are not padded; leave it out", False),
    declare_refused("length_penalty", BOTH, "it ranks beams, and beam search is not built; leave it out", 1),
    declare_refused("use_beam_search", BOTH, "beam search is not built; leave it out", False),
    declare_refused(
        "spaces_between_special_tokens",
        BOTH,
        "spaces between tokens are never removed; leave it out",
        True,
    ),
    declare_refused("logits_processors", BOTH, "code from a request is never run; leave it out", []),
)

UNKNOWN_MEDIA = (
    "messages contain text, images (image_url) and recordings (input_audio) for models that take them "
    "(modalities in /v1/models/{model}); leave it out"
)
MARK = (
    "{type: ephemeral}, with an optional ttl of 5m or 1h. Vendors such as Anthropic keep "
    "the prompt up to this mark for later requests. Other models ignore it. The mark "
    "comes after"
)
ECHO = "a part of an answer, which clients send back"
THOUGHT = "another form of reasoning; send reasoning or reasoning_content"

MESSAGES: tuple[RequestField, ...] = (
    *declare_supported(
        MESSAGE,
        role="system, developer, user, assistant or tool.",
        content="A text, or a list of parts. An assistant's message can have none. A user's message "
        "can contain images and recordings, a tool's images.",
        refusal="The assistant's text if content is missing or empty. Otherwise ignored.",
        name="The name of the speaker, for the model's template. Ignored if the template does not read it.",
        tool_calls="What the assistant called in this turn; an empty list is none.",
        tool_call_id="The call that a tool's content answers.",
    ),
    *declare_supported(TOOL, type="function.", function="The function.", cache_control=f"{MARK} this tool."),
    *declare_supported(
        FUNCTION,
        name="1 to 64 letters, digits, underscores and hyphens. Each tool has its own.",
        description="When to call the function. The model sees this.",
        parameters="JSON Schema of the arguments. Every call satisfies it. Without it there are no "
        "arguments.",
        strict="Whether schema keywords that cannot be enforced are refused. Otherwise the header "
        "x-antiphon-relaxed names them.",
    ),
    *declare_supported(
        CALL,
        id="The id to which the result refers.",
        type="function.",
        function="What was called.",
        index="Its place in the list, from 0. You can leave it out.",
    ),
    *declare_supported(
        CALLED,
        name="Its name.",
        arguments="The arguments as the model wrote them: the text of a JSON object, also a cut one, or any"
        " other text. An empty text means no arguments. An object means its text.",
    ),
    *declare_supported(
        MESSAGE,
        thinking_blocks="The vendor's blocks of reasoning, unchanged. Only in an assistant's message. "
        "Ignored by models that do not use them.",
    ),
    *declare_supported(
        CALL,
        extra_content="The vendor's data about the call, unchanged: `google.thought_signature`. Ignored by "
        "models that do not use it.",
    ),
    *declare_supported(
        MESSAGE,
        audio="The assistant's spoken answer, by the vendor's id. A model that cannot speak ignores it,"
        " and refuses it if there is no content.",
    ),
    *declare_supported(SPEECH, id="The id that the answer had."),
    *declare_echoed(SPEECH, ECHO, "data", "expires_at", "transcript"),
    *declare_supported(PART, type="text.", text="The text.", cache_control=f"{MARK} this part."),
    *declare_supported(
        IMAGE,
        type="image_url; only in messages of a user or a tool.",
        image_url="The image. A model that takes only text refuses it by name.",
    ),
    *declare_supported(
        IMAGE_URL,
        url="A data: URL with base64 of a png, jpeg, gif or webp. Or an https: address, if the "
        "operator has set `pass_addresses`; only the vendor opens it.",
        detail="How closely the model looks: auto, low, high or original.",
    ),
    *declare_supported(
        AUDIO,
        type="input_audio; only in messages of a user.",
        input_audio="The recording. A model that takes no recordings refuses it by name.",
    ),
    *declare_supported(INPUT_AUDIO, data="The recording in base64.", format="wav or mp3."),
    declare_refused("prompt_cache_breakpoint", IMAGE | AUDIO, HOSTED),
    *declare_supported(
        REFUSAL, type="refusal; only in an assistant's message.", refusal="The text, as of a text part."
    ),
    *declare_echoed(
        MESSAGE,
        ECHO,
        "annotations",
        "citations",
        "created",
        "created_at",
        "extra_content",
        "finish_reason",
        "id",
        "index",
        "logprobs",
        "model",
        "parsed",
        "provider_specific_fields",
        "search_results",
        "stop_reason",
        "token_ids",
    ),
    *declare_echoed(MESSAGE, THOUGHT, "reasoning_details", "reasoning_items"),
    *declare_echoed(
        MESSAGE, f"{ECHO}; only in an assistant's message, as images to look at are parts", "images"
    ),
    *declare_echoed(CALL | CALLED, ECHO, "provider_specific_fields"),
    *declare_echoed(CALLED, ECHO, "parsed_arguments"),
    declare_refused("function_call", MESSAGE, "OpenAI has replaced it by tool_calls; send tool_calls"),
    declare_refused("image_url", PART, "it belongs to a part of the type image_url"),
    declare_refused("input_audio", PART, "it belongs to a part of the type input_audio"),
    declare_refused("file", PART, UNKNOWN_MEDIA),
    declare_refused("video_url", PART, UNKNOWN_MEDIA),
    declare_refused("prompt_cache_breakpoint", PART, HOSTED),
    declare_refused("custom", TOOL, "only functions are called; send type function"),
    declare_refused("custom", CALL, "only functions are called; send type function"),
)

REASONING: tuple[RequestField, ...] = (
    *declare_supported(
        CHAT,
        reasoning_effort="How much the model reasons: none, minimal, low, medium, high or xhigh. If its chat "
        "template does not have an effort, this is refused (reasoning.md).",
        include_reasoning="Whether the answer contains the reasoning; true by default. Usage always counts "
        "it.",
        thinking_token_budget="Most tokens of reasoning; then the model must answer. 0 means no reasoning.",
    ),
    *declare_supported(
        MESSAGE,
        reasoning_content="The assistant's reasoning, for templates that show it. Otherwise ignored.",
        reasoning="The newer name of reasoning_content. You can send both if they are equal.",
    ),
    declare_refused("reasoning", CHAT, "it belongs to the Responses API; send reasoning_effort"),
)

OTHERS: tuple[RequestField, ...] = (
    *declare_supported(
        TOKENIZE,
        prompt="A text as /v1/completions takes it.",
        messages="A conversation, instead of a prompt.",
        add_special_tokens="Whether the prompt gets the model's begin token. By default a text does, and a "
        "conversation if the model wants one. One that the chat template writes stays.",
        tools="The tools that the model sees. Only with messages.",
        **RENDERED,
    ),
    *declare_supported(
        APPLY,
        messages="The conversation.",
        tools="The tools that the model sees.",
        **RENDERED,
    ),
    *declare_supported(
        EMBEDDINGS,
        model="Name of an embedding model of /v1/models.",
        input="A text, a list of texts, token ids, or a list of lists of them, at most 2048. A text "
        "gets the model's own tokens before and after it; token ids stay as they are. A text that"
        " is too long is refused.",
        encoding_format="float, numbers; or base64, their bytes as float32, little-endian.",
        dimensions="Only the model's own number: no vector is shortened.",
    ),
    *declare_supported(
        RERANK,
        model="Name of a reranker of /v1/models.",
        query="The text to compare with the documents.",
        documents="The texts to rank, at most 1000, each as a text or as an object of `text`. Nothing in "
        "them is a control token.",
        top_n="The number of documents in the answer, the best first; all by default.",
        return_documents="Whether the answer repeats each document's text; false by default.",
        max_tokens_per_doc="The number of tokens of each document to read, from its beginning. Without it, a "
        "document that does not fit into the context is refused.",
        user=END_USER,
    ),
    declare_refused("rank_fields", RERANK, "send the text to compare as each document", ["text"]),
    declare_refused("max_chunks_per_doc", RERANK, "documents are not split; send max_tokens_per_doc", 1),
    declare_refused("truncate_prompt_tokens", RERANK, "send max_tokens_per_doc"),
    declare_refused("priority", RERANK, "requests are served in turn; leave it out", 0),
    *declare_supported(TOKENIZE, return_token_strs="Whether you get the text of each token too."),
    *declare_supported(DETOKENIZE, tokens="The token ids."),
    *declare_supported(
        TOKENIZE | APPLY | DETOKENIZE, model="Name of a model. You can leave it out if there is only one."
    ),
    *declare_supported(
        LOAD,
        lora_path="A GGUF adapter, or a directory as PEFT saves it, in one of lora.directories on the "
        "server. The path is absolute, or relative to one of them.",
        load_inplace="Whether to replace an adapter of the same name with other content. Otherwise this is "
        "an error.",
        base_model_name="The base model. You can leave it out if there is only one.",
    ),
    *declare_supported(LOAD | UNLOAD, lora_name="The name that callers use as model."),
    *declare_supported(EMBEDDINGS, user=END_USER),
    declare_refused(
        "truncate_prompt_tokens", EMBEDDINGS, "a text is never shortened; shorten it before sending"
    ),
    declare_refused("add_special_tokens", EMBEDDINGS, "send token ids to have them read as they are", True),
    declare_refused("normalize", EMBEDDINGS, "vectors always have the length 1; leave it out", True),
    declare_refused("priority", EMBEDDINGS, "requests are served in turn; leave it out", 0),
    declare_refused("is_3d_lora_weight", LOAD, "experts are not adapted here; leave it out", False),
    declare_refused("lora_int_id", UNLOAD, "adapters are known by their names; leave it out"),
)

FIELDS: tuple[RequestField, ...] = (*GENERATING, *MESSAGES, *REASONING, *OTHERS)

FIELD_TABLE = FieldTable(FIELDS, tuple(FieldScope), endpoints=(FieldScope.CHAT, FieldScope.TEXT))
TABLES = FIELD_TABLE.tables
filter_fields = FIELD_TABLE.filter


def filter_stream_options(fields: dict[str, Any], report: FieldReport) -> None:
    """Filters the fields of stream_options in place."""
    options = fields.get("stream_options")
    if isinstance(options, dict):
        fields["stream_options"] = filter_fields(options, FieldScope.STREAM, "stream_options.", report)
