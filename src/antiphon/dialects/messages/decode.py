"""Decodes bodies of the Messages API to generation requests."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from antiphon.bodies.strict_json import sanitize_key
from antiphon.dialects.calls import NO_ATTRIBUTION, Attribution, GenerationCall
from antiphon.dialects.common.body_decoder import BodyDecoder
from antiphon.dialects.common.constraint_fields import read_schema, shorten_names
from antiphon.dialects.common.decode import require_no_nul
from antiphon.dialects.common.field_table import FieldReport
from antiphon.dialects.common.media_parts import read_document_data, read_image, read_image_data
from antiphon.dialects.common.request_types import BodyShape, CacheControlShape, ImageUrlShape
from antiphon.dialects.common.tools import build_tool, require_shallow
from antiphon.dialects.messages.fields import FIELD_TABLE, MessagesScope
from antiphon.dialects.messages.wire_types import (
    Base64Source,
    Block,
    ContentBlock,
    ContentSource,
    ContextManagement,
    CountRequest,
    DocumentBlock,
    ImageBlock,
    InputMessage,
    InputTool,
    MessagesRequest,
    OutputConfig,
    OutputFormat,
    PromptBody,
    RedactedThinkingBlock,
    RequestMetadata,
    ResultBlock,
    SearchResultBlock,
    TextBlock,
    TextSource,
    ThinkingBlock,
    ThinkingOptions,
    ToolChoiceObject,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
    UrlSource,
)
from antiphon.domain.messages import (
    OWN_SIGNATURE,
    CacheControl,
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
    Conversation,
    GenerationRequest,
    MessagesBody,
    Output,
    Overflow,
    Reasoning,
    ReasoningFieldNames,
    SamplingOptions,
)
from antiphon.domain.values import replace
from antiphon.errors import InvalidValue, MissingParameter, UnsupportedParameter
from antiphon.wire.anthropic import OWN_TOOLS
from antiphon.wire.placed_blocks import KeptReasoning, place_block

CALL_STATE = f"{OWN_SIGNATURE}-call:"
"""How the signature of an empty block of reasoning begins that carries the signature of the call after it.
Gemini wants it back, `tool_use` has no place for it, and clients send blocks of reasoning back unchanged."""

ITEM_STATE = f"{OWN_SIGNATURE}-item:"
"""The same for an item of reasoning of OpenAI's, as JSON. OpenAI wants it back unchanged."""

SIGNATURE = ".signature"
"""How the path of a block's signature ends."""

ANTHROPIC_PATHS = ("messages[", "system[", "tools[", "context_management.", "output_config.", "thinking.")
"""How the paths begin of what only Anthropic uses."""

BILLING_LINE = "x-anthropic-billing-header:"
"""How Claude Code's first system block begins. It names the client's version, for Anthropic's accounting."""

EFFORT_FIELD, BUDGET_FIELD = "output_config.effort", "thinking.budget_tokens"

REASONING_FIELD_NAMES = ReasoningFieldNames(EFFORT_FIELD, BUDGET_FIELD, off="disabled", on="adaptive")

OPTIONAL = frozenset({EFFORT_FIELD, BUDGET_FIELD})
"""Parameters that are ignored if the model lacks them. Agents send them by the model's name, without knowing
the model."""

MOST_REFERENCED = 16 << 20
"""The most characters for which the references to tools stand. Many references to one long definition could
otherwise fill the memory. A search finds some tools, each with some thousand characters."""

KEPT_EDIT = {"type": "clear_thinking_20251015", "keep": "all"}
"""The edit of a conversation that removes nothing."""

_read_item = msgspec.json.Decoder(KeptReasoning).decode

BLOCKS: Mapping[str, type[Block]] = {
    str(kind.__struct_config__.tag): kind
    for kind in (
        TextBlock,
        ImageBlock,
        DocumentBlock,
        SearchResultBlock,
        ThinkingBlock,
        RedactedThinkingBlock,
        ToolUseBlock,
        ToolResultBlock,
        ToolReferenceBlock,
    )
}
"""The blocks that are read, by their kind."""

SOURCES: Mapping[str, type[Block]] = {
    str(kind.__struct_config__.tag): kind for kind in (Base64Source, UrlSource, TextSource, ContentSource)
}
"""The sources of images and documents, by their kind."""


# --- known and unknown fields -------------------------------------------------------------------------------


def filter_body(scope: MessagesScope, fields: dict[str, Any], report: FieldReport) -> dict[str, Any]:
    """Returns the known fields of a body and of the objects in it. Reports unknown fields, unknown blocks,
    and tools that Anthropic would run."""
    body = FIELD_TABLE.filter(fields, scope, report=report)
    if isinstance(messages := body.get("messages"), list):
        report.ends_unknown = _ends_unknown(messages)
        body["messages"] = [
            _filter_message(message, f"messages[{index}]", report) for index, message in enumerate(messages)
        ]
    if isinstance(system := body.get("system"), list):
        body["system"] = _filter_blocks(system, "system", report)
    if isinstance(tools := body.get("tools"), list):
        body["tools"] = list(_filter_tools(tools, report))
    for name, shape in (
        ("tool_choice", ToolChoiceObject),
        ("thinking", ThinkingOptions),
        ("output_config", OutputConfig),
        ("output_format", OutputFormat),
        ("cache_control", CacheControlShape),
        ("metadata", RequestMetadata),
        ("context_management", ContextManagement),
    ):
        if name in body:
            body[name] = _drop_unknown(body[name], shape, name, report)
    config = body.get("output_config")
    if isinstance(config, dict) and "format" in config:
        config["format"] = _drop_unknown(config["format"], OutputFormat, "output_config.format", report)
    return body


def _ends_unknown(messages: list[Any]) -> bool:
    """Whether the last message ends with a block of an unknown kind."""
    content = messages[-1].get("content") if messages and isinstance(messages[-1], dict) else None
    block = content[-1] if isinstance(content, list) and content else None
    return isinstance(block, dict) and isinstance(kind := block.get("type"), str) and kind not in BLOCKS


def _drop_unknown(value: object, shape: type[BodyShape], field: str, report: FieldReport) -> Any:  # noqa: ANN401 - any value of JSON
    """Returns an object without its unknown fields, which are reported, and without those that are
    null. Another value stays unchanged."""
    if not isinstance(value, dict):
        return value
    known_names = {*shape.__struct_encode_fields__, shape.__struct_config__.tag_field}
    report.paths += [f"{field}.{sanitize_key(name)}" for name in value if name not in known_names]
    known = {name: each for name, each in value.items() if name in known_names and each is not None}
    if "cache_control" in known:
        path = f"{field}.cache_control"
        known["cache_control"] = _drop_unknown(known["cache_control"], CacheControlShape, path, report)
    return known


def _filter_message(message: object, field: str, report: FieldReport) -> object:
    """Returns the message without unknown fields and unknown blocks."""
    message = _drop_unknown(message, InputMessage, field, report)
    if isinstance(message, dict) and isinstance(content := message.get("content"), list):
        message["content"] = _filter_blocks(content, f"{field}.content", report)
    return message


def _filter_blocks(blocks: list[Any], field: str, report: FieldReport) -> list[Any]:
    """Returns the blocks without unknown fields. A block of an unknown kind is left out: it is history of
    tools that Anthropic ran."""
    known_blocks: list[Any] = []
    for index, block in enumerate(blocks):
        path = f"{field}[{index}]"
        if not isinstance(block, dict) or not isinstance(kind := block.get("type"), str):
            known_blocks.append(block)
        elif (shape := BLOCKS.get(kind)) is None:
            report.paths.append(f"{path}.{sanitize_key(kind)}")
        else:
            known_block = _drop_unknown(block, shape, path, report)
            source = known_block.get("source")
            if isinstance(source, dict) and (source_shape := SOURCES.get(str(source.get("type")))):
                known_block["source"] = _drop_unknown(source, source_shape, f"{path}.source", report)
            if isinstance(content := known_block.get("content"), list):
                known_block["content"] = _filter_blocks(content, f"{path}.content", report)
            known_blocks.append(known_block)
    return known_blocks


def _filter_tools(tools: list[Any], report: FieldReport) -> Iterator[object]:
    """Yields the tools that the caller runs, without unknown fields. Those whose schemas only Anthropic knows
    have an empty schema here."""
    for index, tool in enumerate(tools):
        field = f"tools[{index}]"
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind in (None, "custom"):
            yield _drop_unknown(tool, InputTool, field, report)
        elif isinstance(kind, str) and kind.startswith(OWN_TOOLS):
            yield {"input_schema": {}, "type": kind, "name": tool.get("name")}
        else:
            path = f"{field}.{sanitize_key(kind) if isinstance(kind, str) else 'type'}"
            report.paths.append(path)
            report.hosted_tools.append(path)


MESSAGES_BODY = BodyDecoder(
    MessagesRequest, FIELD_TABLE, MessagesScope.MESSAGES, partial(filter_body, MessagesScope.MESSAGES)
)
COUNT_BODY = BodyDecoder(
    CountRequest, FIELD_TABLE, MessagesScope.COUNT, partial(filter_body, MessagesScope.COUNT)
)


# --- the request --------------------------------------------------------------------------------------------


class MessagesCall(GenerationCall, frozen=True, kw_only=True):
    """A decoded body of POST /v1/messages."""

    omits_thinking: bool = False
    """Whether the caller gets reasoning only in sealed form."""
    unused: tuple[str, ...] = ()
    """The fields, blocks and tools that the server does not use, with those that Anthropic gets."""


def _unseal_nothing(_: str) -> str:
    return ""


def _require_no_hosted_tools(report: FieldReport) -> None:
    """Raises UnsupportedParameter for a tool that Anthropic runs."""
    for path in report.hosted_tools:
        tool, _, kind = path.partition("].")
        field = f"{tool}].type"
        raise UnsupportedParameter(
            f"{field} {kind} is not supported: this server refuses tools that Anthropic runs", param=field
        )


def decode_messages(
    body: bytes,
    strict: bool = False,
    betas: str = "",
    unseal: Callable[[str], str] = _unseal_nothing,
    *,
    refuses_hosted: bool = False,
) -> MessagesCall:
    """Decodes a body of POST /v1/messages. `strict`: a schema with a keyword that is not enforced is refused.
    `betas`: the header of that name, for Anthropic. `unseal` returns the reasoning of a signature that this
    server wrote; empty if it cannot be read. `refuses_hosted`: tools that Anthropic runs are refused. Raises
    a RequestError."""
    wire, report = MESSAGES_BODY.decode(body, report_unknown=True)
    if refuses_hosted:
        _require_no_hosted_tools(report)
    conversation, relaxed = _build_conversation(wire, report, unseal, strict)
    anthropic_paths = list(filter(_is_for_anthropic, report.paths))
    report.paths = [path for path in report.paths if not _is_for_anthropic(path)]
    original = MessagesBody(
        body,
        conversation.messages,
        betas,
        any(
            isinstance(block, ThinkingBlock) and _is_own(block.signature)
            for message in wire.messages
            if isinstance(message.content, list)
            for block in message.content
        ),
        FieldReport(paths=anthropic_paths).names,
        FieldReport(paths=report.hosted_tools).names,
        tuple(_list_own_tools(wire)),
    )
    conversation = replace(conversation, original=original)
    budget = conversation.reasoning.budget
    if budget is not None and budget >= wire.max_tokens:
        raise InvalidValue(f"{BUDGET_FIELD} must be less than max_tokens", param=BUDGET_FIELD)
    constraint, constraint_relaxed = _read_format(wire, strict)
    attribution = NO_ATTRIBUTION
    if user := wire.metadata and wire.metadata.user_id:
        require_no_nul("metadata.user_id", user)
        attribution = Attribution(user, fields=("metadata.user_id",))
    request = GenerationRequest(
        wire.model,
        (conversation,),
        SamplingOptions(temperature=wire.temperature, top_p=wire.top_p, top_k=wire.top_k),
        Output(
            max_tokens=wire.max_tokens,
            stop=tuple(wire.stop_sequences or ()),
            constraint=constraint,
            overflow=Overflow.SHORTEN,
        ),
        is_buffered=not wire.stream,
        optional=OPTIONAL,
    )
    return MessagesCall(
        request,
        bool(wire.stream),
        include_usage=True,
        ignored=report.names,
        relaxed=shorten_names((*relaxed, *constraint_relaxed)),
        attribution=attribution,
        omits_thinking=wire.thinking is not None and wire.thinking.display == "omitted",
        unused=report.names + original.names,
    )


def decode_count(
    body: bytes, unseal: Callable[[str], str] = _unseal_nothing, *, refuses_hosted: bool = False
) -> tuple[str, Conversation, tuple[str, ...]]:
    """Decodes a body of POST /v1/messages/count_tokens. Returns the model, the conversation, and the
    ignored fields. The parameters are those of `decode_messages`. Raises a RequestError."""
    wire, report = COUNT_BODY.decode(body, report_unknown=True)
    if refuses_hosted:
        _require_no_hosted_tools(report)
    for name in _list_own_tools(wire):
        raise UnsupportedParameter(
            f"{name} is not supported: send the tool with its input_schema", param=name.partition(" ")[0]
        )
    conversation, _ = _build_conversation(wire, report, unseal)
    return wire.model, conversation, report.names


def _read_format(wire: MessagesRequest, strict: bool) -> tuple[Constraint | None, tuple[str, ...]]:
    """Returns the constraint of the answer's text, and the keywords of its schema that are not enforced."""
    config_format = None if wire.output_config is None else wire.output_config.format
    formats: list[tuple[str, OutputFormat]] = [
        (field, each)
        for field, each in (("output_config.format", config_format), ("output_format", wire.output_format))
        if each is not None
    ]
    if not formats:
        return None, ()
    if len(formats) > 1:
        raise InvalidValue(
            "output_config.format and output_format exclude each other; send one of them",
            param="output_format",
        )
    field, answer_format = formats[0]
    relaxed = read_schema(answer_format.schema, f"{field}.schema", strict)
    return relaxed.constraint, relaxed.relaxed


def _build_conversation(
    wire: PromptBody, report: FieldReport, unseal: Callable[[str], str], strict: bool = False
) -> tuple[Conversation, tuple[str, ...]]:
    """Builds the conversation. Returns it with the schema keywords of its tools that are not enforced. Adds
    the paths of values without effect to `report`. Raises a RequestError."""
    _report_without_effect(wire, report)
    tools, relaxed = _read_tools(wire, strict)
    definitions = _describe_tools(wire)
    messages = list(_read_system(wire.system))
    call_ids: frozenset[str] = frozenset()
    turns: list[tuple[str, list[tuple[ContentBlock, str]]]] = []
    for index, message in enumerate(wire.messages):
        blocks = list(_list_blocks(message, f"messages[{index}]"))
        if turns and turns[-1][0] == message.role and message.role != "system":
            turns[-1][1].extend(blocks)
        else:
            turns.append((message.role, blocks))
    for role, blocks in turns:
        if role == "assistant":
            assistant = _build_assistant(blocks, report, unseal)
            call_ids = frozenset(call.id for call in assistant.tool_calls)
            messages.append(assistant)
        elif role == "system":
            if parts := list(_read_content(blocks, definitions)):
                messages.append(_join(Role.SYSTEM, parts))
        else:
            messages += _build_user(blocks, call_ids, definitions)
            call_ids = frozenset()
    if not messages:
        raise InvalidValue("messages has no content", param="messages")
    continues = turns[-1][0] == "assistant"
    if continues:
        _require_prefill(messages[-1], f"messages[{len(wire.messages) - 1}]", report.ends_unknown)
    if wire.cache_control is not None:
        messages[-1] = _mark(messages[-1], wire.cache_control)
    return Conversation(
        tuple(messages),
        generation_prompt=not continues,
        tools=tools,
        continues=continues,
        reasoning=_read_reasoning(wire),
    ), relaxed


def _report_without_effect(wire: PromptBody, report: FieldReport) -> None:
    """Adds the paths of known values that have no effect."""
    for index, edit in enumerate((wire.context_management and wire.context_management.edits) or ()):
        if edit != KEPT_EDIT:
            report.paths.append(f"context_management.edits[{index}]")
    if wire.output_config is not None and wire.output_config.task_budget is not None:
        report.paths.append("output_config.task_budget")
    if wire.thinking is not None and wire.thinking.type == "between_tools":
        report.paths.append("thinking.type")
    for index, message in enumerate(wire.messages):
        for place, block in enumerate(message.content if isinstance(message.content, list) else ()):
            citations = block.citations if isinstance(block, DocumentBlock | SearchResultBlock) else None
            if isinstance(citations, dict) and citations.get("enabled"):
                report.paths.append(f"messages[{index}].content[{place}].citations")


def _read_reasoning(wire: PromptBody) -> Reasoning:
    """Reads the options of reasoning. Raises a RequestError."""
    thinking = wire.thinking
    effort: str | None = None if wire.output_config is None else wire.output_config.effort
    if thinking is None:
        return Reasoning(effort, field_names=REASONING_FIELD_NAMES)
    if (thinking.budget_tokens is not None) != (thinking.type == "enabled"):
        if thinking.type == "enabled":
            raise MissingParameter(f"{BUDGET_FIELD} is missing", param=BUDGET_FIELD)
        raise InvalidValue(f"{BUDGET_FIELD} is taken only with type enabled", param=BUDGET_FIELD)
    if thinking.type == "disabled":
        effort = "none"
    return Reasoning(
        effort,
        thinking.budget_tokens,
        field_names=REASONING_FIELD_NAMES,
    )


def _require_prefill(message: Message, field: str, ends_unknown: bool) -> None:
    """Raises InvalidValue if the model cannot continue the last message. The text before a block that is left
    out may end with whitespace: Anthropic paused its answer there."""
    if message.tool_calls:
        raise InvalidValue(
            f"{field}: a last message of the assistant must hold no tool_use, because the model continues "
            "its text",
            param=field,
        )
    if not ends_unknown and message.text != message.text.rstrip():
        raise InvalidValue(
            f"{field}: a last message of the assistant must not end with whitespace", param=field
        )


# --- messages -----------------------------------------------------------------------------------------------


def _list_blocks(message: InputMessage, field: str) -> Iterator[tuple[ContentBlock, str]]:
    """Yields the blocks of a message with their paths. A text is one block."""
    if isinstance(message.content, str):
        yield TextBlock(message.content), f"{field}.content"
        return
    for index, block in enumerate(message.content):
        path = f"{field}.content[{index}]"
        _require_place(block, message.role, path)
        yield block, path


def _require_place(block: ContentBlock, role: str, path: str) -> None:
    """Raises InvalidValue for a block that does not belong into a message of this role."""
    if isinstance(block, TextBlock):
        return
    if isinstance(block, ToolUseBlock | ThinkingBlock | RedactedThinkingBlock):
        right_role = "assistant"
    else:
        right_role = "user"
    if role != right_role:
        raise InvalidValue(f"{path} belongs into a message of the role {right_role}", param=path)


def _read_system(system: str | Sequence[TextBlock] | None) -> Iterator[Message]:
    """Yields the message of the instructions, if there are some. Leaves out the line that Claude Code writes
    for Anthropic's accounting, because it differs between versions, and no cached prefix would be found."""
    blocks = [TextBlock(system)] if isinstance(system, str) else (system or ())
    if parts := [
        _read_text(block.text, block.cache_control)
        for block in blocks
        if block.text and not block.text.startswith(BILLING_LINE)
    ]:
        yield _join(Role.SYSTEM, parts)


def _join(role: Role, parts: Sequence[Content]) -> Message:
    """Builds a message. Its texts are joined by empty lines, as one text of several paragraphs, so that a
    text and a list of one block are the same prompt."""
    separated: list[Content] = []
    for part in parts:
        if isinstance(part, TextContent) and separated and isinstance(separated[-1], TextContent):
            separated.append(replace(part, text=f"\n\n{part.text}"))
        else:
            separated.append(part)
    text = "".join(part.text for part in separated if isinstance(part, TextContent))
    is_plain = all(isinstance(part, TextContent) and part.cache_control is None for part in separated)
    return Message(role, text, content=() if is_plain else tuple(separated))


def _mark(message: Message, cache_control: CacheControlShape) -> Message:
    """Returns the message with a cache mark at its last text. A message without text stays unchanged."""
    parts = list(message.content or (TextContent(message.text),))
    for index in reversed(range(len(parts))):
        part = parts[index]
        if isinstance(part, TextContent) and part.text:
            parts[index] = _read_text(part.text, cache_control)
            return replace(message, content=tuple(parts))
    return message


def _read_content(
    blocks: Iterable[tuple[ContentBlock | ResultBlock, str]], definitions: Mapping[str, str]
) -> Iterator[Content]:
    """Yields the parts of a content. An empty text is left out."""
    for block, path in blocks:
        if isinstance(block, TextBlock):
            if block.text:
                yield _read_text(block.text, block.cache_control)
        elif isinstance(block, ImageBlock):
            yield _read_image(block, path)
        elif isinstance(block, DocumentBlock):
            heading = [f"[{block.title}]"] if block.title else []
            heading += [block.context] if block.context else []
            document = _read_document(block, path)
            if isinstance(document, str):
                yield _read_text("\n\n".join([*heading, document]), block.cache_control)
                continue
            if heading:
                yield _read_text("\n\n".join(heading), None)
            yield document
        elif isinstance(block, SearchResultBlock):
            text = "\n\n".join([f"[{block.title}]({block.source})", *(part.text for part in block.content)])
            yield _read_text(text, block.cache_control)
        elif isinstance(block, ToolReferenceBlock):
            yield _read_text(_find_definition(block, path, definitions), block.cache_control)


def _read_text(text: str, cache_control: CacheControlShape | None) -> TextContent:
    """Returns a text with its cache mark."""
    return TextContent(text, None if cache_control is None else CacheControl(cache_control.ttl))


def _read_image(block: ImageBlock, path: str) -> MediaContent:
    """Reads an image. Raises a RequestError."""
    if isinstance(block.source, UrlSource):
        return read_image(ImageUrlShape(block.source.url), f"{path}.source")
    return read_image_data(block.source.data, block.source.media_type, None, f"{path}.source")


def _read_document(block: DocumentBlock, path: str) -> str | MediaContent:
    """Returns the text of a document, or its file. Raises UnsupportedParameter for an address."""
    source = block.source
    if isinstance(source, TextSource):
        return source.data
    if isinstance(source, ContentSource):
        if isinstance(source.content, str):
            return source.content
        return "\n\n".join(part.text for part in source.content)
    if isinstance(source, Base64Source):
        return read_document_data(source.data, source.media_type, f"{path}.source")
    raise UnsupportedParameter(
        f"{path}.source with an address is not supported: send the document itself, with a source of type "
        "base64 or text",
        param=f"{path}.source",
    )


def _describe_tools(wire: PromptBody) -> Mapping[str, str]:
    """Returns the definition of each tool to which a result refers, in the form that Claude Code's search for
    tools promises to the model. Raises InvalidValue if all references together make too long a text."""
    counts = Counter(_list_references(wire))
    definitions: dict[str, str] = {}
    total = 0
    for tool in wire.tools or ():
        if tool.name in counts:
            definition = {
                "description": tool.description or "",
                "name": tool.name,
                "parameters": tool.input_schema,
            }
            text = json.dumps(definition, ensure_ascii=False)
            definitions[tool.name] = f"<functions><function>{text}</function></functions>"
            total += counts[tool.name] * len(definitions[tool.name])
    if total > MOST_REFERENCED:
        raise InvalidValue(
            f"messages: its references to tools stand for more than {MOST_REFERENCED:,} characters; refer to "
            "each tool once",
            param="messages",
        )
    return definitions


def _list_own_tools(wire: PromptBody) -> Iterator[str]:
    """Yields the fields of tools whose schemas only Anthropic knows, with their types."""
    for index, tool in enumerate(wire.tools or ()):
        if tool.type not in (None, "custom"):
            yield f"tools[{index}].type {sanitize_key(tool.type)}"


def _list_references(wire: PromptBody) -> Iterator[str]:
    """Yields the names of the tools to which results refer."""
    for message in wire.messages:
        for block in message.content if isinstance(message.content, list) else ():
            if isinstance(block, ToolResultBlock) and isinstance(block.content, list):
                for part in block.content:
                    if isinstance(part, ToolReferenceBlock):
                        yield part.tool_name


def _find_definition(block: ToolReferenceBlock, path: str, definitions: Mapping[str, str]) -> str:
    """Returns the definition of a referenced tool. Raises InvalidValue if there is no such tool."""
    if (definition := definitions.get(block.tool_name)) is None:
        raise InvalidValue(f"{path}.tool_name: there is no tool named {block.tool_name}", param=path)
    return definition


def _build_user(
    blocks: Sequence[tuple[ContentBlock, str]],
    call_ids: frozenset[str],
    definitions: Mapping[str, str],
) -> Iterator[Message]:
    """Yields the messages of a user's turn: first the results of calls, then the rest. Raises InvalidValue
    for a result of a call that the turn before does not make."""
    for block, path in blocks:
        if isinstance(block, ToolResultBlock):
            if block.tool_use_id not in call_ids:
                raise InvalidValue(
                    f"{path}: unexpected `tool_use_id` found in `tool_result` blocks: "
                    f"{sanitize_key(block.tool_use_id)}. Each `tool_result` block must have a corresponding "
                    "`tool_use` block in the previous message",
                    param=f"{path}.tool_use_id",
                )
            yield _build_result(block, path, definitions)
    rest = [(block, path) for block, path in blocks if not isinstance(block, ToolResultBlock)]
    if parts := list(_read_content(rest, definitions)):
        yield _join(Role.USER, parts)


def _build_result(block: ToolResultBlock, path: str, definitions: Mapping[str, str]) -> Message:
    """Builds the message of a call's result."""
    if block.content is None or isinstance(block.content, str):
        message = Message(Role.TOOL, block.content or "")
    else:
        numbered = [(part, f"{path}.content[{index}]") for index, part in enumerate(block.content)]
        message = _join(Role.TOOL, list(_read_content(numbered, definitions)))
    if block.cache_control is not None:
        message = _mark(message, block.cache_control)
    return replace(message, tool_call_id=block.tool_use_id, is_error=bool(block.is_error))


def _build_assistant(
    blocks: Sequence[tuple[ContentBlock, str]], report: FieldReport, unseal: Callable[[str], str]
) -> Message:
    """Builds an assistant's message: reasoning, text, calls. A signature that this server did not write
    belongs to a vendor, which gets its block back."""
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    vendor_blocks: list[Mapping[str, object]] = []
    cache_control: CacheControlShape | None = None
    call_signature: str | None = None
    for block, path in blocks:
        if isinstance(block, TextBlock | ToolUseBlock):
            cache_control = block.cache_control or cache_control
        if isinstance(block, TextBlock):
            texts.append(block.text)
        elif isinstance(block, ToolUseBlock):
            require_shallow(block.input, f"{path}.input")
            try:
                arguments = json.dumps(block.input, ensure_ascii=False, allow_nan=False)
            except ValueError:  # 1e999 is read as infinity, which JSON does not have
                raise InvalidValue(
                    f"{path}.input has a number that is too large", param=f"{path}.input"
                ) from None
            calls.append(ToolCall(block.id, block.name, arguments, call_signature))
            call_signature = None
        elif isinstance(block, ThinkingBlock):
            thinking = block.thinking
            if not thinking and _is_seal(block.signature) and not (thinking := unseal(block.signature)):
                report.paths.append(path + SIGNATURE)
            reasoning.append(thinking)
            if block.signature.startswith(CALL_STATE):
                call_signature = block.signature.removeprefix(CALL_STATE)
            elif block.signature.startswith(ITEM_STATE):
                try:
                    kept = _read_item(block.signature.removeprefix(ITEM_STATE))
                except (msgspec.MsgspecError, RecursionError):  # the latter if it is nested too deeply
                    report.paths.append(path + SIGNATURE)
                else:
                    item: dict[str, object] = msgspec.to_builtins(kept)
                    vendor_blocks.append(place_block(item, sum(map(len, texts)), len(calls)))
            elif not _is_own(block.signature):
                vendor_block = {"type": "thinking", "thinking": block.thinking, "signature": block.signature}
                vendor_blocks.append(place_block(vendor_block, sum(map(len, texts)), len(calls)))
        elif isinstance(block, RedactedThinkingBlock):
            redacted = {"type": "redacted_thinking", "data": block.data}
            vendor_blocks.append(place_block(redacted, sum(map(len, texts)), len(calls)))
    message = Message(
        Role.ASSISTANT,
        "".join(texts),
        tool_calls=tuple(calls),
        reasoning="".join(reasoning) or None,
        reasoning_field="content[].thinking",
        thinking_blocks=tuple(vendor_blocks),
    )
    return message if cache_control is None else _mark(message, cache_control)


def _is_for_anthropic(path: str) -> bool:
    """Whether only Anthropic uses what is at a path. A seal that cannot be read is of no use to anybody."""
    return path.startswith(ANTHROPIC_PATHS) and not path.endswith(SIGNATURE)


def _is_own(signature: str) -> bool:
    """Whether a block of reasoning is not Anthropic's: it has this server's signature, or none."""
    return not signature or signature.startswith(OWN_SIGNATURE)


def _is_seal(signature: str) -> bool:
    """Whether this server wrote a signature that carries reasoning."""
    is_mark = signature == OWN_SIGNATURE or signature.startswith((CALL_STATE, ITEM_STATE))
    return signature.startswith(OWN_SIGNATURE) and not is_mark


# --- tools --------------------------------------------------------------------------------------------------


def _read_tools(wire: PromptBody, strict: bool) -> tuple[Tools | None, tuple[str, ...]]:
    """Reads the tools, and returns them with the schema keywords that are not enforced. A deferred tool is
    left out until a result refers to it. Raises a RequestError."""
    referenced = frozenset(_list_references(wire))
    relaxed: list[str] = []
    tools: list[Tool] = []
    names: set[str] = set()
    for index, tool in enumerate(wire.tools or ()):
        field = f"tools[{index}]"
        if tool.name in names:
            raise InvalidValue(
                f"{field}.name: another tool is named {tool.name} too; name each once", param=f"{field}.name"
            )
        names.add(tool.name)
        if not tool.defer_loading or tool.name in referenced:
            tools.append(_build_tool(tool, field, relaxed, strict))
    choice = wire.tool_choice
    if choice is not None and choice.type == "tool":
        if choice.name is None:
            raise MissingParameter("tool_choice.name is missing", param="tool_choice.name")
        if choice.name not in {tool.name for tool in tools}:
            raise InvalidValue(
                f"tool_choice.name: there is no tool named {sanitize_key(choice.name)}",
                param="tool_choice.name",
            )
    if not tools:
        if choice is not None and choice.type == "any":
            raise InvalidValue("tool_choice any is taken only together with tools", param="tool_choice")
        return None, ()
    if choice is None:
        return Tools(tuple(tools)), tuple(relaxed)
    is_one_tool = choice.type == "tool"
    return Tools(
        tuple(tools),
        {
            "auto": ToolChoice.AUTO,
            "any": ToolChoice.REQUIRED,
            "tool": ToolChoice.REQUIRED,
            "none": ToolChoice.NONE,
        }[choice.type],
        parallel=not (is_one_tool or choice.disable_parallel_tool_use),
        allowed=frozenset({choice.name or ""}) if is_one_tool else None,
    ), tuple(relaxed)


def _build_tool(tool: InputTool, field: str, relaxed: list[str], strict: bool) -> Tool:
    """Builds one tool, and adds the schema keywords that are not enforced to `relaxed`. Raises a
    RequestError."""
    description = tool.description
    if tool.input_examples:
        examples = "\n".join(json.dumps(example, ensure_ascii=False) for example in tool.input_examples)
        description = f"{description or ''}\n\nExamples:\n{examples}".lstrip()
    cache_control = None if tool.cache_control is None else CacheControl(tool.cache_control.ttl)
    function = Tool(
        tool.name,
        description,
        strict=bool(tool.strict),
        field=f"{field}.input_schema",
        cache_control=cache_control,
        deferred=bool(tool.defer_loading),
    )
    return build_tool(function, tool.input_schema, relaxed, strict)
