"""Tools of a request, and the calls and results in its messages: checked, and as the domain has them."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.constraints.schemas import relaxed
from antiphon.dialects.openai.fields import sift
from antiphon.dialects.openai.places import Place
from antiphon.dialects.openai.wire import (
    FUNCTION_NAME,
    AllowedTools,
    ChatCompletionRequest,
    ChatMessage,
    Function,
    NamedTool,
    ToolChoiceShape,
    ToolShape,
)
from antiphon.dialects.strict_json import kind, read_object, shown_key
from antiphon.domain.tools import Tool, ToolCall, ToolChoice, Tools
from antiphon.errors import InvalidValue, MalformedBody, MissingParameter, UnsupportedParameter

NAME = re.compile(FUNCTION_NAME)

DEEPEST = 48
"""Lists and objects in each other of a schema, or of a call's arguments: templates print no deeper ones."""

MOST_RELAXED = 32
"""Keywords that an answer names."""

# --- sifting ------------------------------------------------------------------------------------------------


def sift_tools(given: dict[str, Any], report: list[str] | None) -> dict[str, Any]:
    """The same body with each tool sifted."""
    tools = given.get("tools")
    if not isinstance(tools, list):
        return given
    return given | {"tools": [_sifted(tool, f"tools[{at}]", report) for at, tool in enumerate(tools)]}


def _sifted(tool: object, where: str, report: list[str] | None) -> object:
    if not isinstance(tool, dict):
        return tool
    _require_function(tool, where)
    kept, _ = sift(tool, Place.TOOL, f"{where}.", report)
    if isinstance(function := kept.get("function"), dict):
        kept["function"], _ = sift(function, Place.FUNCTION, f"{where}.function.", report)
    return kept


def sift_calls(message: dict[str, Any], where: str, report: list[str] | None) -> None:
    """Sifts the calls of a message in place."""
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        message["tool_calls"] = [
            _sifted_call(call, f"{where}.tool_calls[{at}]", report) for at, call in enumerate(calls)
        ]


def _sifted_call(call: object, where: str, report: list[str] | None) -> object:
    if not isinstance(call, dict):
        return call
    _require_function(call, where)
    kept, _ = sift(call, Place.CALL, f"{where}.", report)
    if isinstance(function := kept.get("function"), dict):
        kept["function"], _ = sift(function, Place.CALLED, f"{where}.function.", report)
    return kept


def _require_function(given: Mapping[str, Any], where: str) -> None:
    said = given.get("type", "function")
    if isinstance(said, str) and said != "function":
        raise UnsupportedParameter(
            f"{where}.type {shown_key(said)} is not supported: only functions are called; send type function",
            param=f"{where}.type",
        )


# --- tools --------------------------------------------------------------------------------------------------


def asked_tools(wire: ChatCompletionRequest) -> tuple[Tools | None, tuple[str, ...]]:
    """The tools, and the keywords of their schemas that are not kept. Raises a RequestError."""
    choice = wire.tool_choice
    if not wire.tools:
        if wire.parallel_tool_calls is not None:
            raise InvalidValue(
                "parallel_tool_calls is taken only together with tools", param="parallel_tool_calls"
            )
        if choice in (None, "none", "auto"):
            return None, ()
        raise InvalidValue("tool_choice is taken only together with tools", param="tool_choice")
    tools, left_out = listed_tools(wire.tools)
    parallel = wire.parallel_tool_calls is not False
    return Tools(tools, *_chosen(choice, parallel, [tool.name for tool in tools])), left_out


def listed_tools(given: Sequence[ToolShape]) -> tuple[tuple[Tool, ...], tuple[str, ...]]:
    """The tools, and the keywords of their schemas that are not kept. Raises a RequestError."""
    left_out: list[str] = []
    tools = tuple(_tool(tool.function, f"tools[{at}].function", left_out) for at, tool in enumerate(given))
    names: set[str] = set()
    for at, tool in enumerate(tools):
        if tool.name in names:
            where = f"tools[{at}].function.name"
            raise InvalidValue(f"{where}: another tool is named {tool.name} too; name each once", param=where)
        names.add(tool.name)
    more = (f"and {len(left_out) - MOST_RELAXED} more",) if len(left_out) > MOST_RELAXED else ()
    return tools, (*left_out[:MOST_RELAXED], *more)


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
        kept, names = relaxed(parameters, field)
        left_out += [f"{field}: {shown_key(name)}" for name in names]
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
        _require_known(choice.function.name, names, "tool_choice.function.name")
        return ToolChoice.REQUIRED, False, frozenset({choice.function.name})
    if choice.allowed_tools is None:
        raise MissingParameter("tool_choice.allowed_tools is missing", param="tool_choice.allowed_tools")
    return _allowed(choice.allowed_tools, parallel, names)


def _allowed(
    asked: AllowedTools, parallel: bool, names: list[str]
) -> tuple[ToolChoice, bool, frozenset[str]]:
    tools: list[NamedTool] = asked.tools
    for at, tool in enumerate(tools):
        _require_known(tool.function.name, names, f"tool_choice.allowed_tools.tools[{at}].function.name")
    return ToolChoice(asked.mode), parallel, frozenset(tool.function.name for tool in tools)


def _require_known(name: str, names: list[str], where: str) -> None:
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
        if message.tool_calls is not None:
            _require_role(message, "assistant", f"{where}.tool_calls")
            _require_calls(message, where, known)
        if message.content is None and not message.tool_calls:
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


def _require_role(message: ChatMessage, role: str, where: str) -> None:
    if message.role != role:
        raise InvalidValue(f"{where} is taken only in messages of the role {role}", param=where)


def _require_calls(message: ChatMessage, where: str, known: set[str]) -> None:
    for at, call in enumerate(message.tool_calls or ()):
        place = f"{where}.tool_calls[{at}]"
        require_name(call.function.name, f"{place}.function.name")
        _require_object(call.function.arguments, f"{place}.function.arguments")
        if call.index not in (None, at):
            raise InvalidValue(f"{place}.index must be {at}, its place in the list", param=f"{place}.index")
        known.add(call.id)


def _require_object(arguments: str, where: str) -> None:
    """Templates print arguments as objects, so they are read as strictly as bodies are; what a number of too
    large an exponent becomes, JSON cannot say."""
    try:
        value = read_object(arguments.encode())
        require_shallow(value, where)
        json.dumps(value, allow_nan=False)
    except (MalformedBody, ValueError):
        raise InvalidValue(
            f"{where} must be a JSON object as a text, with each key once and numbers that are finite",
            param=where,
        ) from None


def made_calls(message: ChatMessage) -> tuple[ToolCall, ...]:
    """The calls of an assistant's turn."""
    return tuple(
        ToolCall(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()
    )
