"""Fields of messages, their parts, tools and calls."""

from antiphon.dialects.common.field_scopes import CALL, CALLED, FUNCTION, MESSAGE, PART, REFUSAL, TOOL
from antiphon.dialects.common.field_table import Field, echoed, refused, supported

MEDIA = "the models here take only text (modalities in /v1/models/{model}); leave it out"
ECHO = "a part of some server's answer, which clients send back"
THOUGHT = "reasoning as some server's answer had it; reasoning and reasoning_content act"
HOSTED = "it belongs to OpenAI's hosted service; leave it out"

MESSAGES: tuple[Field, ...] = (
    *supported(
        MESSAGE,
        role="system, developer, user, assistant or tool.",
        content="A text, or a list of parts, which are joined; may be left out in an assistant's message.",
        refusal="The assistant's text where content is missing or empty. Beside content it has no effect, "
        "and the header x-antiphon-ignored names it.",
        name="Who of that role speaks; given to the model's template. Where that does not read it, the "
        "header x-antiphon-ignored names it.",
        tool_calls="What the assistant called in this turn; an empty list is none.",
        tool_call_id="Which call a tool's content is the result of.",
    ),
    *supported(TOOL, type="function.", function="What can be called."),
    *supported(
        FUNCTION,
        name="1 to 64 letters, digits, underscores and hyphens; each tool's own.",
        description="When to call it; shown to the model.",
        parameters="JSON Schema of its arguments, which every call satisfies; without it there are none.",
        strict="Whether a keyword that is unknown or cannot be kept is refused. Else it is named in the "
        "header x-antiphon-relaxed.",
    ),
    *supported(
        CALL,
        id="By which its result refers to it.",
        type="function.",
        function="What was called.",
        index="Its place in the list, from 0, as streams tell it; may be left out.",
    ),
    *supported(
        CALLED,
        name="Its name.",
        arguments="Its arguments as the model wrote them: the text of a JSON object, also of one that was "
        "cut, or any other text. Empty or missing is no arguments. An object is taken as its text.",
    ),
    *supported(PART, type="text.", text="The text."),
    *supported(
        REFUSAL, type="refusal; only in an assistant's message.", refusal="The text, as of a text part."
    ),
    *echoed(
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
    *echoed(MESSAGE, THOUGHT, "reasoning_details", "reasoning_items", "thinking_blocks"),
    *echoed(MESSAGE, f"{ECHO}; only in an assistant's message, as no model here takes images", "images"),
    *echoed(CALL, ECHO, "extra_content"),
    *echoed(CALL | CALLED, ECHO, "provider_specific_fields"),
    *echoed(CALLED, ECHO, "parsed_arguments"),
    refused("function_call", MESSAGE, "OpenAI took its place by tool_calls; send tool_calls"),
    refused("audio", MESSAGE, MEDIA),
    refused("image_url", PART, MEDIA),
    refused("input_audio", PART, MEDIA),
    refused("file", PART, MEDIA),
    refused("video_url", PART, MEDIA),
    refused("prompt_cache_breakpoint", PART, HOSTED),
    refused("custom", TOOL, "only functions are called; send type function"),
    refused("custom", CALL, "only functions are called; send type function"),
)
