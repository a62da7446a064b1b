"""Tools of a request, and the calls and results in its messages: checked, and as the domain has them."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from antiphon.constraints.json_schema.lowering import relax
from antiphon.dialects.common.field_scopes import FieldScope
from antiphon.dialects.common.field_table import Report
from antiphon.dialects.common.fields import sift
from antiphon.dialects.common.relaxed_names import header_names
from antiphon.dialects.common.strict_json import kind, shown_key
from antiphon.dialects.common.wire import (
    FUNCTION_NAME,
    AllowedTools,
    ChatCompletionRequest,
    ChatMessage,
    Function,
    NamedTool,
    RefusalPart,
    TextPart,
    ToolChoiceShape,
    ToolShape,
)
from antiphon.domain.tools import Tool, ToolCall, ToolChoice, Tools
from antiphon.errors import InvalidValue, MissingParameter, UnsupportedParameter

NAME = re.compile(FUNCTION_NAME)

DEEPEST = 48
"""Lists and objects in each other of a schema, or of a call's arguments: templates print no deeper ones."""

# --- sifting ------------------------------------------------------------------------------------------------


def sift_tools(given: dict[str, Any], report: Report | None) -> dict[str, Any]:
    """The same body with each tool sifted."""
    tools = given.get("tools")
    if not isinstance(tools, list):
        return given
    return given | {"tools": [_sifted(tool, f"tools[{at}]", report) for at, tool in enumerate(tools)]}


def _sifted(tool: object, where: str, report: Report | None) -> object:
    if not isinstance(tool, dict):
        return tool
    _require_function(tool, where)
    kept = sift(tool, FieldScope.TOOL, f"{where}.", report)
    if isinstance(function := kept.get("function"), dict):
        kept["function"] = sift(function, FieldScope.FUNCTION, f"{where}.function.", report)
    return kept


def sift_calls(message: dict[str, Any], where: str, report: Report | None) -> None:
    """Sifts the calls of a message in place."""
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        message["tool_calls"] = [
            _sifted_call(call, f"{where}.tool_calls[{at}]", report) for at, call in enumerate(calls)
        ]


def _sifted_call(call: object, where: str, report: Report | None) -> object:
    if not isinstance(call, dict):
        return call
    _require_function(call, where)
    kept = sift(call, FieldScope.CALL, f"{where}.", report)
    if isinstance(function := kept.get("function"), dict):
        kept["function"] = sift(function, FieldScope.CALLED, f"{where}.function.", report)
    return kept


def _require_function(given: Mapping[str, Any], where: str) -> None:
    said = given.get("type", "function")
    if isinstance(said, str) and said != "function":
        raise UnsupportedParameter(
            f"{where}.type {shown_key(said)} is not supported: only functions are called; send type function",
            param=f"{where}.type",
        )


# --- tools --------------------------------------------------------------------------------------------------


def asked_tools(wire: ChatCompletionRequest, strict: bool = False) -> tuple[Tools | None, tuple[str, ...]]:
    """The tools, and the keywords of their schemas that are not kept; with `strict` each has to be. Raises a
    RequestError."""
    choice = wire.tool_choice
    if not wire.tools:
        if wire.parallel_tool_calls is not None:
            raise InvalidValue(
                "parallel_tool_calls is taken only together with tools", param="parallel_tool_calls"
            )
        if choice in (None, "none", "auto"):
            return None, ()
        raise InvalidValue("tool_choice is taken only together with tools", param="tool_choice")
    tools, left_out = listed_tools(wire.tools, strict)
    parallel = wire.parallel_tool_calls is not False
    return Tools(tools, *_chosen(choice, parallel, [tool.name for tool in tools])), left_out


def listed_tools(
    given: Sequence[ToolShape], strict: bool = False
) -> tuple[tuple[Tool, ...], tuple[str, ...]]:
    """The tools, and the keywords of their schemas that are not kept; with `strict` each has to be. Raises a
    RequestError."""
    left_out: list[str] = []
    functions = [replace(tool.function, strict=True) if strict else tool.function for tool in given]
    tools = tuple(_tool(each, f"tools[{at}].function", left_out) for at, each in enumerate(functions))
    names: set[str] = set()
    for at, tool in enumerate(tools):
        if tool.name in names:
            where = f"tools[{at}].function.name"
            raise InvalidValue(f"{where}: another tool is named {tool.name} too; name each once", param=where)
        names.add(tool.name)
    return tools, tuple(left_out)


def _tool(function: Function, where: str, left_out: list[str]) -> Tool:
    require_name(function.name, f"{where}.name")
    field, parameters = f"{where}.parameters", function.parameters
    if parameters is None:
        return Tool(function.name, function.description, None, bool(function.strict), field=field)
    require_shallow(parameters, field)
    if parameters.get("type", "object") != "object":
        raise InvalidValue(f"{field}.type must be object", param=f"{field}.type")
    kept: Mapping[str, object] = parameters
    if not function.strict:
        made, names = relax(parameters, field, without_references=True)
        kept = made if isinstance(made, dict) else {}
        left_out += header_names(field, names)
    return Tool(function.name, function.description, parameters, bool(function.strict), kept, field)


def _chosen(
    choice: str | ToolChoiceShape | None, parallel: bool, names: list[str]
) -> tuple[ToolChoice, bool, frozenset[str] | None]:
    """Whether to call, whether several at once, and which."""
    if not isinstance(choice, ToolChoiceShape):
        return ToolChoice(choice or "auto"), parallel, None
    other = "allowed_tools" if choice.type == "function" else "function"
    if getattr(choice, other) is not None:
        raise InvalidValue(f"tool_choice.{other} does not belong to its type", param=f"tool_choice.{other}")
    if choice.type == "function":
        if choice.function is None:
            raise MissingParameter("tool_choice.function is missing", param="tool_choice.function")
        require_known(choice.function.name, names, "tool_choice.function.name")
        return ToolChoice.REQUIRED, False, frozenset({choice.function.name})
    if choice.allowed_tools is None:
        raise MissingParameter("tool_choice.allowed_tools is missing", param="tool_choice.allowed_tools")
    return _allowed(choice.allowed_tools, parallel, names)


def _allowed(
    asked: AllowedTools, parallel: bool, names: list[str]
) -> tuple[ToolChoice, bool, frozenset[str]]:
    tools: list[NamedTool] = asked.tools
    for at, tool in enumerate(tools):
        require_known(tool.function.name, names, f"tool_choice.allowed_tools.tools[{at}].function.name")
    return ToolChoice(asked.mode), parallel, frozenset(tool.function.name for tool in tools)


def require_known(name: str, names: Iterable[str], where: str) -> None:
    """Raises InvalidValue for a name that no tool has."""
    if name not in names:
        raise InvalidValue(f"{where}: there is no tool named {shown_key(name)}", param=where)


def require_name(name: str, where: str) -> None:
    """Raises InvalidValue for what is no function's name."""
    if not NAME.match(name) or name.endswith("\n"):
        raise InvalidValue(
            f"{where} must have 1 to 64 letters, digits, underscores and hyphens; got {kind(name)}"
            + (f" of {len(name)} characters" if name else ""),
            param=where,
        )


def require_shallow(value: object, field: str) -> None:
    """Raises InvalidValue for lists and objects that nest too deep."""
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise InvalidValue(f"{field} is nested more than {DEEPEST} deep", param=field)


# --- messages -----------------------------------------------------------------------------------------------


def require_answered(messages: list[ChatMessage]) -> None:
    """Raises a RequestError where a message's parts do not belong together: content, calls, results."""
    known: set[str] = set()
    for at, message in enumerate(messages):
        where = f"messages[{at}]"
        if message.tool_calls:
            _require_role(message, "assistant", f"{where}.tool_calls")
            _require_calls(message, where, known)
        if message.refusal is not None:
            _require_role(message, "assistant", f"{where}.refusal")
        if isinstance(message.content, list):
            _require_parts(message, message.content, f"{where}.content")
        if message.content is None and message.role != "assistant":
            raise MissingParameter(f"{where}.content is missing", param=f"{where}.content")
        if message.role != "tool":
            if message.tool_call_id is not None:
                _require_role(message, "tool", f"{where}.tool_call_id")
        elif message.tool_call_id is None:
            raise MissingParameter(f"{where}.tool_call_id is missing", param=f"{where}.tool_call_id")
        elif message.tool_call_id not in known:
            raise InvalidValue(
                f"{where}.tool_call_id: no call before it has the id {shown_key(message.tool_call_id)}",
                param=f"{where}.tool_call_id",
            )


def _require_parts(message: ChatMessage, parts: Sequence[TextPart | RefusalPart], where: str) -> None:
    for at, part in enumerate(parts):
        if isinstance(part, RefusalPart):
            _require_role(message, "assistant", f"{where}[{at}].refusal")


def _require_role(message: ChatMessage, role: str, where: str) -> None:
    if message.role != role:
        raise InvalidValue(f"{where} is taken only in messages of the role {role}", param=where)


def _require_calls(message: ChatMessage, where: str, known: set[str]) -> None:
    for at, call in enumerate(message.tool_calls or ()):
        place = f"{where}.tool_calls[{at}]"
        require_name(call.function.name, f"{place}.function.name")
        if call.index not in (None, at):
            raise InvalidValue(f"{place}.index must be {at}, its place in the list", param=f"{place}.index")
        known.add(call.id)


def made_calls(message: ChatMessage, where: str) -> tuple[ToolCall, ...]:
    """The calls of an assistant's turn. Raises InvalidValue."""
    return tuple(
        ToolCall(
            call.id,
            call.function.name,
            _written(call.function.arguments, f"{where}.tool_calls[{at}].function.arguments"),
        )
        for at, call in enumerate(message.tool_calls or ())
    )


def _written(arguments: str | Mapping[str, Any], where: str) -> str:
    """Arguments as a text: as the model wrote them, whatever that is."""
    if isinstance(arguments, str):
        return arguments
    require_shallow(arguments, where)
    try:
        return json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise InvalidValue(f"{where} must hold finite numbers", param=where) from None
