"""Reads and checks the tools of a request and the choice among them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from antiphon.bodies.strict_json import describe_value, sanitize_key
from antiphon.constraints.json_schema.lowering import relax_schema
from antiphon.constraints.shared_schemas import share_schema
from antiphon.dialects.common.constraint_fields import name_keywords
from antiphon.dialects.common.field_table import FieldReport
from antiphon.dialects.common.fields import FieldScope, filter_fields
from antiphon.dialects.common.request_types import (
    FUNCTION_NAME,
    AllowedTools,
    CacheControlShape,
    Function,
    NamedTool,
    ToolChoiceShape,
    ToolShape,
)
from antiphon.domain.messages import CacheControl, Tool, ToolChoice, Tools
from antiphon.domain.values import replace
from antiphon.errors import InvalidValue, MissingParameter, UnsupportedParameter

FUNCTION_NAME_PATTERN = re.compile(FUNCTION_NAME)

MOST_LEVELS = 48
"""The most levels of lists and objects in a schema or in a call's arguments. Templates cannot render deeper
values."""

# --- filtering ----------------------------------------------------------------------------------------------


def filter_tools(fields: dict[str, Any], report: FieldReport | None) -> dict[str, Any]:
    """Returns the body with the fields of each tool filtered."""
    tools = fields.get("tools")
    if not isinstance(tools, list):
        return fields
    return fields | {
        "tools": [_filter_tool(tool, f"tools[{index}]", report) for index, tool in enumerate(tools)]
    }


def _filter_tool(tool: object, field: str, report: FieldReport | None) -> object:
    """Returns the tool with its fields filtered. A value that is not an object stays unchanged."""
    if not isinstance(tool, dict):
        return tool
    require_function(tool, field)
    filtered_tool = filter_fields(tool, FieldScope.TOOL, f"{field}.", report)
    if isinstance(function := filtered_tool.get("function"), dict):
        filtered_tool["function"] = filter_fields(function, FieldScope.FUNCTION, f"{field}.function.", report)
    return filtered_tool


def require_function(tool: Mapping[str, Any], field: str) -> None:
    """Raises UnsupportedParameter if the tool or the call has another type than `function`."""
    kind = tool.get("type", "function")
    if isinstance(kind, str) and kind != "function":
        raise UnsupportedParameter(
            f"{field}.type {sanitize_key(kind)} is not supported: only functions are called; send type "
            "function",
            param=f"{field}.type",
        )


# --- tools --------------------------------------------------------------------------------------------------


def read_tools(
    shapes: Sequence[ToolShape] | None,
    choice: str | ToolChoiceShape | None,
    parallel: bool | None,
    strict: bool = False,
) -> tuple[Tools | None, tuple[str, ...]]:
    """Reads the tools, and returns them with the schema keywords that are not enforced. `choice` and
    `parallel`: the values of `tool_choice` and `parallel_tool_calls`. `strict`: every keyword must be
    enforced. Raises a RequestError."""
    if not shapes:
        if parallel is not None:
            raise InvalidValue(
                "parallel_tool_calls is taken only together with tools", param="parallel_tool_calls"
            )
        if choice in (None, "none", "auto"):
            return None, ()
        raise InvalidValue("tool_choice is taken only together with tools", param="tool_choice")
    tools, relaxed = build_tools(shapes, strict)
    names = [tool.name for tool in tools]
    return Tools(tools, *_read_tool_choice(choice, parallel is not False, names)), relaxed


def build_tools(
    shapes: Sequence[ToolShape], strict: bool = False
) -> tuple[tuple[Tool, ...], tuple[str, ...]]:
    """Builds the tools, and returns them with the schema keywords that are not enforced. `strict`: every
    keyword must be enforced. Raises a RequestError."""
    relaxed: list[str] = []
    tools = tuple(
        _add_cache_control(
            _build_tool(shape.function, f"tools[{index}].function", relaxed, strict), shape.cache_control
        )
        for index, shape in enumerate(shapes)
    )
    names: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in names:
            field = f"tools[{index}].function.name"
            raise InvalidValue(f"{field}: another tool is named {tool.name} too; name each once", param=field)
        names.add(tool.name)
    return tools, tuple(relaxed)


def _add_cache_control(tool: Tool, cache_control: CacheControlShape | None) -> Tool:
    """Returns the tool with its mark for a vendor's cache."""
    return tool if cache_control is None else replace(tool, cache_control=CacheControl(cache_control.ttl))


def _build_tool(function: Function, path: str, relaxed: list[str], strict: bool) -> Tool:
    """Builds one tool. The parameters are those of `build_tool`."""
    require_function_name(function.name, f"{path}.name")
    tool = Tool(function.name, function.description, strict=bool(function.strict), field=f"{path}.parameters")
    return build_tool(tool, function.parameters, relaxed, strict)


def build_tool(tool: Tool, parameters: Mapping[str, object] | None, relaxed: list[str], strict: bool) -> Tool:
    """Returns the tool with the schema of its arguments. Adds the schema keywords that are not enforced to
    `relaxed`. `strict`: the operator requires every keyword. A vendor gets only the caller's own `strict`.
    Raises InvalidValue."""
    if parameters is None:
        return tool
    shared = share_schema(parameters)
    shared.remember(require_shallow, lambda: require_shallow(parameters, tool.field))
    if parameters.get("type", "object") != "object":
        raise InvalidValue(f"{tool.field}.type must be object", param=f"{tool.field}.type")
    enforced_schema = shared.schema
    if not (strict or tool.strict):
        schema, keywords = relax_schema(shared, tool.field, without_references=True)
        enforced_schema = schema if isinstance(schema, dict) else {}
        relaxed += name_keywords(tool.field, keywords)
    return replace(tool, parameters=shared.schema, supported_schema=enforced_schema, shared=shared)


def _read_tool_choice(
    choice: str | ToolChoiceShape | None, parallel: bool, tool_names: list[str]
) -> tuple[ToolChoice, bool, frozenset[str] | None]:
    """Returns whether the model must call a tool, whether several calls are allowed, and the names of the
    tools that can be called."""
    if not isinstance(choice, ToolChoiceShape):
        return ToolChoice(choice or "auto"), parallel, None
    other_field = "allowed_tools" if choice.type == "function" else "function"
    if getattr(choice, other_field) is not None:
        raise InvalidValue(
            f"tool_choice.{other_field} does not belong to type {choice.type}",
            param=f"tool_choice.{other_field}",
        )
    if choice.type == "function":
        if choice.function is None:
            raise MissingParameter("tool_choice.function is missing", param="tool_choice.function")
        require_known_tool(choice.function.name, tool_names, "tool_choice.function.name")
        return ToolChoice.REQUIRED, False, frozenset({choice.function.name})
    if choice.allowed_tools is None:
        raise MissingParameter("tool_choice.allowed_tools is missing", param="tool_choice.allowed_tools")
    return _read_allowed_tools(choice.allowed_tools, parallel, tool_names)


def _read_allowed_tools(
    allowed_tools: AllowedTools, parallel: bool, tool_names: list[str]
) -> tuple[ToolChoice, bool, frozenset[str]]:
    """Returns whether the model must call a tool, whether several calls are allowed, and the allowed names.
    Raises InvalidValue for an unknown tool."""
    tools: list[NamedTool] = allowed_tools.tools
    for index, tool in enumerate(tools):
        require_known_tool(
            tool.function.name, tool_names, f"tool_choice.allowed_tools.tools[{index}].function.name"
        )
    return ToolChoice(allowed_tools.mode), parallel, frozenset(tool.function.name for tool in tools)


def require_known_tool(name: str, names: Iterable[str], field: str) -> None:
    """Raises InvalidValue if no tool has this name."""
    if name not in names:
        raise InvalidValue(f"{field}: there is no tool named {sanitize_key(name)}", param=field)


def require_function_name(name: str, field: str) -> None:
    """Raises InvalidValue for an invalid function name."""
    if not FUNCTION_NAME_PATTERN.match(name) or name.endswith("\n"):
        raise InvalidValue(
            f"{field} must have 1 to 64 letters, digits, underscores and hyphens; got {describe_value(name)}"
            + (f" of {len(name)} characters" if name else ""),
            param=field,
        )


def require_shallow(value: object, field: str) -> None:
    """Raises InvalidValue if lists and objects are nested too deeply."""
    level: list[Any] = [value]
    for _ in range(MOST_LEVELS):
        level = [
            member
            for container in level
            for member in (container.values() if isinstance(container, dict) else container)
            if isinstance(member, dict | list)
        ]
        if not level:
            return
    raise InvalidValue(f"{field} is nested more than {MOST_LEVELS} deep", param=field)
