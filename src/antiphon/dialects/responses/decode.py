"""Decodes bodies of the Responses API to generation requests."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec

from antiphon.bodies.strict_json import sanitize_key
from antiphon.dialects.calls import GenerationCall
from antiphon.dialects.common.body_decoder import BodyDecoder
from antiphon.dialects.common.constraint_fields import read_schema, shorten_names
from antiphon.dialects.common.decode import read_attribution, read_sampling
from antiphon.dialects.common.field_table import FieldReport
from antiphon.dialects.common.request_types import BodyShape, InputAudioShape
from antiphon.dialects.responses.conversation import Unseal, build_messages
from antiphon.dialects.responses.fields import FIELD_TABLE, ResponsesScope
from antiphon.dialects.responses.items import LoadedInput
from antiphon.dialects.responses.tools import CalledTool, ReadTools, read_tools
from antiphon.dialects.responses.wire_types import (
    AdditionalToolsItem,
    CacheBreakpoint,
    ConfigurationItem,
    CustomCallItem,
    CustomResultItem,
    CustomTool,
    FunctionCallItem,
    FunctionEcho,
    FunctionResultItem,
    FunctionTool,
    GrammarFormat,
    InputAudio,
    InputFile,
    InputImage,
    InputText,
    InputTokensRequest,
    ItemReference,
    MessageItem,
    NamedTool,
    NamespaceTool,
    ObjectFormat,
    OutputText,
    ReasoningEcho,
    ReasoningItem,
    ReasoningOptions,
    ReasoningText,
    Refusal,
    ResponseAnswer,
    ResponsesPrompt,
    ResponsesRequest,
    ResponsesStreamOptions,
    SchemaEcho,
    SchemaFormat,
    SearchCallItem,
    SearchResultItem,
    SummaryText,
    TextEcho,
    TextFormat,
    TextOptions,
    ToolChoiceObject,
    ToolSearchTool,
)
from antiphon.domain.memory import FittingTurns
from antiphon.domain.request import (
    NO_VENDOR_OPTIONS,
    Constraint,
    ConstraintKind,
    Conversation,
    GenerationRequest,
    Output,
    Overflow,
    Reasoning,
    ReasoningFieldNames,
    VendorOptions,
)
from antiphon.domain.values import replace
from antiphon.errors import MissingParameter, UnsupportedParameter
from antiphon.wire.responses import LOGPROBS, SEALED

T = TypeVar("T")

EFFORT_FIELD, FORMAT_FIELD = "reasoning.effort", "text.format"

REASONING_FIELD_NAMES = ReasoningFieldNames(EFFORT_FIELD, "max_output_tokens")

OPTIONAL = frozenset({EFFORT_FIELD, "verbosity"})
"""Parameters that are ignored if the model lacks them. Agents send them by the model's name, without knowing
the model."""

INCLUDABLE = frozenset(
    {
        LOGPROBS,
        SEALED,
        "message.input_image.image_url",
        "file_search_call.results",
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)
"""The names that `include` can have. Most of them belong to items that this server does not make."""


class ResponsesCall(GenerationCall, frozen=True, kw_only=True):
    """A decoded body of POST /v1/responses, with what its answer repeats."""

    template: ResponseAnswer
    """The answer's fields that are known before it begins, without its id and time."""
    called: Mapping[str, CalledTool]
    """The caller's names of the tools that the model knows by another name or form."""
    has_summary: bool = False
    """Whether the reasoning is the summary of its item, not the content."""
    is_sealed: bool = False
    """Whether items of reasoning have it in sealed form, too."""


# --- known and unknown fields -------------------------------------------------------------------------------


def _index_kinds(*kinds: type[BodyShape]) -> Mapping[str, type[BodyShape]]:
    return {str(kind.__struct_config__.tag): kind for kind in kinds}


PARTS = _index_kinds(
    InputText, OutputText, Refusal, InputImage, InputFile, InputAudio, ReasoningText, SummaryText
)
"""The parts of a content, by their kind."""

TOOLS = _index_kinds(FunctionTool, CustomTool, NamespaceTool, ToolSearchTool)
"""The tools that the caller runs, by their kind."""

TOOL_FORMATS = _index_kinds(TextFormat, GrammarFormat)

ANSWER_FORMATS = _index_kinds(TextFormat, ObjectFormat, SchemaFormat)

ITEMS = _index_kinds(
    MessageItem,
    ReasoningItem,
    FunctionCallItem,
    FunctionResultItem,
    CustomCallItem,
    CustomResultItem,
    SearchCallItem,
    SearchResultItem,
    AdditionalToolsItem,
    ConfigurationItem,
    ItemReference,
)
"""The items that are read, by their kind."""

REFUSED_ITEMS = {
    "compaction": "only the server that made it can read it; send the items that it replaces",
    "compaction_trigger": "this server compacts no conversations; let the client do it",
}
"""The items without which the answer would be another one, and what to send."""

OBJECTS: Mapping[str, type[BodyShape]] = {
    "text": TextOptions,
    "reasoning": ReasoningOptions,
    "stream_options": ResponsesStreamOptions,
}
"""The objects in a body whose fields are all known."""


def _filter_body(
    scope: ResponsesScope, refuses_hosted: bool, fields: dict[str, Any], report: FieldReport
) -> dict[str, Any]:
    """Returns the known fields of a body and of the objects in it. Reports unknown fields, items of tools
    that OpenAI runs, and these tools. `refuses_hosted`: these tools are refused. Raises UnsupportedParameter
    for what would change the answer."""
    body = FIELD_TABLE.filter(fields, scope, report=report)
    cache_options = fields.get("prompt_cache_options")
    if isinstance(cache_options, dict) and cache_options.get("prewarm"):
        field = "prompt_cache_options.prewarm"
        raise UnsupportedParameter(f"{field} is not supported: each request has an answer", param=field)
    if isinstance(items := body.get("input"), list):
        body["input"] = list(_filter_items(items, report, refuses_hosted))
    if isinstance(tools := body.get("tools"), list):
        body["tools"] = list(_filter_tools(tools, "tools", report, refuses_hosted))
        if tools and not body["tools"]:
            raise UnsupportedParameter(
                "tools has only tools that OpenAI runs, which this server does not have; send functions",
                param="tools",
            )
    if isinstance(choice := body.get("tool_choice"), dict):
        body["tool_choice"] = _filter_choice(choice, report)
    _filter_options(body, "", report)
    return body


def _filter_options(fields: dict[str, Any], prefix: str, report: FieldReport) -> None:
    """Removes the unknown fields of the objects in a body or an item. `prefix`: the path of it."""
    for name, shape in OBJECTS.items():
        if name in fields:
            fields[name] = _drop_unknown(fields[name], shape, f"{prefix}{name}", report)
    if isinstance(text := fields.get("text"), dict) and "format" in text:
        text["format"] = _drop_by_kind(text["format"], ANSWER_FORMATS, f"{prefix}text.format", report)


def _drop_unknown(value: object, shape: type[BodyShape], field: str, report: FieldReport) -> Any:  # noqa: ANN401 - any value of JSON
    """Returns an object without its unknown fields, which are reported, and without those that are
    null. Another value stays unchanged."""
    if not isinstance(value, dict):
        return value
    known_names = {*shape.__struct_encode_fields__, shape.__struct_config__.tag_field}
    report.paths += [f"{field}.{sanitize_key(name)}" for name in value if name not in known_names]
    return {name: each for name, each in value.items() if name in known_names and each is not None}


def _drop_by_kind(
    value: object, kinds: Mapping[str, type[BodyShape]], field: str, report: FieldReport
) -> Any:  # noqa: ANN401 - any value of JSON
    """Returns an object without its unknown fields, by the kind in its type. Another value stays as it
    is."""
    kind = kinds.get(str(value.get("type"))) if isinstance(value, dict) else None
    return value if kind is None else _drop_unknown(value, kind, field, report)


def _filter_items(items: list[Any], report: FieldReport, refuses_hosted: bool) -> Iterator[object]:
    """Yields the items without unknown fields. Leaves out items of unknown kinds, which are history of tools
    that OpenAI ran. An item without a type is a message, or a reference if it only has an id."""
    for index, item in enumerate(items):
        field = f"input[{index}]"
        kind = item.get("type") if isinstance(item, dict) else False
        if kind is None:
            kind = "item_reference" if "role" not in item and "id" in item else "message"
        elif not isinstance(kind, str):
            yield item
            continue
        if kind in REFUSED_ITEMS:
            raise UnsupportedParameter(
                f"{field}.type {kind} is not supported: {REFUSED_ITEMS[kind]}", param=f"{field}.type"
            )
        if (shape := ITEMS.get(kind)) is None:
            report.paths.append(f"{field}.{sanitize_key(kind)}")
            continue
        known = _drop_unknown(item | {"type": kind}, shape, field, report)
        for name in ("content", "output", "summary"):
            if isinstance(parts := known.get(name), list):
                path = f"{field}.{name}"
                known[name] = [
                    _filter_part(part, f"{path}[{number}]", report) for number, part in enumerate(parts)
                ]
        if isinstance(tools := known.get("tools"), list):
            known["tools"] = list(_filter_tools(tools, f"{field}.tools", report, refuses_hosted))
        _filter_options(known, f"{field}.", report)
        yield known


def _filter_part(part: object, field: str, report: FieldReport) -> object:
    """Returns the part without unknown fields. Raises UnsupportedParameter for a part of an unknown kind,
    because the model would not see it."""
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind not in PARTS:
        raise UnsupportedParameter(
            f"{field}.type {sanitize_key(kind)} is not supported: send input_text, input_image, input_file "
            "or input_audio",
            param=f"{field}.type",
        )
    known = _drop_by_kind(part, PARTS, field, report)
    if isinstance(known, dict) and "input_audio" in known:
        audio_field = f"{field}.input_audio"
        known["input_audio"] = _drop_unknown(known["input_audio"], InputAudioShape, audio_field, report)
    if isinstance(known, dict) and (mark := known.get("prompt_cache_breakpoint")) is not None:
        mark_field = f"{field}.prompt_cache_breakpoint"
        known["prompt_cache_breakpoint"] = _drop_unknown(mark, CacheBreakpoint, mark_field, report)
    return known


def _filter_tools(
    tools: list[Any], field: str, report: FieldReport, refuses_hosted: bool
) -> Iterator[object]:
    """Yields the tools that the caller runs, without unknown fields. Reports the others, or raises
    UnsupportedParameter."""
    for index, tool in enumerate(tools):
        path = f"{field}[{index}]"
        kind = tool.get("type") if isinstance(tool, dict) else None
        is_server_search = kind == "tool_search" and tool.get("execution") != "client"
        if isinstance(kind, str) and (kind not in TOOLS or is_server_search):
            if refuses_hosted:
                raise UnsupportedParameter(
                    f"{path}.type {sanitize_key(kind)} is not supported: this server runs no tools of OpenAI",
                    param=f"{path}.type",
                )
            report.paths.append(f"{path}.{sanitize_key(kind)}")
            continue
        known = _drop_by_kind(tool, TOOLS, path, report)
        if isinstance(known, dict):
            if isinstance(members := known.get("tools"), list):
                known["tools"] = list(_filter_tools(members, f"{path}.tools", report, refuses_hosted))
            if "format" in known:
                known["format"] = _drop_by_kind(known["format"], TOOL_FORMATS, f"{path}.format", report)
        yield known


def _filter_choice(choice: dict[str, Any], report: FieldReport) -> object:
    """Returns the choice without unknown fields, and without tools that OpenAI runs. Raises
    UnsupportedParameter if it demands one of these."""
    kind = choice.get("type")
    if isinstance(kind, str) and kind not in ("function", "custom", "allowed_tools"):
        raise UnsupportedParameter(
            f"tool_choice.type {sanitize_key(kind)} is not supported: this server does not have this tool",
            param="tool_choice.type",
        )
    known = _drop_unknown(choice, ToolChoiceObject, "tool_choice", report)
    if isinstance(tools := known.get("tools"), list):
        known["tools"] = kept = []
        for index, tool in enumerate(tools):
            field = f"tool_choice.tools[{index}]"
            kind = tool.get("type") if isinstance(tool, dict) else None
            if isinstance(kind, str) and kind not in ("function", "custom"):
                report.paths.append(f"{field}.{sanitize_key(kind)}")
            else:
                kept.append(_drop_unknown(tool, NamedTool, field, report))
    return known


class BodyDecoders:
    """Decodes the bodies of both endpoints."""

    def __init__(self, refuses_hosted: bool = False) -> None:
        """`refuses_hosted`: tools that OpenAI runs are refused, not left out."""
        scope = ResponsesScope.RESPONSES
        self._responses = BodyDecoder(
            ResponsesRequest, FIELD_TABLE, scope, partial(_filter_body, scope, refuses_hosted)
        )
        scope = ResponsesScope.INPUT_TOKENS
        self._input_tokens = BodyDecoder(
            InputTokensRequest, FIELD_TABLE, scope, partial(_filter_body, scope, refuses_hosted)
        )

    def decode_responses(self, body: bytes) -> tuple[ResponsesRequest, FieldReport]:
        """Decodes a body of POST /v1/responses. Raises a RequestError."""
        return self._responses.decode(body, report_unknown=True)

    def decode_input_tokens(self, body: bytes) -> tuple[InputTokensRequest, FieldReport]:
        """Decodes a body of POST /v1/responses/input_tokens. Raises a RequestError."""
        return self._input_tokens.decode(body, report_unknown=True)


# --- the request --------------------------------------------------------------------------------------------


def build_call(
    wire: ResponsesRequest,
    report: FieldReport,
    loaded: LoadedInput,
    unseal: Unseal,
    *,
    strict: bool = False,
    stores: bool = False,
) -> ResponsesCall:
    """Builds the call of a request and its items. `strict`: a schema with a keyword that is not enforced is
    refused. `stores`: whether the server stores responses. Adds what has no effect to `report`. Raises a
    RequestError."""
    wire = _update_options(wire, loaded)
    for index, name in enumerate(wire.include or ()):
        if name not in INCLUDABLE:
            report.paths.append(f"include[{index}].{sanitize_key(name)}")
    conversation, tools = build_conversation(wire, report, loaded, unseal, strict=strict)
    constraint, relaxed = _read_format(wire.text, strict)
    has_logprobs = bool(wire.top_logprobs) or LOGPROBS in (wire.include or ())
    verbosity = None if wire.text is None else wire.text.verbosity
    vendor_options = NO_VENDOR_OPTIONS
    if verbosity is not None or wire.service_tier is not None or wire.prompt_cache_key is not None:
        vendor_options = VendorOptions(
            verbosity=verbosity, service_tier=wire.service_tier, prompt_cache_key=wire.prompt_cache_key
        )
    request = GenerationRequest(
        wire.model,
        (conversation,),
        read_sampling(wire),
        Output(
            max_tokens=wire.max_output_tokens,
            logprobs=(wire.top_logprobs or 0) if has_logprobs else None,
            constraint=constraint,
            overflow=Overflow.SHORTEN,
        ),
        vendor_options=vendor_options,
        memory=FittingTurns() if wire.truncation == "auto" else None,
        is_buffered=not wire.stream,
        optional=OPTIONAL,
    )
    summary = None if wire.reasoning is None else wire.reasoning.summary or wire.reasoning.generate_summary
    if summary in ("concise", "detailed"):
        report.paths.append(f"reasoning.summary {summary}")
    return ResponsesCall(
        request=request,
        stream=bool(wire.stream),
        include_usage=True,
        ignored=report.names,
        relaxed=shorten_names((*tools.relaxed, *relaxed)),
        attribution=read_attribution(wire.user, wire.metadata, wire.safety_identifier),
        template=_build_template(wire, summary, stores and wire.store is not False),
        called=tools.called,
        has_summary=summary is not None,
        is_sealed=SEALED in (wire.include or ()),
    )


def _update_options(wire: ResponsesRequest, loaded: LoadedInput) -> ResponsesRequest:
    """Returns the request with the options of the last items that set them."""
    reasoning, text = wire.reasoning, wire.text
    for _, item, _ in loaded.list_places():
        if isinstance(item, ConfigurationItem):
            if item.reasoning is not None and item.reasoning.effort is not None:
                reasoning = replace(reasoning or ReasoningOptions(), effort=item.reasoning.effort)
            if item.text is not None and item.text.format is not None:
                text = replace(text or TextOptions(), format=item.text.format)
    if reasoning is wire.reasoning and text is wire.text:
        return wire
    return replace(wire, reasoning=reasoning, text=text)


def build_conversation(
    wire: ResponsesPrompt, report: FieldReport, loaded: LoadedInput, unseal: Unseal, *, strict: bool = False
) -> tuple[Conversation, ReadTools]:
    """Builds the conversation. Returns it with its tools. The parameters are those of `build_call`."""
    if wire.input is None and not loaded.earlier:
        raise MissingParameter("input is missing", param="input")
    tools = read_tools(wire, loaded, report, strict)
    messages = build_messages(wire.instructions, loaded, tools.found, unseal, report)
    effort = None if wire.reasoning is None else wire.reasoning.effort
    reasoning = Reasoning(effort, field_names=REASONING_FIELD_NAMES)
    return Conversation(messages, tools=tools.tools, reasoning=reasoning), tools


def _read_format(text: TextOptions | None, strict: bool) -> tuple[Constraint | None, tuple[str, ...]]:
    """Returns the constraint of the answer's text, and the keywords of its schema that are not enforced. A
    vendor gets the caller's `strict`. Raises InvalidValue."""
    answer_format = None if text is None else text.format
    if isinstance(answer_format, ObjectFormat):
        return Constraint(ConstraintKind.JSON_OBJECT, field=FORMAT_FIELD), ()
    if not isinstance(answer_format, SchemaFormat):
        return None, ()
    field, is_strict = f"{FORMAT_FIELD}.schema", answer_format.strict
    read = read_schema(answer_format.schema, field, strict or bool(is_strict))
    constraint = read.constraint
    if constraint is not None and constraint.declared is not None:
        declared = replace(constraint.declared, strict=is_strict)
        constraint = replace(constraint, declared=declared)
    return constraint, read.relaxed


def _encode_early(value: T) -> T:
    """Encodes a value that each event with the response repeats, so that the events only copy it. Agents'
    tools and instructions can have megabytes. The field keeps its type, which describes the answer."""
    return msgspec.Raw(msgspec.json.encode(value))  # type: ignore[return-value]


def _build_template(wire: ResponsesRequest, summary: str | None, stores: bool) -> ResponseAnswer:
    """Builds the fields of the answer that are known before it begins."""
    text = wire.text or TextOptions()
    verbosity = {} if text.verbosity is None else {"verbosity": text.verbosity}
    return ResponseAnswer(
        id="",
        created_at=0,
        model=wire.model,
        previous_response_id=wire.previous_response_id,
        instructions=_encode_early(wire.instructions),
        tools=_encode_early(
            [
                FunctionEcho(tool.name, tool.description, tool.parameters, tool.strict)
                if isinstance(tool, FunctionTool)
                else tool
                for tool in wire.tools or ()
            ]
        ),
        tool_choice=wire.tool_choice or "auto",
        truncation=wire.truncation or "disabled",
        parallel_tool_calls=wire.parallel_tool_calls is not False,
        text=_encode_early(TextEcho(format=_echo_format(text), **verbosity)),
        reasoning=ReasoningEcho(None if wire.reasoning is None else wire.reasoning.effort, summary),
        temperature=1.0 if wire.temperature is None else wire.temperature,
        top_p=1.0 if wire.top_p is None else wire.top_p,
        presence_penalty=wire.presence_penalty or 0.0,
        frequency_penalty=wire.frequency_penalty or 0.0,
        top_logprobs=wire.top_logprobs or 0,
        max_output_tokens=wire.max_output_tokens,
        max_tool_calls=wire.max_tool_calls,
        store=stores,
        metadata=wire.metadata or {},
        safety_identifier=wire.safety_identifier,
        prompt_cache_key=wire.prompt_cache_key,
        user=wire.user,
    )


def _echo_format(text: TextOptions) -> TextFormat | ObjectFormat | SchemaEcho:
    """Returns the form of the text as answers have it, with all of its fields."""
    if isinstance(text.format, SchemaFormat):
        return SchemaEcho(text.format.name, text.format.description, text.format.schema, text.format.strict)
    return text.format or TextFormat()
