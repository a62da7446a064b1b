"""Reads the tools of a request, and gives each the name by which the model knows it.

The model sees functions only. A custom tool is a function with one text. A tool of a namespace has the
namespace's name before its own. An answer's calls get the caller's names and forms again.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from hashlib import blake2b

from antiphon.dialects.common.field_table import FieldReport
from antiphon.dialects.common.tools import build_tool, require_known_tool
from antiphon.dialects.responses.items import LoadedInput
from antiphon.dialects.responses.wire_types import (
    MOST_TOOLS,
    AdditionalToolsItem,
    CustomTool,
    FunctionTool,
    GrammarFormat,
    InputTool,
    MessageItem,
    NamespaceTool,
    ResponsesPrompt,
    SearchResultItem,
    ToolChoiceObject,
    ToolSearchTool,
)
from antiphon.domain.messages import Tool, ToolChoice, Tools
from antiphon.domain.values import Struct, field, replace
from antiphon.errors import InvalidValue, MissingParameter

LONGEST_NAME = 64
"""The most characters of a name with its namespace. Vendors take no more."""

MOST_DEFINITIONS = 16 * MOST_TOOLS
"""The most definitions of tools in one request. Searches can find a tool again and again. Reading this many
without schemas takes half a second."""

MOST_REPEATED = 16 << 20
"""The most characters of descriptions of namespaces, each counted once for each of its tools, because the
model sees it there. A small body could otherwise fill the memory. Agents' descriptions have some hundred."""

HASH_BYTES = 4

SEARCH_NAME = "tool_search"

SEARCH_DESCRIPTION = "Searches for tools that are not listed. You can call the tools that it finds."

INPUT = "input"
"""The name of the text that a custom tool takes."""


class CallForm(StrEnum):
    """The form of a call in an answer."""

    FUNCTION = "function"
    CUSTOM = "custom"
    SEARCH = "search"


class CalledTool(Struct, frozen=True):
    """How the caller names a tool that the model knows by another name or form."""

    form: CallForm
    name: str
    namespace: str | None = None


class ReadTools(Struct, frozen=True):
    """The tools of a request and of its items."""

    tools: Tools | None = None
    called: Mapping[str, CalledTool] = field(default_factory=dict)
    """By the model's names of tools: the caller's names, where they differ in name or form."""
    found: Mapping[int, Sequence[Tool]] = field(default_factory=dict)
    """By the indexes of items: the tools that the model learns of there."""
    relaxed: tuple[str, ...] = ()
    """The schema keywords and grammars that are not enforced."""


class ListedTool(Struct, frozen=True):
    """A tool where the request has it."""

    shape: FunctionTool | CustomTool | ToolSearchTool
    namespace: NamespaceTool | None
    field: str
    item: int | None
    """The index of the item in whose place the model learns of the tool; None for the prompt's head."""


def join_name(namespace: str | None, name: str) -> str:
    """Returns the name by which the model knows a tool. The end of a long name is a hash of the whole."""
    if namespace is None:
        return name
    joined = f"{namespace}__{name}"
    if len(joined) <= LONGEST_NAME:
        return joined
    digest = blake2b(joined.encode(), digest_size=HASH_BYTES).hexdigest()
    return f"{joined[: LONGEST_NAME - len(digest) - 1]}_{digest}"


def read_tools(wire: ResponsesPrompt, loaded: LoadedInput, report: FieldReport, strict: bool) -> ReadTools:
    """Reads the tools of a request and of its items, and the choice among them. `strict`: every keyword must
    be enforced. Adds options without effect to `report`. Raises a RequestError."""
    choice = wire.tool_choice
    relaxed: list[str] = []
    tools: dict[str, Tool] = {}
    called: dict[str, CalledTool] = {}
    found: dict[int, list[Tool]] = {}
    repeated = 0
    for count, listed in enumerate(_list_tools(wire, loaded)):
        if count == MOST_DEFINITIONS:
            raise InvalidValue(
                f"input: its items define more than {MOST_DEFINITIONS:,} tools; leave out old ones",
                param="input",
            )
        if listed.namespace is not None:
            repeated += len(listed.namespace.description or "")
        if repeated > MOST_REPEATED:
            raise InvalidValue(
                f"{listed.field}: the descriptions of namespaces, repeated for each of their tools, have "
                f"more than {MOST_REPEATED:,} characters; shorten them",
                param=listed.field,
            )
        tool, caller_tool = _build_tool(listed, report, relaxed, strict)
        if listed.item is not None:
            tool = replace(tool, deferred=True)
            found.setdefault(listed.item, []).append(tool)
        elif tool.name in tools:
            name_field = f"{listed.field}.name"
            raise InvalidValue(
                f"{name_field}: another tool is named {tool.name} too; name each once", param=name_field
            )
        if caller_tool is not None:
            called[tool.name] = caller_tool
        tools.setdefault(tool.name, tool)
    if len(tools) > MOST_TOOLS:
        raise InvalidValue(f"tools has {len(tools):,} tools; the limit is {MOST_TOOLS:,}", param="tools")
    allowed: frozenset[str] | None = None
    is_required, parallel = choice == "required", wire.parallel_tool_calls is not False
    if isinstance(choice, ToolChoiceObject):
        allowed = _read_allowed(choice, tools)
        is_required = choice.type != "allowed_tools" or choice.mode == "required"
        parallel = parallel and choice.type == "allowed_tools"
    if not tools:
        if is_required:
            raise InvalidValue("tool_choice required is taken only together with tools", param="tool_choice")
        return ReadTools()
    if choice == "none":
        tool_choice = ToolChoice.NONE
    else:
        tool_choice = ToolChoice.REQUIRED if is_required else ToolChoice.AUTO
    return ReadTools(
        Tools(tuple(tools.values()), tool_choice, parallel, allowed), called, found, tuple(relaxed)
    )


def describe_tools(tools: Iterable[Tool]) -> str:
    """Returns the definitions of tools for the model."""
    return "\n".join(
        json.dumps(
            {"name": tool.name, "description": tool.description or "", "parameters": dict(tool.schema)},
            ensure_ascii=False,
        )
        for tool in tools
    )


def _list_tools(wire: ResponsesPrompt, loaded: LoadedInput) -> Iterator[ListedTool]:
    """Yields the tools of a request, then those of its items. Tools before the first message of the user are
    in the head of the prompt."""
    yield from _flatten(wire.tools or (), "tools", None)
    is_head = True
    for index, item, path in loaded.list_places():
        if isinstance(item, MessageItem) and item.role == "user":
            is_head = False
        elif isinstance(item, AdditionalToolsItem | SearchResultItem):
            place = None if is_head and isinstance(item, AdditionalToolsItem) else index
            yield from _flatten(item.tools, f"{path}.tools", place)


def _flatten(tools: Iterable[InputTool], field: str, item: int | None) -> Iterator[ListedTool]:
    """Yields the tools, and those of namespaces in the place of these."""
    for index, tool in enumerate(tools):
        path = f"{field}[{index}]"
        if isinstance(tool, NamespaceTool):
            for number, member in enumerate(tool.tools):
                yield ListedTool(member, tool, f"{path}.tools[{number}]", item)
        else:
            yield ListedTool(tool, None, path, item)


def _build_tool(
    listed: ListedTool, report: FieldReport, relaxed: list[str], strict: bool
) -> tuple[Tool, CalledTool | None]:
    """Builds one tool, and the caller's name of it if that differs. Adds options without effect to `report`,
    and what is not enforced to `relaxed`. Raises a RequestError."""
    shape, path = listed.shape, listed.field
    if isinstance(shape, ToolSearchTool):
        search = Tool(SEARCH_NAME, shape.description or SEARCH_DESCRIPTION, field=f"{path}.parameters")
        tool = build_tool(search, shape.parameters, relaxed, strict)
        return tool, CalledTool(CallForm.SEARCH, SEARCH_NAME)
    for name, value in (
        ("defer_loading", shape.defer_loading),
        ("allowed_callers", shape.allowed_callers),
        ("async", shape.is_async),
    ):
        if value:
            report.paths.append(f"{path}.{name}")
    namespace = None if listed.namespace is None else listed.namespace.name
    description = shape.description
    if listed.namespace is not None and listed.namespace.description:
        description = f"{listed.namespace.description}\n\n{description or ''}".rstrip()
    name = join_name(namespace, shape.name)
    if isinstance(shape, CustomTool):
        return _build_custom(shape, name, description, path, relaxed), CalledTool(
            CallForm.CUSTOM, shape.name, namespace
        )
    if shape.output_schema is not None:
        report.paths.append(f"{path}.output_schema")
    function = Tool(name, description, strict=bool(shape.strict), field=f"{path}.parameters")
    caller_tool = None if namespace is None else CalledTool(CallForm.FUNCTION, shape.name, namespace)
    return build_tool(function, shape.parameters, relaxed, strict), caller_tool


def _build_custom(
    shape: CustomTool, name: str, description: str | None, path: str, relaxed: list[str]
) -> Tool:
    """Builds the function of a custom tool. A regular expression is enforced. The model sees a grammar,
    because none can be enforced inside a JSON text."""
    text: dict[str, object] = {"type": "string"}
    if isinstance(shape.format, GrammarFormat):
        if shape.format.syntax == "regex":
            text["pattern"] = f"^(?:{shape.format.definition})$"
        else:
            relaxed.append(f"{path}.format: lark")
            heading = "The input must have the form of this grammar in Lark's notation:"
            description = f"{description or ''}\n\n{heading}\n{shape.format.definition}".lstrip()
    parameters = {
        "type": "object",
        "properties": {INPUT: text},
        "required": [INPUT],
        "additionalProperties": False,
    }
    return Tool(name, description, parameters, field=f"{path}.format")


def _read_allowed(choice: ToolChoiceObject, tools: Mapping[str, Tool]) -> frozenset[str]:
    """Returns the names of the tools that the model can call. Raises a RequestError."""
    if choice.type != "allowed_tools":
        if choice.name is None:
            raise MissingParameter("tool_choice.name is missing", param="tool_choice.name")
        name = join_name(choice.namespace, choice.name)
        require_known_tool(name, tools, "tool_choice.name")
        return frozenset({name})
    if choice.tools is None:
        raise MissingParameter("tool_choice.tools is missing", param="tool_choice.tools")
    names = [join_name(tool.namespace, tool.name) for tool in choice.tools]
    for index, name in enumerate(names):
        require_known_tool(name, tools, f"tool_choice.tools[{index}].name")
    return frozenset(names)
