"""Translates a request to OpenAI's wire format."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec

from antiphon.domain.messages import (
    CacheControl,
    Content,
    MediaKind,
    Message,
    Role,
    TextContent,
    Tool,
    ToolCall,
    ToolChoice,
    Tools,
)
from antiphon.domain.request import (
    NO_VENDOR_OPTIONS,
    SPEECH,
    Constraint,
    ConstraintKind,
    Conversation,
    GenerationRequest,
    Output,
    Prompt,
    RawPrompt,
    SamplingOptions,
    Truncation,
    VendorOptions,
)
from antiphon.domain.vendor_fields import PROMPT_CACHE_KEY, list_cache_marks
from antiphon.engines.vendors.base import Attributes, UpstreamCall, VendorModel
from antiphon.engines.vendors.caller_extras import add_extra_fields, read_extra_headers
from antiphon.engines.vendors.parameters import (
    CHOSEN_TOOLS,
    CONSTRAINT_NAMES,
    NO_CONVERSATION_OPTIONS,
    NO_OUTPUT_OPTIONS,
    get_conversation_options,
    get_output_options,
    list_sampling_options,
    require_supported,
)
from antiphon.errors import InvalidValue, UnsupportedParameter

COMMON_PARAMETERS = frozenset(
    "temperature top_p presence_penalty frequency_penalty logit_bias seed max_tokens n stop logprobs".split()
)

CHAT_PARAMETERS = COMMON_PARAMETERS | frozenset(
    "response_format tools tool_choice parallel_tool_calls reasoning_effort verbosity service_tier "
    "prompt_cache_key modalities audio".split()
)
"""The parameters of chats in OpenAI's format."""

TEXT_PARAMETERS = COMMON_PARAMETERS | frozenset(("echo", "best_of", "suffix", "prompt (token ids)"))
"""The parameters of text completions in OpenAI's format."""

UNREADABLE_RESULTS = frozenset(
    "guided_whitespace_pattern logprob_token_ids prompt_logprobs return_token_ids return_tokens_as_token_ids "
    "stream_options.continuous_usage_stats".split()
)
"""Parameters of vLLM and similar servers whose results this server cannot read. They are refused even if a
provider takes them."""

CACHE_CONTROL = "cache_control"
"""The field of cache marks, which some servers of this format take."""

AUDIO_FORMATS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}

FILE_NAME = "document.pdf"
"""The name of a document. The vendor requires one; the caller's is in the text before it, if there is one."""

_get_message_parts = attrgetter(
    "name", "tool_calls", "tool_call_id", "reasoning", "content", "thinking_blocks", "speech_id"
)
"""Returns the values of the fields that a plain message does not have."""

NO_MESSAGE_PARTS = _get_message_parts(Message(Role.USER, ""))

JSON = msgspec.json.Encoder()

read_json = msgspec.json.decode

Body = dict[str, Any]


def encode_request(request: GenerationRequest, model: VendorModel, attributes: Attributes) -> UpstreamCall:
    """Translates a request. Raises a RequestError that names the field that the vendor lacks."""
    prompt = request.prompts[0]
    is_chat = isinstance(prompt, Conversation)
    supported = require_supported(
        request, CHAT_PARAMETERS if is_chat else TEXT_PARAMETERS, model, UNREADABLE_RESULTS
    )
    ignored: list[str] = []
    body: Body = {"model": model.name}
    if isinstance(prompt, Conversation):
        _add_conversation(body, prompt, model, ignored)
        path = "/chat/completions"
    else:
        body["prompt"] = _encode_prompts(request.prompts)
        if not prompt.add_special:
            body["add_special_tokens"] = False
        path = "/completions"
    if request.output.max_tokens is not None:
        body[model.token_limit_name if is_chat else "max_tokens"] = request.output.max_tokens
    if get_output_options(request.output) != NO_OUTPUT_OPTIONS:
        _add_output(body, request.output, model, supported, is_chat)
    _add_sampling(body, request.sampling, supported)
    if request.vendor_options is not NO_VENDOR_OPTIONS:
        _add_vendor_options(body, request.vendor_options, supported)
        if request.vendor_options.prompt_cache_key is not None and PROMPT_CACHE_KEY not in supported:
            ignored.append(PROMPT_CACHE_KEY)
    if request.cache_salt and "cache_salt" in supported:
        body["cache_salt"] = request.cache_salt
    if request.priority and "priority" in supported:
        body["priority"] = request.priority
    if attributes.end_user is not None:
        body["user"] = attributes.end_user
    is_streamed = not request.is_buffered
    if is_streamed:
        body["stream"] = True
        if model.asks_usage:
            body["stream_options"] = {"include_usage": True}
    for name in body.keys() & model.renames.keys():
        body[model.renames[name]] = body.pop(name)
    body |= model.body
    headers: tuple[tuple[str, str], ...] = ()
    if request.vendor_options is not NO_VENDOR_OPTIONS:
        add_extra_fields(body, request, model)
        headers = read_extra_headers(request, model)
    return UpstreamCall(path, JSON.encode(body), is_streamed, headers, tuple(ignored))


def _add_conversation(body: Body, prompt: Conversation, model: VendorModel, ignored: list[str]) -> None:
    """Adds the messages, the tools and the options of a chat. Adds the names of parts that the vendor's
    format cannot express to `ignored`."""
    if prompt.reasoning.is_required and model.reasoning_field is None:
        param = prompt.reasoning.field_names.effort
        raise UnsupportedParameter(
            f"{param} is not supported: the provider {model.provider} shows no reasoning; leave it out",
            param=param,
        )
    body["messages"] = [
        {"role": message.role, "content": message.text}
        if _get_message_parts(message) == NO_MESSAGE_PARTS
        else _encode_message(message, f"messages[{index}]", model, ignored)
        for index, message in enumerate(prompt.messages)
    ]
    if get_conversation_options(prompt) != NO_CONVERSATION_OPTIONS:
        _add_chat_options(body, prompt, model)
    if CACHE_CONTROL not in model.extra_parameters:
        ignored += list_cache_marks(prompt)
    if prompt.original is not None:
        ignored += prompt.original.names


def _encode_message(message: Message, message_path: str, model: VendorModel, ignored: list[str]) -> Body:
    """Translates one message. Adds the names of parts that the vendor's format cannot express to
    `ignored`."""
    encoded: Body = {"role": str(message.role), "content": message.text}
    takes_marks = CACHE_CONTROL in model.extra_parameters
    if parts := message.content if takes_marks else message.mixed_content:
        encoded["content"] = [_encode_part(part, takes_marks) for part in parts]
    if message.name is not None:
        encoded["name"] = message.name
    if message.tool_call_id is not None:
        encoded["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        keeps_signature = "extra_content" in model.extra_parameters
        encoded["tool_calls"] = [_encode_call(call, keeps_signature) for call in message.tool_calls]
        if not keeps_signature and any(call.signature is not None for call in message.tool_calls):
            ignored.append(f"{message_path}.tool_calls.extra_content")
        encoded["content"] = encoded["content"] or None
    _add_vendor_state(encoded, message, message_path, model, ignored)
    return encoded


def _add_vendor_state(
    encoded: Body, message: Message, message_path: str, model: VendorModel, ignored: list[str]
) -> None:
    """Adds the reasoning and the speech of an earlier answer, which the vendor gets back unchanged. Adds the
    names of those that the vendor does not take to `ignored`."""
    if message.reasoning and model.reasoning_field is not None:
        encoded[model.reasoning_field] = message.reasoning
    elif message.reasoning:
        ignored.append(f"{message_path}.{message.reasoning_field}")
    if message.thinking_blocks and "thinking_blocks" in model.extra_parameters:
        encoded["thinking_blocks"] = list(message.thinking_blocks)
    elif message.thinking_blocks:
        ignored.append(f"{message_path}.thinking_blocks")
    if message.speech_id is not None and model.profile.gives_speech:
        encoded |= {"audio": {"id": message.speech_id}, "content": encoded["content"] or None}
    elif message.speech_id is not None:
        ignored.append(f"{message_path}.audio")


def _encode_part(part: Content, takes_marks: bool) -> Body:
    """Translates one part of a message. Raises UnsupportedParameter for a recording in a format that OpenAI
    lacks."""
    if isinstance(part, TextContent):
        return {"type": "text", "text": part.text} | (_encode_mark(part.cache_control) if takes_marks else {})
    if part.kind is MediaKind.DOCUMENT:
        data = f"data:{part.media_type};base64,{part.data}"
        return {"type": "file", "file": {"filename": FILE_NAME, "file_data": data}}
    if part.kind is MediaKind.IMAGE:
        url = part.url or f"data:{part.media_type};base64,{part.data}"
        detail = {"detail": part.detail} if part.detail else {}
        return {"type": "image_url", "image_url": {"url": url} | detail}
    if part.media_type not in AUDIO_FORMATS:
        raise UnsupportedParameter(
            f"{part.field}: a recording must be wav or mp3, not {part.media_type}", param=part.field
        )
    return {
        "type": "input_audio",
        "input_audio": {"data": part.data, "format": AUDIO_FORMATS[part.media_type]},
    }


def _encode_call(call: ToolCall, keeps_signature: bool) -> Body:
    """Translates one call of the assistant."""
    encoded: Body = {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
    if keeps_signature and call.signature is not None:
        encoded["extra_content"] = {"google": {"thought_signature": call.signature}}
    return encoded


def _encode_prompts(prompts: Sequence[Prompt]) -> object:
    """Translates the prompts of a text completion: one, or a list."""
    encoded = [
        list(prompt.tokens) if prompt.tokens is not None else prompt.text or ""
        for prompt in prompts
        if isinstance(prompt, RawPrompt)
    ]
    return encoded[0] if len(encoded) == 1 else encoded


def _add_chat_options(body: Body, prompt: Conversation, model: VendorModel) -> None:
    """Adds the tools, and the options that have an effect."""
    if prompt.tools is not None:
        takes_marks = CACHE_CONTROL in model.extra_parameters
        body["tools"] = [_encode_tool(tool, takes_marks) for tool in prompt.tools.tools]
        choice = _encode_choice(prompt.tools, model)
        if choice is not None:
            body["tool_choice"] = choice
        if not prompt.tools.parallel and not _requires_one_tool(prompt.tools):
            body["parallel_tool_calls"] = False
    options: Body = {
        "reasoning_effort": prompt.reasoning.effort,
        "chat_template": prompt.template,
        "chat_template_kwargs": prompt.template_values or None,
        "documents": prompt.documents,
        "add_special_tokens": prompt.add_special,
        "add_generation_prompt": None if prompt.generation_prompt else False,
        "continue_final_message": prompt.continues or None,
        "thinking_token_budget": prompt.reasoning.budget,
    }
    body |= {name: value for name, value in options.items() if value is not None}


def _encode_mark(mark: CacheControl | None) -> Body:
    """Translates a mark for the vendor's cache, in Anthropic's form; empty if there is none."""
    if mark is None:
        return {}
    return {CACHE_CONTROL: {"type": "ephemeral"} | ({"ttl": mark.lifetime} if mark.lifetime else {})}


def _encode_tool(tool: Tool, takes_marks: bool) -> Body:
    """Translates one tool. The schema is the caller's own."""
    function: Body = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.parameters is not None:
        function["parameters"] = tool.parameters
    if tool.strict:
        function["strict"] = True
    encoded: Body = {"type": "function", "function": function}
    return encoded | _encode_mark(tool.cache_control) if takes_marks else encoded


def _requires_one_tool(tools: Tools) -> bool:
    """Whether the model must call one tool by its name."""
    return tools.choice is ToolChoice.REQUIRED and tools.allowed is not None and len(tools.allowed) == 1


def _encode_choice(tools: Tools, model: VendorModel) -> object:
    """Translates the choice among the tools; None if the model can choose freely. A provider that refuses
    names gets none: `require_supported` has made sure that all tools are allowed."""
    if tools.allowed is None or CHOSEN_TOOLS in model.refused_parameters:
        return None if tools.choice is ToolChoice.AUTO else str(tools.choice)
    functions = [{"type": "function", "function": {"name": name}} for name in sorted(tools.allowed)]
    if _requires_one_tool(tools):
        return functions[0]
    mode = str(tools.choice)
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": functions}}


def _add_output(
    body: Body, output: Output, model: VendorModel, supported: frozenset[str], is_chat: bool
) -> None:
    """Adds the options of the output but the limit of tokens. `require_supported` has refused those that this
    provider lacks, unless their value has no effect."""
    if output.choices > 1:
        body["n"] = output.choices
    if output.stop:
        body["stop"] = list(output.stop)
    if output.best_of is not None:
        body["best_of"] = output.best_of
    if output.echo:
        body["echo"] = True
    if output.logprobs is not None and is_chat:
        body["logprobs"] = True
        if output.logprobs:
            body["top_logprobs"] = output.logprobs
    elif output.logprobs is not None:
        body["logprobs"] = output.logprobs or 1  # llama-server gives none at all for 0
    if output.constraint is not None:
        body |= _encode_constraint(output.constraint, model)
    options: Body = {
        "stop_token_ids": output.stop_token_ids,
        "bad_words": output.bad_words,
        "suffix": output.suffix,
        "include_stop_str_in_output": output.include_stop and bool(output.stop or output.stop_token_ids),
        "truncate_prompt_tokens": output.truncate_prompt,
    }
    body |= {name: value for name, value in options.items() if value and name in supported}
    if output.show_special:
        body["skip_special_tokens"] = False
    if output.truncate_prompt is not None and output.truncation is Truncation.RIGHT:
        body["truncation_side"] = "right"


def _encode_constraint(constraint: Constraint, model: VendorModel) -> Body:
    """Translates the output constraint. Raises InvalidValue for a schema that is not JSON."""
    name = CONSTRAINT_NAMES[constraint.kind]
    if name in model.renames:
        return {name: constraint.source}
    match constraint.kind:
        case ConstraintKind.JSON_OBJECT:
            return {"response_format": {"type": "json_object"}}
        case ConstraintKind.JSON_SCHEMA:
            return {"response_format": {"type": "json_schema", "json_schema": encode_schema(constraint)}}
        case ConstraintKind.REGEX:
            return {"structured_outputs": {"regex": constraint.source}}
        case ConstraintKind.CHOICE:
            return {"structured_outputs": {"choice": read_json(constraint.source)}}
        case _:
            return {"structured_outputs": {"grammar": constraint.source}}


def encode_schema(constraint: Constraint) -> Body:
    """Translates a schema as the caller declared it."""
    declared = constraint.declared
    source = constraint.source if declared is None else declared.source
    try:
        schema = read_json(source)
    except msgspec.DecodeError:
        raise InvalidValue(f"{constraint.field} is not JSON", param=constraint.field) from None
    encoded: Body = {"name": "answer", "schema": schema}
    if declared is not None:
        encoded |= {"name": declared.name} if declared.name else {}
        encoded |= {"description": declared.description} if declared.description is not None else {}
        encoded |= {"strict": declared.strict} if declared.strict is not None else {}
    return encoded


def _add_sampling(body: Body, sampling: SamplingOptions, supported: frozenset[str]) -> None:
    """Adds the caller's sampling options, all of which the vendor takes, as `require_supported` has
    checked."""
    for name in list_sampling_options(sampling, supported):
        if name == "logit_bias":
            body[name] = {str(token): value for token, value in sampling.logit_bias or ()}
        elif sampling.mirostat is not None and name == "mirostat_target":
            body |= {"mirostat_target": sampling.mirostat.target, "mirostat_lr": sampling.mirostat.rate}
        else:
            body[name] = getattr(sampling, name)


def _add_vendor_options(body: Body, vendor_options: VendorOptions, supported: frozenset[str]) -> None:
    """Adds the options that only vendors have."""
    for name in ("verbosity", "service_tier", PROMPT_CACHE_KEY):
        if (value := getattr(vendor_options, name)) and name in supported:
            body[name] = value
    if vendor_options.prediction is not None:
        body["prediction"] = {"type": "content", "content": vendor_options.prediction.text}
    if SPEECH in vendor_options.modalities:
        body["modalities"] = list(vendor_options.modalities)
    if (audio := vendor_options.audio) is not None:
        body["audio"] = {
            "format": audio.format,
            "voice": {"id": audio.voice} if audio.is_custom else audio.voice,
        }
