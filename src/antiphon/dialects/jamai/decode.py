"""Decodes bodies of JamAI Base's endpoints to requests, with the defaults and rules of JamAI's page.

The decoder of `/v1` reads the fields with the same meaning.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from antiphon.dialects.calls import Attribution, EmbeddingCall, GenerationCall, RerankCall
from antiphon.dialects.common.body_decoder import BodyDecoder
from antiphon.dialects.common.constraint_fields import shorten_names
from antiphon.dialects.common.decode import read_sampling, read_stops, require_no_nul
from antiphon.dialects.common.embeddings import (
    build_prompts,
    require_encoding_format,
)
from antiphon.dialects.common.encode import read_retrieval
from antiphon.dialects.common.field_table import FieldReport
from antiphon.dialects.common.messages import build_messages, filter_messages, has_ignored_parts
from antiphon.dialects.common.tools import filter_tools, read_tools
from antiphon.dialects.jamai.fields import FIELD_TABLE, TABLES, JamaiScope, filter_fields
from antiphon.dialects.jamai.wire_types import (
    OPTIONAL,
    JamaiChatRequest,
    JamaiEmbeddingRequest,
    JamaiRerankRequest,
)
from antiphon.domain.messages import MediaContent, Message, Role
from antiphon.domain.request import (
    Conversation,
    EmbeddingRequest,
    GenerationRequest,
    Output,
    Overflow,
    Reasoning,
    ReasoningFieldNames,
    RerankRequest,
)
from antiphon.domain.values import replace
from antiphon.errors import InvalidValue

NAME_GAP = re.compile(r"[^a-zA-Z0-9_-]")
"""A character that names must not contain."""

DOT = "."
"""The text of a message that JamAI adds, and of an empty system message."""

EMPTY: tuple[object, ...] = ("", [])
"""Values that the product's client sends for a missing keyword."""

KEYWORDS = ("type", "description", "enum")


DEFAULTS: Mapping[str, float] = {"temperature": 0.2, "top_p": 0.6}
"""The page's defaults. They override a model's own defaults."""

MAX_TOKENS = 2048
"""The page's default of max_tokens."""

OPTIONAL_FIELDS = frozenset(
    name for name, field in TABLES[JamaiScope.CHAT].items() if OPTIONAL in field.description
)
"""Parameters that are ignored if the model does not support them, as on JamAI's page."""

REASONING_FIELD_NAMES = ReasoningFieldNames("reasoning_effort", "thinking_budget", "disable")

EMPTY_DEFAULTS: dict[str, object] = {"id": "", "user": "", "reasoning_summary": "auto"}
"""Values that the product's client sends for missing parameters. They count as absent."""

RERANK_BODY = BodyDecoder(JamaiRerankRequest, FIELD_TABLE, JamaiScope.RERANK)


def normalize_messages(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the body with messages in OpenAI's form."""
    messages = fields.get("messages")
    if not isinstance(messages, list):
        return fields
    return fields | {"messages": [_normalize_message(message) for message in messages]}


def _normalize_message(message: object) -> object:
    """Returns one message with a valid name, and without a content of null."""
    if not isinstance(message, dict):
        return message
    normalized_message: dict[str, Any] = dict(message)
    name = normalized_message.get("name")
    if isinstance(name, str):
        normalized_message["name"] = NAME_GAP.sub("_", name) or None
    if (
        "content" in normalized_message
        and not normalized_message["content"]
        and not normalized_message.get("tool_calls")
    ):
        normalized_message["content"] = (
            "" if normalized_message["content"] in (None, []) else normalized_message["content"]
        )
    if isinstance(normalized_message.get("content"), list):
        normalized_message["content"] = [_normalize_part(part) for part in normalized_message["content"]]
    return normalized_message


def _normalize_part(part: object) -> object:
    """Returns one part of a content. A text of null becomes empty."""
    if isinstance(part, dict) and part.get("type") == "text" and part.get("text", "") is None:
        return part | {"text": ""}
    return part


def normalize_tools(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the body with tools in OpenAI's form."""
    tools = fields.get("tools")
    if not isinstance(tools, list):
        return fields
    return fields | {"tools": [_normalize_tool(tool) for tool in tools]}


def _normalize_tool(tool: object) -> object:
    """Returns one tool with its type, and without empty keywords in the schemas of its properties."""
    if not isinstance(tool, dict):
        return tool
    function = tool.get("function")
    parameters = function.get("parameters") if isinstance(function, dict) else None
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    if isinstance(function, dict) and isinstance(parameters, dict) and isinstance(properties, dict):
        normalized_properties = {name: _drop_empty(schema) for name, schema in properties.items()}
        tool = tool | {
            "function": function | {"parameters": parameters | {"properties": normalized_properties}}
        }
    return {"type": "function"} | tool


def _drop_empty(schema: object) -> object:
    """Returns the schema of a property without empty keywords."""
    if not isinstance(schema, dict):
        return schema
    return {name: value for name, value in schema.items() if name not in KEYWORDS or value not in EMPTY}


def complete_turns(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Adds the messages that JamAI adds, so that a user message precedes the assistant's."""
    completed_messages = tuple(map(_fill_system, messages))
    roles = [message.role for message in completed_messages[:2]]
    user = Message(Role.USER, DOT)
    if roles[:1] == [Role.ASSISTANT]:
        return (Message(Role.SYSTEM, DOT), user, *completed_messages)
    if roles in ([Role.SYSTEM], [Role.SYSTEM, Role.ASSISTANT]):
        return (completed_messages[0], user, *completed_messages[1:])
    return completed_messages


def _fill_system(message: Message) -> Message:
    """Replaces an empty system message by a dot."""
    is_empty = message.role is Role.SYSTEM and not message.text and not message.content
    return replace(message, text=DOT) if is_empty else message


def list_modalities(messages: Iterable[Message]) -> frozenset[str]:
    """Returns the kinds of media in messages: `image`, `audio`."""
    parts = (part for message in messages for part in message.content)
    return frozenset(str(part.kind) for part in parts if isinstance(part, MediaContent))


def filter_chat(fields: dict[str, Any], report: FieldReport) -> dict[str, Any]:
    """Filters the body of a chat, in OpenAI's form."""
    sent_fields = {name: value for name, value in fields.items() if EMPTY_DEFAULTS.get(name, fields) != value}
    accepted_fields = filter_fields(sent_fields, JamaiScope.CHAT, report=report)
    accepted_fields = filter_messages(normalize_messages(accepted_fields), report)
    return filter_tools(normalize_tools(accepted_fields), report)


def filter_embeddings(fields: dict[str, Any], report: FieldReport) -> dict[str, Any]:
    """Filters the body of a request for vectors."""
    accepted_fields = filter_fields(fields, JamaiScope.EMBEDDINGS, report=report)
    require_encoding_format(accepted_fields.get("encoding_format"))
    return accepted_fields


def is_changed(wire: JamaiChatRequest) -> bool:
    """Whether `filter_chat` changes or reports a part of a body that the wire type accepts."""
    if wire.tools is not None or has_ignored_parts(wire):
        return True
    return any(
        (message.content is None and not message.tool_calls)
        or (message.name is not None and NAME_GAP.search(message.name) is not None)
        for message in wire.messages
    )


CHAT_BODY = BodyDecoder(JamaiChatRequest, FIELD_TABLE, JamaiScope.CHAT, filter_chat, is_changed)
EMBEDDINGS_BODY = BodyDecoder(JamaiEmbeddingRequest, FIELD_TABLE, JamaiScope.EMBEDDINGS, filter_embeddings)


def decode_chat(body: bytes, report_unknown: bool = False, strict: bool = False) -> GenerationCall:
    """Decodes a body of POST chat/completions. An empty model means that the server chooses.
    `report_unknown`: unknown fields are ignored and named instead of refused. `strict`: a schema with a
    keyword that is not enforced is refused. Raises a RequestError."""
    wire, report = CHAT_BODY.decode(body, report_unknown)
    max_tokens = _read_max_tokens(wire, report)
    tools, relaxed = read_tools(wire.tools, wire.tool_choice, None, strict)
    reasoning = Reasoning(
        "none" if wire.reasoning_effort == "disable" else wire.reasoning_effort,
        wire.thinking_budget,
        field_names=REASONING_FIELD_NAMES,
    )
    prompt = Conversation(complete_turns(build_messages(wire.messages)), tools=tools, reasoning=reasoning)
    request = GenerationRequest(
        wire.model or "",
        (prompt,),
        read_sampling(wire, defaults=DEFAULTS),
        Output(
            max_tokens=max_tokens or MAX_TOKENS,
            is_default_max_tokens=max_tokens is None,
            choices=wire.n or 1,
            stop=read_stops(wire.stop),
            overflow=Overflow.SHORTEN,
        ),
        retrieval=None if wire.rag_params is None else read_retrieval(wire.rag_params),
        is_buffered=not wire.stream,
        optional=OPTIONAL_FIELDS,
    )
    return GenerationCall(
        request,
        bool(wire.stream),
        include_usage=True,
        ignored=report.names,
        relaxed=shorten_names(relaxed),
        attribution=_read_attribution(wire),
    )


def decode_embeddings(body: bytes, report_unknown: bool = False) -> EmbeddingCall:
    """Decodes a body of POST embeddings. `report_unknown`: see `decode_chat`. Raises a RequestError."""
    wire, report = EMBEDDINGS_BODY.decode(body, report_unknown)
    request = EmbeddingRequest(wire.model or "", build_prompts(wire.input), wire.dimensions)
    return EmbeddingCall(request, wire.encoding_format == "base64", report.names)


def decode_rerank(body: bytes, report_unknown: bool = False) -> RerankCall:
    """Decodes a body of POST rerank. `report_unknown`: see `decode_chat`. Raises a RequestError."""
    wire, report = RERANK_BODY.decode(body, report_unknown)
    request = RerankRequest(wire.model or "", wire.query, tuple(wire.documents))
    return RerankCall(request, ignored=report.names)


def _read_max_tokens(wire: JamaiChatRequest, report: FieldReport) -> int | None:
    """Returns the most tokens of a choice; None if the caller sent no limit. Reports `max_tokens` as ignored
    if `max_completion_tokens` overrides it. Raises InvalidValue for a thinking budget above the limit."""
    newer_limit, older_limit = wire.max_completion_tokens, wire.max_tokens
    if newer_limit is not None and older_limit is not None and newer_limit != older_limit:
        report.paths.append("max_tokens")
    max_tokens = older_limit if newer_limit is None else newer_limit
    if (wire.thinking_budget or 0) > (max_tokens or MAX_TOKENS):
        raise InvalidValue(
            f"thinking_budget must be at most max_tokens, which is {max_tokens or MAX_TOKENS}; got "
            f"{wire.thinking_budget}",
            param="thinking_budget",
        )
    return max_tokens


def _read_attribution(wire: JamaiChatRequest) -> Attribution:
    """Reads the end user and the chat's id. Raises InvalidValue."""
    fields = {"user": wire.user, "id": wire.id}
    values = {name: value for name, value in fields.items() if value}
    for name, value in values.items():
        require_no_nul(name, value)
    tags = {"id": values["id"]} if "id" in values else {}
    return Attribution(values.get("user"), tags, tuple(values))
