"""The fields of a request that only vendors' models use.

An engine without them refuses what would change the answer, and ignores the rest. It names the field in
either case.
"""

from collections.abc import Iterator, Mapping

from antiphon.domain.messages import MediaContent, TextContent
from antiphon.domain.request import (
    SPEECH,
    Conversation,
    GenerationRequest,
    HostedOptions,
    Prompt,
    SchemaDeclaration,
)
from antiphon.errors import UnsupportedParameter

ONLY_TEXT = "the models here take only text (modalities in /v1/models/{model}); leave it out"

REFUSALS: Mapping[str, str] = {
    "verbosity": "say in a message how long the answer shall be",
    "service_tier": "there is one tier; leave it out",
    "prediction": "the models here take no predicted output; leave it out",
    "modalities": "the models here give only text; leave it and audio out",
    "audio": "the models here give only text; leave it out",
}
"""What to do without each hosted option that not every engine has."""

USUAL: Mapping[str, tuple[str, ...]] = {"verbosity": ("medium",), "service_tier": ("auto", "default")}
"""The values that ask for nothing."""

PROMPT_CACHE_KEY = "prompt_cache_key"
EXTRA_PARAMS = "inference_extra_params"
EXTRA_HEADERS = "inference_extra_headers"
SCHEMA_NAME = "response_format.json_schema.name"
SCHEMA_DESCRIPTION = "response_format.json_schema.description"
THINKING_BLOCKS = "messages[].thinking_blocks"
CALL_SIGNATURE = "messages[].tool_calls[].extra_content"
SPEECH_ID = "messages[].audio"
TOOL_MARK = "tools[].cache_control"
CONTENT_MARK = "messages[].content[].cache_control"


def list_hosted(hosted: HostedOptions) -> list[str]:
    """Returns the hosted options that an engine must have."""
    found = []
    for name, usual in USUAL.items():
        value = getattr(hosted, name)
        if value is not None and value not in usual:
            found.append(name)
    if hosted.prediction is not None:
        found.append("prediction")
    if SPEECH in hosted.modalities:
        found.append("modalities")
    if hosted.audio is not None:
        found.append("audio")
    return found


def require_local(request: GenerationRequest) -> None:
    """Raises UnsupportedParameter for the first field that a local engine cannot obey."""
    for name in list_hosted(request.hosted):
        raise UnsupportedParameter(f"{name} is not supported: {REFUSALS[name]}", param=name)
    for name in request.hosted.extra_params:
        field = f"{EXTRA_PARAMS}.{name}"
        raise UnsupportedParameter(
            f"{field} is not supported: the models of this server have no such parameter; leave it out",
            param=field,
        )
    for prompt in request.prompts:
        require_text(prompt)


def require_text(prompt: Prompt) -> None:
    """Raises UnsupportedParameter if a message contains an image or a recording, or only refers to one."""
    if not isinstance(prompt, Conversation):
        return
    for message in prompt.messages:
        for part in message.content:
            if isinstance(part, MediaContent):
                raise UnsupportedParameter(f"{part.field} is not supported: {ONLY_TEXT}", param=part.field)
    require_written(prompt)


def require_written(conversation: Conversation) -> None:
    """Raises UnsupportedParameter if an assistant's message has only a spoken answer, which an engine without
    speech cannot know."""
    for at, message in enumerate(conversation.messages):
        if message.speech_id is not None and not message.text:
            param = f"messages[{at}].audio"
            raise UnsupportedParameter(
                f"{param} is not supported: this model does not know earlier speech; send its transcript as "
                "content",
                param=param,
            )


def list_unused(request: GenerationRequest, used: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """Lists the fields of the request that an engine ignores without a change of the answer. `used`: those
    that the engine uses; a local engine uses none."""
    unused = [PROMPT_CACHE_KEY] if request.hosted.prompt_cache_key is not None else []
    unused += [EXTRA_HEADERS] if request.hosted.extra_headers else []
    constraint = request.output.constraint
    if constraint is not None and constraint.declared is not None:
        unused += _list_declared(constraint.declared)
    for prompt in request.prompts:
        if isinstance(prompt, Conversation):
            unused += _list_vendor_parts(prompt)
    return tuple(name for name in dict.fromkeys(unused) if name not in used) if unused else ()


def _list_declared(declared: SchemaDeclaration) -> Iterator[str]:
    """Yields the fields that tell the model about a schema."""
    if declared.name is not None:
        yield SCHEMA_NAME
    if declared.description is not None:
        yield SCHEMA_DESCRIPTION


def list_marks(conversation: Conversation) -> list[str]:
    """Returns the fields that mark how much of the prompt a vendor keeps."""
    found = []
    if conversation.tools is not None and any(
        tool.cache_control is not None for tool in conversation.tools.tools
    ):
        found.append(TOOL_MARK)
    for message in conversation.messages:
        for part in message.content:
            if isinstance(part, TextContent) and part.cache_control is not None:
                return [*found, CONTENT_MARK]
    return found


def _list_vendor_parts(conversation: Conversation) -> Iterator[str]:
    """Yields the fields that belong to a vendor's own state."""
    yield from list_marks(conversation)
    for message in conversation.messages:
        if message.thinking_blocks:
            yield THINKING_BLOCKS
        if message.tool_calls and any(call.signature is not None for call in message.tool_calls):
            yield CALL_SIGNATURE
        if message.speech_id is not None:
            yield SPEECH_ID
