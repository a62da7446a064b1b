"""Translates a request to Gemini's generateContent, and the messages of its conversation to contents."""

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from antiphon.domain.messages import (
    Content,
    MediaContent,
    Message,
    Role,
    TextContent,
    Tool,
    ToolCall,
    ToolChoice,
    Tools,
)
from antiphon.domain.request import (
    Constraint,
    ConstraintKind,
    Conversation,
    GenerationRequest,
    Reasoning,
    SamplingOptions,
)
from antiphon.domain.values import replace
from antiphon.domain.vendor_fields import (
    PROMPT_CACHE_KEY,
    SCHEMA_DESCRIPTION,
    SCHEMA_NAME,
    SPEECH_ID,
    THINKING_BLOCKS,
    list_cache_marks,
)
from antiphon.engines.vendors.base import UpstreamCall, VendorModel
from antiphon.engines.vendors.caller_extras import add_extra_fields, read_extra_headers
from antiphon.engines.vendors.gemini.decode import encode_part, read_blocks, split_text
from antiphon.engines.vendors.parameters import list_sampling_options, require_supported
from antiphon.errors import InvalidValue, UnsupportedParameter

Body = dict[str, Any]

INSTRUCTIONS = frozenset((Role.SYSTEM, Role.DEVELOPER))

RESOLUTIONS = {
    "low": "MEDIA_RESOLUTION_LOW",
    "medium": "MEDIA_RESOLUTION_MEDIUM",
    "high": "MEDIA_RESOLUTION_HIGH",
}
"""Gemini's resolutions of an image, by OpenAI's values of `detail`."""

MEDIA_TYPES = {
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
    ".gif": "image/gif",
    ".heic": "image/heic",
    ".heif": "image/heif",
}
"""The media type of an address, by the suffix of its path. Gemini detects other types itself."""

read_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
"""Checks that a text is a JSON object."""

SAMPLING = {
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "seed": "seed",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
}
"""Gemini's names of sampling options."""

PARAMETERS = frozenset(SAMPLING) | frozenset(
    "max_tokens n stop logprobs response_format reasoning_effort thinking_token_budget tools tool_choice "
    "service_tier".split()
)
"""The parameters of generateContent."""

LEVELS = {
    "minimal": "MINIMAL",
    "low": "LOW",
    "medium": "MEDIUM",
    "high": "HIGH",
    "xhigh": "XHIGH",
}
"""Gemini's levels of thinking, by efforts."""

NO_EFFORT = "none"

SERVICE_TIERS = {"default": "standard", "standard": "standard", "flex": "flex", "priority": "priority"}
"""Gemini's tiers, by OpenAI's names. For `auto`, no tier is sent."""

SEEDS = range(-(1 << 31), 1 << 31)
"""Seeds that Gemini takes."""

RESOURCES = ("models/", "tunedModels/")
"""The collections of models, which begin a model's full name. The first one is the default."""

JSON = msgspec.json.Encoder()


def encode_messages(messages: Sequence[Message], ignored: list[str]) -> Body:
    """Returns `systemInstruction` and `contents`. Adds the names of ignored parts to `ignored`. Raises a
    RequestError that names the part of a message that Gemini cannot express."""
    instruction_count = next(
        (index for index, message in enumerate(messages) if message.role not in INSTRUCTIONS), len(messages)
    )
    if instruction_count == len(messages):
        raise InvalidValue(
            "messages must contain one that is not an instruction: Gemini requires it", param="messages"
        )
    encoder = _ContentsEncoder(ignored)
    for index, message in enumerate(messages[instruction_count:], instruction_count):
        encoder.add(message, f"messages[{index}]")
    body: Body = {"contents": encoder.contents}
    if instruction_count:
        parts = [
            part
            for index, message in enumerate(messages[:instruction_count])
            for part in _encode_instruction(message, f"messages[{index}]")
        ]
        body["systemInstruction"] = {"parts": parts}
    return body


def _encode_instruction(message: Message, message_path: str) -> list[Body]:
    """Translates one system or developer message. Raises UnsupportedParameter if it has more than text."""
    _require_no_name(message, message_path)
    for part in message.mixed_content:
        if isinstance(part, MediaContent):
            raise UnsupportedParameter(
                f"{part.field}: Gemini takes only text in instructions; send it as the user", param=part.field
            )
    return [{"text": message.text}]


def _require_no_name(message: Message, message_path: str) -> None:
    """Raises UnsupportedParameter for the name of an author, which Gemini does not support."""
    if message.name is not None:
        param = f"{message_path}.name"
        raise UnsupportedParameter(f"{param} is not supported by Gemini; leave it out", param=param)


class _ContentsEncoder:
    """Translates messages in their order. Successive messages of one role become one content."""

    def __init__(self, ignored: list[str]) -> None:
        self.contents: list[Body] = []
        self._ignored = ignored
        self._function_names: dict[str, str] = {}
        """The function of each call so far, by the call's id."""
        self._last_role: Role | None = None

    def add(self, message: Message, message_path: str) -> None:
        """Adds one message."""
        match message.role:
            case Role.USER:
                _require_no_name(message, message_path)
                self._append(message.role, "user", _encode_content(message))
            case Role.ASSISTANT:
                _require_no_name(message, message_path)
                self._append(message.role, "model", self._encode_answer(message, message_path))
            case Role.TOOL:
                self._append(message.role, "user", [self._encode_result(message, message_path)])
            case _:  # Gemini takes instructions only before all other messages
                self._append(Role.USER, "user", _encode_instruction(message, message_path))

    def _append(self, role: Role, name: str, parts: list[Body]) -> None:
        """Adds parts to the last content if the last message had the same role. If not, adds a new content.
        `name`: Gemini's name of the role."""
        if role is self._last_role:
            self.contents[-1]["parts"] += parts
        else:
            self.contents.append({"role": name, "parts": parts})
        self._last_role = role

    def _encode_answer(self, message: Message, message_path: str) -> list[Body]:
        """Translates the assistant's message: signed thoughts, the text, and the calls."""
        blocks = list(read_blocks(message.thinking_blocks))
        parts = [encode_part(block.part) for block in blocks if block is not None and block.part.thought]
        signed = [block for block in blocks if block is not None and not block.part.thought]
        text = split_text(message.text, signed) if not message.mixed_content else None
        if None in blocks or (text is None and signed):
            self._ignored.append(THINKING_BLOCKS)
        if message.reasoning and not parts:
            self._ignored.append(f"messages[].{message.reasoning_field}")
        if text is None:
            text = _encode_content(message)
        parts += text
        for index, call in enumerate(message.tool_calls):
            self._function_names[call.id] = call.name
            parts.append(_encode_call(call, f"{message_path}.tool_calls[{index}]"))
        return parts or [{"text": ""}]

    def _encode_result(self, message: Message, message_path: str) -> Body:
        """Translates the result of a call. Raises InvalidValue if there is no such call before it."""
        name = self._function_names.get(message.tool_call_id or "")
        if name is None:
            raise InvalidValue(
                f"{message_path}.tool_call_id: no call before this message has this id",
                param=f"{message_path}.tool_call_id",
            )
        if message.name != name:
            _require_no_name(message, message_path)
        result: Body = {"id": message.tool_call_id, "name": name}
        media = [part for part in message.mixed_content if isinstance(part, MediaContent)]
        result["response"] = {} if media and not message.text else _encode_output(message.text)
        if media:
            result["parts"] = [_encode_result_media(part) for part in media]
        return {"functionResponse": result}


def _encode_content(message: Message) -> list[Body]:
    """Translates the text and the media of a message."""
    return [_encode_part(part) for part in message.mixed_content or (TextContent(message.text),)]


def _encode_part(part: Content) -> Body:
    """Translates one part of a message."""
    if isinstance(part, TextContent):
        return {"text": part.text}
    encoded = _encode_media(part)
    if part.detail not in (None, "auto"):
        resolution = RESOLUTIONS.get(part.detail)
        if resolution is None:
            raise _build_detail_refusal(part, f"send {', '.join(RESOLUTIONS)} or auto")
        encoded["mediaResolution"] = {"level": resolution}
    return encoded


def _encode_media(part: MediaContent) -> Body:
    """Translates an image or a recording: its bytes, or its address."""
    if not part.url:
        return {"inlineData": {"mimeType": part.media_type, "data": part.data}}
    media_type = MEDIA_TYPES.get(PurePosixPath(urlsplit(part.url).path).suffix.lower())
    return {"fileData": {"fileUri": part.url} | ({"mimeType": media_type} if media_type else {})}


def _encode_result_media(part: MediaContent) -> Body:
    """Translates an image or a recording in the result of a call, which has no resolution of its own."""
    if part.detail not in (None, "auto"):
        raise _build_detail_refusal(part, "Gemini has none in results of tools; leave it out")
    return _encode_media(part)


def _build_detail_refusal(part: MediaContent, remedy: str) -> UnsupportedParameter:
    """Builds the error for a resolution that Gemini lacks."""
    param = f"{part.field}.detail"
    return UnsupportedParameter(f"{param} {part.detail} is not supported: {remedy}", param=param)


def _encode_call(call: ToolCall, message_path: str) -> Body:
    """Translates one call. Raises InvalidValue if its arguments are not a JSON object."""
    arguments = call.arguments.strip() or "{}"
    try:
        read_object(arguments)
    except (msgspec.MsgspecError, UnicodeError):
        param = f"{message_path}.function.arguments"
        raise InvalidValue(
            f"{param} must be a JSON object: Gemini takes no other text", param=param
        ) from None
    part: Body = {"functionCall": {"id": call.id, "name": call.name, "args": msgspec.Raw(arguments.encode())}}
    return part | ({"thoughtSignature": call.signature} if call.signature is not None else {})


def _encode_output(text: str) -> object:
    """Returns the result of a call as the JSON object that Gemini requires. A text that is not an object
    becomes the field `output`."""
    try:
        read_object(text)
    except (msgspec.MsgspecError, UnicodeError):
        return {"output": text}
    return msgspec.Raw(text.encode())


def build_path(model: str, method: str) -> str:
    """Returns the path of a method of a model. The model's name is quoted, so that it is one segment."""
    collection = next((resource for resource in RESOURCES if model.startswith(resource)), RESOURCES[0])
    return f"/{collection}{quote(model.removeprefix(collection), safe='')}:{method}"


def encode_request(request: GenerationRequest, model: VendorModel) -> UpstreamCall:
    """Translates a request. Raises a RequestError that names the field that Gemini lacks."""
    prompt = request.prompts[0]
    if not isinstance(prompt, Conversation):
        raise UnsupportedParameter(
            f"prompt is not supported by the model {model.name} of the provider {model.provider}, which "
            "takes only chats; send messages",
            param="prompt",
        )
    # This format cannot express extra parameters, even if the operator's settings allow them.
    supported = require_supported(request, PARAMETERS, replace(model, extra_parameters=frozenset()))
    ignored = [] if request.vendor_options.prompt_cache_key is None else [PROMPT_CACHE_KEY]
    ignored += list_cache_marks(prompt)
    ignored += prompt.original.names if prompt.original is not None else ()
    if any(message.speech_id is not None for message in prompt.messages):
        ignored.append(SPEECH_ID)
    body = encode_messages(prompt.messages, ignored)
    body |= _encode_tools(prompt.tools) if prompt.tools is not None else {}
    config = _encode_config(request, prompt, model, ignored)
    config |= _encode_sampling(request.sampling, supported)
    if config:
        body["generationConfig"] = config
    if (tier := _encode_tier(request.vendor_options.service_tier)) is not None:
        body["serviceTier"] = tier
    body |= model.body
    add_extra_fields(body, request, model)
    headers = read_extra_headers(request, model)
    method = "generateContent" if request.is_buffered else "streamGenerateContent?alt=sse"
    path = build_path(model.name, method)
    ignored_names = tuple(dict.fromkeys(ignored))
    return UpstreamCall(path, JSON.encode(body), not request.is_buffered, headers, ignored_names)


def _encode_config(
    request: GenerationRequest, prompt: Conversation, model: VendorModel, ignored: list[str]
) -> Body:
    """Returns `generationConfig`."""
    output = request.output
    options: Body = {
        "maxOutputTokens": output.max_tokens,
        "candidateCount": output.choices if output.choices > 1 else None,
        "stopSequences": output.stop or None,
        "thinkingConfig": _encode_reasoning(prompt.reasoning, model) or None,
    }
    config = {name: value for name, value in options.items() if value is not None}
    if output.logprobs is not None:
        config["responseLogprobs"] = True
        if output.logprobs:
            config["logprobs"] = output.logprobs
    if output.constraint is not None:
        config |= _encode_constraint(output.constraint, ignored)
    return config


def _encode_sampling(sampling: SamplingOptions, supported: frozenset[str]) -> Body:
    """Returns the sampling options of the caller. Raises InvalidValue for a seed that is too large."""
    if sampling.seed is not None and sampling.seed not in SEEDS:
        raise InvalidValue(f"seed must be from {SEEDS[0]} to {SEEDS[-1]} for Gemini", param="seed")
    sent_names = list_sampling_options(sampling, supported if sampling.top_k else supported - {"top_k"})
    return {SAMPLING[name]: getattr(sampling, name) for name in sent_names}


def _encode_constraint(constraint: Constraint, ignored: list[str]) -> Body:
    """Translates the output constraint. Raises InvalidValue for a schema that is not JSON."""
    config: Body = {"responseMimeType": "application/json"}
    if constraint.kind is not ConstraintKind.JSON_SCHEMA:
        return config
    declared = constraint.declared
    try:
        schema = msgspec.json.decode(constraint.source if declared is None else declared.source)
    except msgspec.DecodeError:
        raise InvalidValue(f"{constraint.field} is not JSON", param=constraint.field) from None
    if declared is not None:
        for name, keyword, value in (
            (SCHEMA_NAME, "title", declared.name),
            (SCHEMA_DESCRIPTION, "description", declared.description),
        ):
            if value is not None and (not isinstance(schema, dict) or schema.get(keyword, value) != value):
                ignored.append(name)
            elif value is not None:
                schema = {keyword: value} | schema
    return config | {"responseJsonSchema": schema}


def _encode_reasoning(reasoning: Reasoning, model: VendorModel) -> Body:
    """Returns `thinkingConfig`, which only reasoning models accept. Raises a RequestError for an effort that
    Gemini lacks, or for an effort together with a budget."""
    effort, budget, names = reasoning.effort, reasoning.budget, reasoning.field_names
    config: Body = {}
    if effort is not None and budget is not None:
        raise UnsupportedParameter(
            f"{names.budget} is not supported by Gemini together with {names.effort}; send one of them",
            param=names.budget,
        )
    if effort == NO_EFFORT:
        budget = 0
    elif effort is not None:
        if effort not in LEVELS:
            accepted_values = ", ".join((names.off, *LEVELS))
            raise UnsupportedParameter(
                f"{names.effort} {effort[:32]} is not supported by Gemini: send {accepted_values}",
                param=names.effort,
            )
        config["thinkingLevel"] = LEVELS[effort]
    if budget is not None:
        config["thinkingBudget"] = budget
    if reasoning.shown and budget != 0 and (config or model.profile.reasoning or reasoning.is_required):
        config["includeThoughts"] = True
    return config


def _encode_tools(tools: Tools) -> Body:
    """Returns `tools` and, where the caller chooses among them, `toolConfig`."""
    body: Body = {"tools": [{"functionDeclarations": [_encode_tool(tool) for tool in tools.tools]}]}
    mode = _choose_mode(tools)
    if mode is not None:
        calling_config: Body = {"mode": mode}
        if tools.allowed is not None and tools.choice is not ToolChoice.NONE:
            calling_config["allowedFunctionNames"] = sorted(tools.allowed)
        body["toolConfig"] = {"functionCallingConfig": calling_config}
    return body


def _choose_mode(tools: Tools) -> str | None:
    """Returns the mode of function calling; None for Gemini's default, AUTO. In the modes VALIDATED and ANY,
    calls match their schemas. VALIDATED lets the model choose, like AUTO, but also accepts names of
    functions."""
    if tools.choice is ToolChoice.NONE:
        return "NONE"
    if tools.choice is ToolChoice.REQUIRED:
        return "ANY"
    is_strict = any(tool.strict for tool in tools.tools)
    return "VALIDATED" if is_strict or tools.allowed is not None else None


def _encode_tool(tool: Tool) -> Body:
    """Translates one tool. The schema is the caller's own."""
    declaration: Body = {"name": tool.name}
    if tool.description is not None:
        declaration["description"] = tool.description
    if tool.parameters is not None:
        declaration["parametersJsonSchema"] = tool.parameters
    return declaration


def _encode_tier(tier: str | None) -> str | None:
    """Returns Gemini's name of a service tier; None if no tier is sent. Raises UnsupportedParameter for a
    tier that Gemini lacks."""
    if tier is None or tier == "auto":
        return None
    if tier not in SERVICE_TIERS:
        accepted_values = ", ".join(("auto", *SERVICE_TIERS))
        raise UnsupportedParameter(
            f"service_tier {tier[:32]} is not supported by Gemini: send {accepted_values}",
            param="service_tier",
        )
    return SERVICE_TIERS[tier]
