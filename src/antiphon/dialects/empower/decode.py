"""Decodes a body of POST /empower/api/v1/chat/completions to a generation request, with the defaults of
Empower's API page."""

from collections.abc import Mapping
from typing import Any

from antiphon.dialects.calls import GenerationCall
from antiphon.dialects.common.body_decoder import BodyDecoder
from antiphon.dialects.common.constraint_fields import UNCONSTRAINED, read_response_format, shorten_names
from antiphon.dialects.common.decode import read_attribution, read_sampling, read_stops
from antiphon.dialects.common.field_table import FieldReport
from antiphon.dialects.common.messages import (
    build_bare_conversation,
    filter_messages,
    has_ignored_parts,
)
from antiphon.dialects.common.request_types import MAX_SEQUENCES, ChatMessage
from antiphon.dialects.common.tools import filter_tools, read_tools
from antiphon.dialects.empower.fields import FIELD_TABLE, EmpowerScope, filter_fields
from antiphon.dialects.empower.wire_types import ChatRequest
from antiphon.domain.messages import Message, Role
from antiphon.domain.request import (
    Conversation,
    GenerationRequest,
    Output,
    Reasoning,
    ReasoningFieldNames,
)
from antiphon.domain.values import replace
from antiphon.errors import InvalidValue, UnsupportedParameter

MAX_TOKENS = 256
"""The default of max_tokens on Empower's page."""

DEFAULTS: Mapping[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
}
"""The default sampling options of Empower's page. A model's own defaults do not change them."""

REASONING_FIELD_NAMES = ReasoningFieldNames("include_thinking")


def filter_chat(fields: dict[str, Any], report: FieldReport) -> dict[str, Any]:
    """Filters the body of a chat. Raises UnsupportedParameter for a logit bias, with the message of Empower's
    service."""
    if fields.get("logit_bias") not in (None, {}):
        raise UnsupportedParameter("logit_bias is not currently supported", param="logit_bias")
    accepted_fields = filter_fields(fields, EmpowerScope.CHAT, report=report)
    return filter_tools(filter_messages(accepted_fields, report), report)


CHAT_BODY = BodyDecoder(
    ChatRequest,
    FIELD_TABLE,
    EmpowerScope.CHAT,
    filter_chat,
    lambda wire: not isinstance(wire.messages, str) and has_ignored_parts(wire),
)


def decode_chat(body: bytes, report_unknown: bool = False, strict: bool = False) -> GenerationCall:
    """Decodes a body of POST /empower/api/v1/chat/completions. `report_unknown`: unknown fields are ignored
    and named instead of refused. `strict`: a schema with a keyword that is not enforced is refused. Raises a
    RequestError."""
    wire, report = CHAT_BODY.decode(body, report_unknown)
    tool_choice = "required" if wire.tool_choice == "any" else wire.tool_choice  # two names of the same
    tools, relaxed = read_tools(wire.tools, tool_choice, wire.parallel_tool_calls, strict)
    relaxed_constraint = next(read_response_format(wire.response_format, strict), UNCONSTRAINED)
    shows_reasoning = bool(wire.include_thinking)
    reasoning = Reasoning(
        shown=shows_reasoning, is_required=shows_reasoning, field_names=REASONING_FIELD_NAMES
    )
    prompts = tuple(
        replace(prompt, tools=tools, reasoning=reasoning) for prompt in _build_prompts(wire.messages)
    )
    choices = wire.n or 1
    if len(prompts) * choices > MAX_SEQUENCES:
        raise InvalidValue(f"messages times n must be at most {MAX_SEQUENCES}", param="messages")
    max_tokens = MAX_TOKENS if wire.max_tokens is None else wire.max_tokens
    output = Output(
        max_tokens=max_tokens,
        is_default_max_tokens=wire.max_tokens is None,
        choices=choices,
        stop=read_stops(wire.stop),
        stop_token_ids=tuple(wire.stop_token_ids or ()),
        constraint=relaxed_constraint.constraint,
    )
    sampling = read_sampling(wire, max_tokens, DEFAULTS)
    return GenerationCall(
        GenerationRequest(wire.model, prompts, sampling, output, is_buffered=not wire.stream),
        bool(wire.stream),
        ignored=report.names,
        relaxed=shorten_names(relaxed_constraint.relaxed + relaxed),
        attribution=read_attribution(wire.user),
    )


def _build_prompts(messages: str | list[str | ChatMessage]) -> tuple[Conversation, ...]:
    """Builds one prompt for a text, or one for each text of a list. Each text becomes a user message."""
    if isinstance(messages, str):
        return (_build_user_prompt(messages, "messages"),)
    texts = [message for message in messages if isinstance(message, str)]
    if not texts:
        return (
            build_bare_conversation([message for message in messages if isinstance(message, ChatMessage)]),
        )
    if len(texts) < len(messages):
        raise InvalidValue("messages must hold only texts or only objects", param="messages")
    if len(texts) > MAX_SEQUENCES:
        raise InvalidValue(
            f"messages must hold at most {MAX_SEQUENCES} texts; got {len(texts)}", param="messages"
        )
    return tuple(_build_user_prompt(text, f"messages[{index}]") for index, text in enumerate(texts))


def _build_user_prompt(text: str, field: str) -> Conversation:
    """Builds a conversation of one user message. Raises InvalidValue for an empty text."""
    if not text:
        raise InvalidValue(f"{field} is empty; send at least one character", param=field)
    return Conversation((Message(Role.USER, text),))
