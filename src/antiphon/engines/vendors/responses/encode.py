"""Translates a conversation for OpenAI's Responses API.

The vendor stores nothing: each request has the whole conversation, with the sealed reasoning of its earlier
answers.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from antiphon.domain.messages import (
    CacheControl,
    Content,
    MediaContent,
    MediaKind,
    Message,
    Role,
    TextContent,
    ToolCall,
    ToolChoice,
    Tools,
)
from antiphon.domain.request import ConstraintKind, Conversation, GenerationRequest, Reasoning
from antiphon.domain.values import replace
from antiphon.domain.vendor_fields import (
    CONTENT_MARK,
    EXTRA_HEADERS,
    PROMPT_CACHE_KEY,
    SCHEMA_DESCRIPTION,
    SCHEMA_NAME,
    THINKING_BLOCKS,
    list_unused,
    require_transcripts,
)
from antiphon.engines.vendors.base import Attributes, UpstreamCall, VendorModel
from antiphon.engines.vendors.caller_extras import add_extra_fields, read_extra_headers
from antiphon.engines.vendors.openai.encode import CACHE_CONTROL, FILE_NAME, encode_schema
from antiphon.engines.vendors.parameters import (
    REASONING_SUMMARY,
    list_sampling_options,
    require_no_names,
    require_supported,
)
from antiphon.errors import UnsupportedParameter
from antiphon.wire.placed_blocks import BlockPlace, KeptReasoning, interleave
from antiphon.wire.responses import LIFETIMES, LOGPROBS, SEALED

PARAMETERS = frozenset(
    "temperature top_p max_tokens logprobs tools tool_choice parallel_tool_calls response_format "
    "reasoning_effort verbosity service_tier prompt_cache_key".split()
)
"""The parameters of the Responses API, by their names in chats."""

EXTRA_PARAMETERS = frozenset(("presence_penalty", "frequency_penalty", CACHE_CONTROL))
"""The parameters beyond them that this format can carry. Open Responses has the penalties."""

ALWAYS_USED = frozenset((EXTRA_HEADERS, SCHEMA_NAME, SCHEMA_DESCRIPTION, THINKING_BLOCKS))
"""Fields that local engines ignore, but that this format has. Foreign blocks are named one by one."""

NO_EFFORT = "none"

NO_PARAMETERS = {"type": "object", "properties": {}}

JSON = msgspec.json.Encoder()

Body = dict[str, Any]


def encode_conversation(
    request: GenerationRequest, prompt: Conversation, model: VendorModel, attributes: Attributes
) -> UpstreamCall:
    """Translates a request. Raises a RequestError that names the field that the vendor lacks."""
    takes = model.extra_parameters & EXTRA_PARAMETERS
    supported = require_supported(request, PARAMETERS, replace(model, extra_parameters=takes))
    require_transcripts(prompt)
    require_no_names(prompt)
    ignored: list[str] = []
    body: Body = {"model": model.name, "input": list(_encode_items(prompt, model, ignored)), "store": False}
    include: list[str] = []
    reasoning, reasons = _encode_reasoning(prompt.reasoning, model)
    if reasoning:
        body["reasoning"] = reasoning
    if reasons:
        include.append(SEALED)
    if prompt.tools is not None and prompt.tools.tools:
        body |= _encode_tools(prompt.tools)
    output, options = request.output, request.vendor_options
    if output.max_tokens is not None:
        body["max_output_tokens"] = output.max_tokens
    if output.logprobs is not None:
        include.append(LOGPROBS)
        body["top_logprobs"] = output.logprobs
    if include:
        body["include"] = include
    if text := _encode_text_options(request, supported):
        body["text"] = text
    for name in list_sampling_options(request.sampling, supported):
        body[name] = getattr(request.sampling, name)
    for name in ("service_tier", PROMPT_CACHE_KEY):
        if (value := getattr(options, name)) and name in supported:
            body[name] = value
    if attributes.end_user is not None:
        body["user"] = attributes.end_user
    if not request.is_buffered:
        body["stream"] = True
    for name in body.keys() & model.renames.keys():
        body[model.renames[name]] = body.pop(name)
    body |= model.body
    add_extra_fields(body, request, model)
    used = ALWAYS_USED | (supported & {PROMPT_CACHE_KEY})
    if CACHE_CONTROL in takes:
        used |= {CONTENT_MARK}
    return UpstreamCall(
        "/responses",
        JSON.encode(body),
        is_streamed=not request.is_buffered,
        headers=read_extra_headers(request, model),
        ignored=(*list_unused(request, used), *dict.fromkeys(ignored)),
    )


def _encode_reasoning(reasoning: Reasoning, model: VendorModel) -> tuple[Body, bool]:
    """Translates the options of reasoning. Also returns whether the model can reason: others refuse to seal
    their reasoning, and to summarise it."""
    effort = reasoning.effort
    reasons = model.profile.reasoning is True or effort not in (None, NO_EFFORT) or reasoning.is_required
    body: Body = {} if effort is None else {"effort": effort}
    has_summary = reasons and effort != NO_EFFORT and reasoning.shown
    if has_summary and REASONING_SUMMARY not in model.refused_parameters:
        body["summary"] = "auto"
    return body, reasons


# --- items --------------------------------------------------------------------------------------------------


def _encode_items(prompt: Conversation, model: VendorModel, ignored: list[str]) -> Iterator[Body]:
    """Yields the items of a conversation. Adds the names of parts that the format cannot express to
    `ignored`."""
    takes_marks = CACHE_CONTROL in model.extra_parameters
    for index, message in enumerate(prompt.messages):
        if message.role is Role.ASSISTANT:
            yield from _encode_assistant(message, index, model, ignored)
        elif message.role is Role.TOOL:
            yield {
                "type": "function_call_output",
                "call_id": message.tool_call_id,
                "output": _encode_content(message, takes_marks),
            }
        else:
            content = _encode_content(message, takes_marks)
            yield {"type": "message", "role": str(message.role), "content": content}


def _encode_assistant(message: Message, index: int, model: VendorModel, ignored: list[str]) -> Iterator[Body]:
    """Yields the items of an earlier answer: reasoning, text and calls in the order in which they were
    made, which the vendor requires."""
    for part in message.content:
        if isinstance(part, MediaContent):
            raise UnsupportedParameter(
                f"{part.field}: this vendor takes images only from users and tools", param=part.field
            )
    kept = list(_read_blocks(message.thinking_blocks, model.provider))
    if len(kept) < len(message.thinking_blocks):
        ignored.append(THINKING_BLOCKS)
    if message.reasoning and not kept and model.reasoning_field is not None:
        text = {"type": "reasoning_text", "text": message.reasoning}
        item: Body = {"type": "reasoning", "id": f"rs_{index}", "summary": [], "content": [text]}
        kept.append((BlockPlace(), item))
    elif message.reasoning and not kept:
        ignored.append(f"messages[].{message.reasoning_field}")
    for piece in interleave(message.text, message.tool_calls, kept):
        if isinstance(piece, str):
            yield {"type": "message", "role": "assistant", "content": piece}
        elif isinstance(piece, ToolCall):
            yield {
                "type": "function_call",
                "call_id": piece.id,
                "name": piece.name,
                "arguments": piece.arguments,
            }
        else:
            yield piece


def _read_blocks(blocks: Iterable[Mapping[str, object]], provider: str) -> Iterator[tuple[BlockPlace, Body]]:
    """Yields the items of reasoning that this provider made, with their places. Another one cannot open
    them, and refuses the request."""
    for block in blocks:
        try:
            kept = msgspec.convert(block, KeptReasoning)
        except msgspec.ValidationError:
            continue
        if kept.provider == provider:
            summary = [{"type": "summary_text", "text": text} for text in kept.summary]
            yield (
                kept.after,
                {
                    "type": "reasoning",
                    "id": kept.id,
                    "summary": summary,
                    "encrypted_content": kept.encrypted_content,
                },
            )


def _encode_content(message: Message, takes_marks: bool) -> object:
    """Translates the content of a message: a text, or parts."""
    parts = message.content if takes_marks else message.mixed_content
    return [_encode_part(part, takes_marks) for part in parts] if parts else message.text


def _encode_part(part: Content, takes_marks: bool) -> Body:
    """Translates one part. Raises UnsupportedParameter for a recording."""
    if isinstance(part, TextContent):
        encoded: Body = {"type": "input_text", "text": part.text}
        return encoded | _encode_mark(part.cache_control) if takes_marks else encoded
    if part.kind is MediaKind.DOCUMENT:
        return {
            "type": "input_file",
            "filename": FILE_NAME,
            "file_data": f"data:{part.media_type};base64,{part.data}",
        }
    if part.kind is not MediaKind.IMAGE:
        raise UnsupportedParameter(f"{part.field}: this vendor takes no recordings", param=part.field)
    url = part.url or f"data:{part.media_type};base64,{part.data}"
    return {"type": "input_image", "image_url": url, "detail": part.detail or "auto"}


def _encode_mark(mark: CacheControl | None) -> Body:
    """Translates a mark for the vendor's cache. Returns an empty object if there is none."""
    if mark is None:
        return {}
    lifetime = LIFETIMES.get(mark.lifetime or "")
    return {"prompt_cache_breakpoint": {"mode": "explicit"} | ({"ttl": lifetime} if lifetime else {})}


# --- tools and the form of the answer -----------------------------------------------------------------------


def _encode_tools(tools: Tools) -> Body:
    """Translates the tools, and the choice among them. Without `strict`, this API changes the schemas."""
    body: Body = {
        "tools": [
            {
                "type": "function",
                "name": tool.name,
                "parameters": NO_PARAMETERS if tool.parameters is None else tool.parameters,
                "strict": tool.strict,
            }
            | ({} if tool.description is None else {"description": tool.description})
            for tool in tools.tools
        ]
    }
    if tools.allowed is None:
        if tools.choice is not ToolChoice.AUTO:
            body["tool_choice"] = str(tools.choice)
    else:
        functions = [{"type": "function", "name": name} for name in sorted(tools.allowed)]
        if tools.choice is ToolChoice.REQUIRED and len(functions) == 1:
            body["tool_choice"] = functions[0]
        else:
            body["tool_choice"] = {"type": "allowed_tools", "mode": str(tools.choice), "tools": functions}
    if not tools.parallel:
        body["parallel_tool_calls"] = False
    return body


def _encode_text_options(request: GenerationRequest, supported: frozenset[str]) -> Body:
    """Translates the form and the length of the text. Raises InvalidValue for a schema that is not JSON."""
    text: Body = {}
    constraint, verbosity = request.output.constraint, request.vendor_options.verbosity
    if constraint is not None and constraint.kind is ConstraintKind.JSON_OBJECT:
        text["format"] = {"type": "json_object"}
    elif constraint is not None:
        text["format"] = {"type": "json_schema"} | encode_schema(constraint)
    if verbosity is not None and "verbosity" in supported:
        text["verbosity"] = verbosity
    return text
