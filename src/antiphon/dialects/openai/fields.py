"""Every request field of OpenAI's reference for the generating endpoints, with vLLM's common extras, and what
Antiphon does with it.

This table is the one place that says so: decoding obeys it and the OpenAPI document prints it. A field is
supported; accepted and ignored, with the reason; or refused as not built, except where its value asks for
what happens anyway (`harmless`). A field that is not in the table is unknown and refused. In all of them null
means absent.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from antiphon.dialects.strict_json import MAX_SHOWN_KEY, shown_key
from antiphon.errors import AntiphonError, UnknownParameter, UnsupportedParameter


class Standing(StrEnum):
    """What becomes of a field."""

    SUPPORTED = "supported"
    IGNORED = "ignored"
    REFUSED = "refused"


class Place(StrEnum):
    """The object that a field belongs to."""

    CHAT = "/v1/chat/completions"
    TEXT = "/v1/completions"
    MESSAGE = "message"
    PART = "content part"
    TOOL = "tool"
    FUNCTION = "tool's function"
    CALL = "tool call"
    CALLED = "tool call's function"
    STREAM = "stream_options"
    EMBEDDINGS = "/v1/embeddings"
    TOKENIZE = "/tokenize"
    DETOKENIZE = "/detokenize"
    LOAD = "/v1/load_lora_adapter"
    UNLOAD = "/v1/unload_lora_adapter"


@dataclass(frozen=True, slots=True)
class Field:
    """One field in one or several places."""

    name: str
    places: frozenset[Place]
    standing: Standing
    says: str
    """What it does; or why it does nothing; or what to do without it."""
    harmless: tuple[object, ...] = ()
    """Values of a refused field that are taken, since they ask for what happens anyway."""


CHAT = frozenset({Place.CHAT})
TEXT = frozenset({Place.TEXT})
BOTH = CHAT | TEXT
MESSAGE = frozenset({Place.MESSAGE})
PART = frozenset({Place.PART})
TOOL = frozenset({Place.TOOL})
FUNCTION = frozenset({Place.FUNCTION})
CALL = frozenset({Place.CALL})
CALLED = frozenset({Place.CALLED})
STREAM = frozenset({Place.STREAM})
EMBEDDINGS = frozenset({Place.EMBEDDINGS})
TOKENIZE = frozenset({Place.TOKENIZE})
DETOKENIZE = frozenset({Place.DETOKENIZE})
LOAD = frozenset({Place.LOAD})
UNLOAD = frozenset({Place.UNLOAD})


def _supported(places: frozenset[Place], **says: str) -> tuple[Field, ...]:
    return tuple(Field(name, places, Standing.SUPPORTED, text) for name, text in says.items())


def _refused(name: str, places: frozenset[Place], says: str, *harmless: object) -> Field:
    return Field(name, places, Standing.REFUSED, says, harmless)


def _ignored(name: str, places: frozenset[Place], says: str) -> Field:
    return Field(name, places, Standing.IGNORED, says)


LEGACY = "OpenAI took its place by tools; send tools"
MEDIA = "only text is taken in and given out"
STORE = "nothing is stored here; leave it out"
HOSTED = "it belongs to OpenAI's hosted service; leave it out"
TEMPLATE = "the model's own template is used as it is; leave it out"

FIELDS: tuple[Field, ...] = (
    *_supported(
        CHAT,
        messages="The conversation so far.",
        max_completion_tokens="The newer name of max_tokens.",
        logprobs="Whether each token's log-probability is given, in the model's raw distribution: before "
        "bias, penalties, temperature and cuts.",
        tools="Functions that the model may call, at most 128.",
        tool_choice="Whether it calls: auto, none, required, one tool by its name, or allowed_tools.",
        parallel_tool_calls="Whether one turn may make several calls; true by default.",
        top_logprobs="How many of the likeliest tokens are given at each place, at most 20; only together "
        "with logprobs.",
    ),
    *_supported(
        TEXT,
        prompt="A text, a list of texts, token ids, or a list of lists of them. May hold control tokens.",
        logprobs="Gives each token's log-probability in the model's raw distribution (before bias, "
        "penalties, temperature and cuts), and so many of the likeliest tokens at its place, at most 20.",
        echo="Whether the text begins with the prompt, as it was sent; with logprobs its tokens are scored "
        "too, and with max_tokens 0 nothing else is done.",
        best_of="Makes so many candidates, at most 20, and gives the n with the highest mean "
        "log-probability per token, best first; all are counted. Not in a stream.",
    ),
    *_supported(
        BOTH,
        model="Name of a model of /v1/models.",
        max_tokens="Most tokens of one choice; a chat may else use the rest of the context, a text makes "
        "16, and takes 0 with echo.",
        temperature="0 is greedy; the model's own default, else 1.",
        top_p="Smallest set of tokens whose probability reaches this; the model's own default, else 1.",
        top_k="The k likeliest tokens; 0 or -1 keeps all.",
        min_p="Tokens at least this fraction as likely as the likeliest; 0 keeps all.",
        typical_p="The most typical tokens whose probability reaches this; 1 keeps all.",
        presence_penalty="Taken from the logit of each token that is in the output, -2 to 2.",
        frequency_penalty="Taken from a token's logit for each time it is in the output, -2 to 2.",
        repetition_penalty="Divides positive and multiplies negative logits of tokens in prompt or output; "
        "above 0, at most 2; 1 does nothing.",
        logit_bias="Added to the logits of tokens: an object of token ids, as texts, to numbers of -100 to "
        "100.",
        mirostat_target="Surprise in bits that each token is steered to (Mirostat, version 2); 1.5 when only "
        "mirostat_lr is sent. Takes the place of min_p, top_k, top_p and typical_p.",
        mirostat_lr="How fast Mirostat follows; 0.1 when only mirostat_target is sent.",
        min_tokens="Tokens of a choice before which nothing ends it but max_tokens.",
        ignore_eos="Whether the model's end tokens are drawn like others and end nothing.",
        allowed_token_ids="The only token ids that can be drawn.",
        seed="The same seed gives the same draws.",
        n="Choices of each prompt.",
        stop="Texts that end a choice, at most four; cut from its text.",
        stop_token_ids="Token ids that end a choice, besides the model's own.",
        stream="Whether the answer comes as server-sent events.",
        stream_options="How a stream ends; only together with stream.",
        cache_salt="What is kept of a prompt is shared only with requests of the same project and salt.",
    ),
    *_supported(
        BOTH,
        response_format="text; json_object, any object or one of `schema`; json_schema, JSON of a schema.",
        guided_json="A JSON Schema, as an object or a text, that each choice satisfies.",
        guided_regex="A regular expression that matches the whole of each choice.",
        guided_choice="Texts, one of which each choice is.",
        guided_grammar="A grammar in Lark's or llama.cpp's notation (GBNF) of each choice.",
        guided_whitespace_pattern="With JSON: what stands wherever JSON takes whitespace, as [ \\n]{0,2}.",
        structured_outputs="One of json, regex, choice, grammar, json_object: vLLM's newer form of guided_*.",
    ),
    *_supported(STREAM, include_usage="Whether one more chunk, with empty choices, brings the usage."),
    *_supported(
        MESSAGE,
        role="system, developer, user, assistant or tool.",
        content="A text, or a list of text parts, which are joined; may be left out beside tool_calls.",
        name="Who of that role speaks; given to the model's template.",
        tool_calls="What the assistant called in this turn.",
        tool_call_id="Which call a tool's content is the result of.",
    ),
    *_supported(TOOL, type="function.", function="What can be called."),
    *_supported(
        FUNCTION,
        name="1 to 64 letters, digits, underscores and hyphens; each tool's own.",
        description="When to call it; shown to the model.",
        parameters="JSON Schema of its arguments, which every call satisfies; without it there are none.",
        strict="Whether a keyword that cannot be kept is refused. Else it is left out and named in the "
        "header x-antiphon-relaxed.",
    ),
    *_supported(
        CALL,
        id="By which its result refers to it.",
        type="function.",
        function="What was called.",
        index="Its place in the list, from 0, as streams tell it; may be left out.",
    ),
    *_supported(CALLED, name="Its name.", arguments="Its arguments, a JSON object as a text."),
    *_supported(PART, type="text", text="The text."),
    *_supported(
        TOKENIZE,
        prompt="A text as /v1/completions takes it.",
        messages="A conversation, instead of a prompt.",
        add_special_tokens="Whether the prompt gets the model's begin token; true by default.",
        tools="What the model is shown as tools; only with messages.",
        add_generation_prompt="Whether the assistant's turn is opened after the messages; true by default.",
    ),
    *_supported(
        EMBEDDINGS,
        model="Name of an embedding model of /v1/models.",
        input="A text, a list of texts, token ids, or a list of lists of them, at most 2048. A text gets "
        "what the model wants before and after it, and nothing in it is a control token; token ids stay as "
        "they are. Nothing is shortened.",
        encoding_format="float, numbers; or base64, their bytes as float32, little-endian.",
        dimensions="Taken only where it is what the model makes: no vector is shortened.",
    ),
    _refused("truncate_prompt_tokens", EMBEDDINGS, "a text is never shortened; shorten it before sending"),
    _refused("add_special_tokens", EMBEDDINGS, "send token ids to have them read as they are", True),
    _refused("normalize", EMBEDDINGS, "vectors always have the length 1; leave it out", True),
    _refused("priority", EMBEDDINGS, "requests are served in turn; leave it out", 0),
    *_supported(TOKENIZE, return_token_strs="Whether the text of each token is given too."),
    *_supported(DETOKENIZE, tokens="The token ids."),
    *_supported(TOKENIZE | DETOKENIZE, model="Name of a model; may be left out when there is only one."),
    *_supported(
        LOAD,
        lora_path="A GGUF adapter, or a directory as PEFT saves it, on the server: in one of the directories "
        "that the setting lora.directories names, absolute or relative to one of them.",
        load_inplace="Whether it takes the place of an adapter of the same name with other content, which is "
        "else an error.",
        base_model_name="The model that it adapts; may be left out when there is only one.",
    ),
    *_supported(LOAD | UNLOAD, lora_name="The name that callers use as model."),
    # --- accepted and ignored ---
    _ignored("user", BOTH | EMBEDDINGS, "names an end user for abuse reports; nothing here reads it yet"),
    _ignored("safety_identifier", CHAT, "names an end user for abuse reports; nothing here reads it yet"),
    _ignored(
        "prompt_cache_key",
        CHAT,
        "a hint where a kept prefix may be; every request finds the longest one here by itself",
    ),
    # --- OpenAI's, not built ---
    _refused("suffix", TEXT, "completion of a middle is not built yet; leave it out", ""),
    _refused("functions", CHAT, LEGACY, []),
    _refused("function_call", CHAT, LEGACY, "none", "auto"),
    _refused("modalities", CHAT, MEDIA, ["text"]),
    _refused("audio", CHAT, MEDIA),
    _refused("prediction", CHAT, "predicted outputs are not built yet; leave it out"),
    _refused("reasoning_effort", CHAT, "reasoning models are not built yet; leave it out", "none"),
    _refused("verbosity", CHAT, "say in a message how long the answer shall be", "medium"),
    _refused("store", CHAT, STORE, False),
    _refused("metadata", CHAT, STORE, {}),
    _refused("service_tier", CHAT, "there is one tier; leave it out", "auto", "default"),
    _refused("web_search_options", CHAT, HOSTED),
    _refused("moderation", CHAT, HOSTED),
    _refused("prompt_cache_options", CHAT, HOSTED, {}),
    _refused("prompt_cache_retention", CHAT, HOSTED, "in_memory"),
    _refused("include_obfuscation", STREAM, "streams are not padded; leave it out", False),
    # --- messages and parts ---
    _refused("function_call", MESSAGE, "OpenAI took its place by tool_calls; send tool_calls"),
    _refused("refusal", MESSAGE, "say it as content"),
    _refused("annotations", MESSAGE, "nothing is searched for on the web; leave them out", []),
    _refused("audio", MESSAGE, MEDIA),
    _refused("image_url", PART, MEDIA),
    _refused("input_audio", PART, MEDIA),
    _refused("file", PART, MEDIA),
    _refused("refusal", PART, "say it as text"),
    _refused("prompt_cache_breakpoint", PART, HOSTED),
    # --- vLLM's extras, not built ---
    _refused("length_penalty", BOTH, "it ranks beams, and beam search is not built; leave it out", 1),
    _refused("use_beam_search", BOTH, "beam search is not built; leave it out", False),
    _refused("bad_words", BOTH, "forbidden words are not built yet; leave it out", []),
    _refused("include_stop_str_in_output", BOTH, "the stop text is cut; append it yourself", False),
    _refused("skip_special_tokens", BOTH, "control tokens are never shown; leave it out", True),
    _refused("spaces_between_special_tokens", BOTH, "control tokens are never shown; leave it out", True),
    _refused("truncate_prompt_tokens", BOTH, "a prompt is never shortened; shorten it before sending"),
    _refused("prompt_logprobs", CHAT, "a conversation's prompt is not scored; leave it out"),
    _refused("prompt_logprobs", TEXT, "send echo and logprobs, with max_tokens 0 for the prompt alone"),
    _refused("return_token_ids", BOTH, "use /tokenize to see token ids", False),
    _refused("return_tokens_as_token_ids", BOTH, "use /tokenize to see token ids", False),
    _refused("logits_processors", BOTH, "code is never taken from a request; leave it out", []),
    _refused("priority", BOTH, "requests are served in order; leave it out", 0),
    _refused("echo", CHAT, "a conversation is not repeated; /v1/completions has echo", False),
    _refused("best_of", CHAT, "/v1/completions has best_of; leave it out", 1),
    _refused("add_generation_prompt", CHAT, TEMPLATE, True),
    _refused("continue_final_message", CHAT, TEMPLATE, False),
    _refused("add_special_tokens", CHAT, TEMPLATE, False),
    _refused("add_special_tokens", TEXT, "a raw prompt gets the model's begin token; leave it out", True),
    _refused("chat_template", CHAT, TEMPLATE),
    _refused("chat_template_kwargs", CHAT, TEMPLATE, {}),
    _refused("documents", CHAT, "write them into a message", []),
    _refused("continue_final_message", TOKENIZE, TEMPLATE, False),
    _refused("chat_template", TOKENIZE, TEMPLATE),
    _refused("chat_template_kwargs", TOKENIZE, TEMPLATE, {}),
    _refused("custom", TOOL, "only functions are called; send type function"),
    _refused("custom", CALL, "only functions are called; send type function"),
    _refused("is_3d_lora_weight", LOAD, "experts are not adapted here; leave it out", False),
    _refused("lora_int_id", UNLOAD, "adapters are known by their names; leave it out"),
)

Table = Mapping[str, Field]


def fields_of(place: Place) -> Table:
    """The fields of one place, by name."""
    return {field.name: field for field in FIELDS if place in field.places}


TABLES: Mapping[Place, Table] = {place: fields_of(place) for place in Place}


def sift(
    given: dict[str, Any], place: Place, where: str = "", report: list[str] | None = None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The fields that decoding shall see, and the names of those that are ignored. `where` is the path of the
    object.

    Raises UnsupportedParameter for what is not built and UnknownParameter for what nobody knows; `report`
    takes the names of the latter instead.
    """
    table = TABLES[place]
    kept: dict[str, Any] = {}
    ignored: tuple[str, ...] = ()
    for name, value in given.items():
        if (field := table.get(name)) is None:
            if report is None:
                raise _unknown(name, place, where)
            report.append(f"{where}{shown_key(name)}")
            continue
        if value is None:
            continue
        if field.standing is Standing.REFUSED:
            _require_harmless(field, value, where)
            continue
        if field.standing is Standing.IGNORED:
            ignored += (name,)
        kept[name] = value
    return kept, ignored


def _require_harmless(field: Field, value: object, where: str) -> None:
    if any(_same(value, harmless) for harmless in field.harmless):
        return
    raise UnsupportedParameter(
        f"{where}{field.name} is not supported: {field.says}", param=f"{where}{field.name}"
    )


def _same(value: object, harmless: object) -> bool:
    """Equality of JSON values: true is not 1, but 0.0 is 0."""
    return value == harmless and isinstance(value, bool) == isinstance(harmless, bool)


def _unknown(name: str, place: Place, where: str) -> AntiphonError:
    shown = shown_key(name)
    elsewhere = [
        str(other) for other in (Place.CHAT, Place.TEXT) if other is not place and name in TABLES[other]
    ]
    hint = f"; it belongs to {elsewhere[0]}" if elsewhere and place in BOTH else _nearest(name, TABLES[place])
    return UnknownParameter(f"unknown field {where}{shown}{hint}", param=f"{where}{shown}")


def _nearest(name: str, known: Iterable[str]) -> str:
    if len(name) > MAX_SHOWN_KEY:
        return ""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.75)
    return f"; did you mean {close[0]}?" if close else ""
