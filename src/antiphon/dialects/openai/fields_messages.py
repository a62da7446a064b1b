"""Fields of messages, their parts, tools and calls."""

from antiphon.dialects.openai.places import CALL, CALLED, FUNCTION, MESSAGE, PART, TOOL
from antiphon.dialects.table import Field, refused, supported

MEDIA = "the models here take only text (modalities in /v1/models/{model}); leave it out"
HOSTED = "it belongs to OpenAI's hosted service; leave it out"

MESSAGES: tuple[Field, ...] = (
    *supported(
        MESSAGE,
        role="system, developer, user, assistant or tool.",
        content="A text, or a list of text parts, which are joined; may be left out beside tool_calls.",
        name="Who of that role speaks; given to the model's template. Where that does not read it, the "
        "header x-antiphon-ignored names it.",
        tool_calls="What the assistant called in this turn.",
        tool_call_id="Which call a tool's content is the result of.",
    ),
    *supported(TOOL, type="function.", function="What can be called."),
    *supported(
        FUNCTION,
        name="1 to 64 letters, digits, underscores and hyphens; each tool's own.",
        description="When to call it; shown to the model.",
        parameters="JSON Schema of its arguments, which every call satisfies; without it there are none.",
        strict="Whether a keyword that cannot be kept is refused. Else it is left out and named in the "
        "header x-antiphon-relaxed.",
    ),
    *supported(
        CALL,
        id="By which its result refers to it.",
        type="function.",
        function="What was called.",
        index="Its place in the list, from 0, as streams tell it; may be left out.",
    ),
    *supported(CALLED, name="Its name.", arguments="Its arguments, a JSON object as a text."),
    *supported(PART, type="text", text="The text."),
    refused("function_call", MESSAGE, "OpenAI took its place by tool_calls; send tool_calls"),
    refused("refusal", MESSAGE, "say it as content"),
    refused("annotations", MESSAGE, "nothing is searched for on the web; leave them out", []),
    refused("audio", MESSAGE, MEDIA),
    refused("image_url", PART, MEDIA),
    refused("input_audio", PART, MEDIA),
    refused("file", PART, MEDIA),
    refused("video_url", PART, MEDIA),
    refused("refusal", PART, "say it as text"),
    refused("prompt_cache_breakpoint", PART, HOSTED),
    refused("custom", TOOL, "only functions are called; send type function"),
    refused("custom", CALL, "only functions are called; send type function"),
)
