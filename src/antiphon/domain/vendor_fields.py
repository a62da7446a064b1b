"""The fields of a request that only vendors' models use, and the headers of requests to vendors.

An engine that does not support such a field refuses it if it would change the answer, and ignores it if it
would not. The error or the report names the field. Some headers are for operators only; callers can add
others.
"""

import re
from collections.abc import Iterator, Mapping

from antiphon.domain.messages import MediaContent, MediaKind, TextContent
from antiphon.domain.request import (
    SPEECH,
    Conversation,
    GenerationRequest,
    Prompt,
    RawPrompt,
    SchemaDeclaration,
    VendorOptions,
)
from antiphon.errors import UnsupportedParameter

HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""A token of RFC 9110. The HTTP client raises an error at each request for a name that is not one."""

RESERVED_HEADERS = frozenset(
    "authorization host content-length content-type transfer-encoding connection proxy-authorization cookie "
    "accept-encoding expect upgrade te trailer".split()
)
"""Headers that the client sets itself, or that would carry a credential around `key`."""

OWN_HEADERS = RESERVED_HEADERS | frozenset("user-agent keep-alive forwarded via origin referer".split())
"""Headers that this server's own request sets: about its connection, or about this server."""

OWN_PREFIXES = ("content-", "proxy-", "x-forwarded-", "sec-")

CREDENTIAL = re.compile(
    r"auth(?![a-z])|authori[sz]ation|authenticat|api-?key|cookie|secret|password|credential"
    r"|(?:^|-)(?:access|auth|bearer|id|security|session)-token"
)
"""Matches in the names of headers that contain a credential: `x-api-key`, `x-auth-token`, `helicone-auth`."""

REFUSALS: Mapping[str, str] = {
    "verbosity": "say in a message how long the answer shall be",
    "service_tier": "there is one tier; leave it out",
    "prediction": "this model uses no guesses of the answer (refused in /v1/models/{model}); leave it out",
    "modalities": "the models here give only text; leave it and audio out",
    "audio": "the models here give only text; leave it out",
}
"""What to do without each option of `VendorOptions`, for the error of an engine that does not support it."""

DEFAULT_VALUES: Mapping[str, tuple[str, ...]] = {
    "verbosity": ("medium",),
    "service_tier": ("auto", "default"),
}
"""For each option, the values that change nothing."""

PREDICTED_IDS = "prediction as token ids"
"""The name of a prediction that no vendor takes."""

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

MEDIA_NAMES = {MediaKind.IMAGE: "images", MediaKind.AUDIO: "recordings", MediaKind.DOCUMENT: "documents"}


def is_header_name(name: str) -> bool:
    """Whether a text can be the name of a header."""
    return HEADER_NAME.fullmatch(name) is not None


def is_protected(name: str) -> bool:
    """Whether callers can never add this header, even if the operator allows it. Such a header belongs to the
    connection, or can carry a credential."""
    lower = name.lower()
    return lower in OWN_HEADERS or lower.startswith(OWN_PREFIXES) or CREDENTIAL.search(lower) is not None


def list_vendor_options(vendor_options: VendorOptions) -> list[str]:
    """Returns the names of the options that are set and change the answer, so that an engine must support
    them."""
    names = []
    for name, default_values in DEFAULT_VALUES.items():
        value = getattr(vendor_options, name)
        if value is not None and value not in default_values:
            names.append(name)
    if vendor_options.prediction is not None:
        names.append("prediction" if vendor_options.prediction.tokens is None else PREDICTED_IDS)
    if SPEECH in vendor_options.modalities:
        names.append("modalities")
    if vendor_options.audio is not None:
        names.append("audio")
    return names


def require_local(request: GenerationRequest, takes_media: bool = False) -> None:
    """Raises UnsupportedParameter for the first field that a local engine cannot support. `takes_media`:
    whether the caller checks images and recordings."""
    for name in list_vendor_options(request.vendor_options):
        if name not in ("prediction", PREDICTED_IDS):  # the renderer knows whether the model takes it
            raise UnsupportedParameter(f"{name} is not supported: {REFUSALS[name]}", param=name)
    for name in request.vendor_options.extra_params:
        field = f"{EXTRA_PARAMS}.{name}"
        raise UnsupportedParameter(
            f"{field} is not supported: the models of this server have no such parameter; leave it out",
            param=field,
        )
    require_known_tools(request)
    for prompt in request.prompts:
        if not takes_media:
            require_text(prompt)
        elif isinstance(prompt, Conversation):
            require_transcripts(prompt)


def require_known_tools(request: GenerationRequest) -> None:
    """Raises UnsupportedParameter for a tool whose schema only Anthropic knows."""
    for prompt in request.prompts:
        if isinstance(prompt, Conversation) and prompt.original is not None and prompt.original.own_tools:
            name = prompt.original.own_tools[0]
            raise UnsupportedParameter(
                f"{name} is not supported: send the tool with its input_schema", param=name.partition(" ")[0]
            )


def require_text(prompt: Prompt) -> None:
    """Raises UnsupportedParameter if a message contains an image, a recording, or a reference to earlier
    speech."""
    if isinstance(prompt, RawPrompt):
        parts = list(prompt.content)
    else:
        parts = [part for message in prompt.messages for part in message.content]
    for part in parts:
        if isinstance(part, MediaContent):
            raise build_modality_refusal(part, "this model")
    if isinstance(prompt, Conversation):
        require_transcripts(prompt)


def build_modality_refusal(part: MediaContent, model: str) -> UnsupportedParameter:
    """Returns the error for a part of a kind that the model does not take. `model`: its name in the
    sentence."""
    kind = MEDIA_NAMES[part.kind]
    error = UnsupportedParameter(
        f"{part.field} is not supported: {model} takes no {kind} (modalities in /v1/models/{{model}}); leave "
        "it out",
        param=part.field,
    )
    error.modality = str(part.kind)
    return error


def require_transcripts(conversation: Conversation) -> None:
    """Raises UnsupportedParameter if an assistant's message has a spoken answer and no text. An engine
    without speech cannot read it."""
    for index, message in enumerate(conversation.messages):
        if message.speech_id is not None and not message.text:
            param = f"messages[{index}].audio"
            raise UnsupportedParameter(
                f"{param} is not supported: this model does not know "
                "earlier speech; send its transcript as content",
                param=param,
            )


def list_unused(request: GenerationRequest, used: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """Lists the fields of the request that an engine can ignore, because they do not change the answer.
    `used`: the fields among them that this engine does not ignore."""
    unused = [PROMPT_CACHE_KEY] if request.vendor_options.prompt_cache_key is not None else []
    unused += [EXTRA_HEADERS] if request.vendor_options.extra_headers else []
    constraint = request.output.constraint
    if constraint is not None and constraint.declared is not None:
        unused += _list_schema_fields(constraint.declared)
    for prompt in request.prompts:
        if isinstance(prompt, Conversation):
            unused += _list_vendor_fields(prompt)
    return tuple(name for name in dict.fromkeys(unused) if name not in used) if unused else ()


def _list_schema_fields(declaration: SchemaDeclaration) -> Iterator[str]:
    """Yields the fields of a schema's declaration that only a vendor's model reads: its name and
    description."""
    if declaration.name is not None:
        yield SCHEMA_NAME
    if declaration.description is not None:
        yield SCHEMA_DESCRIPTION


def list_cache_marks(conversation: Conversation) -> list[str]:
    """Returns the fields with marks up to which a vendor caches the prompt."""
    fields = []
    if conversation.tools is not None and any(
        tool.cache_control is not None for tool in conversation.tools.tools
    ):
        fields.append(TOOL_MARK)
    for message in conversation.messages:
        for part in message.content:
            if isinstance(part, TextContent) and part.cache_control is not None:
                return [*fields, CONTENT_MARK]
    return fields


def _list_vendor_fields(conversation: Conversation) -> Iterator[str]:
    """Yields the fields of messages and tools that only a vendor reads: marks for its cache, and what it
    returned in an earlier answer."""
    yield from list_cache_marks(conversation)
    if conversation.original is not None:
        yield from conversation.original.names
    for message in conversation.messages:
        if message.thinking_blocks:
            yield THINKING_BLOCKS
        if message.tool_calls and any(call.signature is not None for call in message.tool_calls):
            yield CALL_SIGNATURE
        if message.speech_id is not None:
            yield SPEECH_ID
