"""From a body of Fireworks' endpoints to a generation request, with the page's defaults and rules. What means
the same as in the superset of `/v1` is asked for in its words."""

from dataclasses import dataclass, replace
from typing import Any

from antiphon.dialects.base import Call
from antiphon.dialects.common import request_types as superset
from antiphon.dialects.common.constraint_fields import RelaxedConstraint, list_unread_fields, shorten_names
from antiphon.dialects.common.decode import build_chat_call, build_text_call
from antiphon.dialects.common.field_table import FieldReport
from antiphon.dialects.common.messages import filter_messages
from antiphon.dialects.common.strict_json import convert, read_object
from antiphon.dialects.common.tools import filter_tools, require_known
from antiphon.dialects.fireworks.constraints import read_fireworks_format
from antiphon.dialects.fireworks.fields import FireworksScope, filter_fields
from antiphon.dialects.fireworks.images import require_images
from antiphon.dialects.fireworks.reasoning import read_reasoning
from antiphon.dialects.fireworks.wire import (
    ChosenTool,
    FireworksChatCompletionRequest,
    FireworksCommonRequest,
    FireworksCompletionRequest,
)
from antiphon.domain.request import Conversation, Overflow
from antiphon.domain.values import changed
from antiphon.errors import InvalidValue, MissingParameter

CHAT_MAX_TOKENS = 200
"""What a choice of a chat makes when nothing is said."""

LEAST_REPETITION = 1e-6
"""What a repetition penalty of 0 is taken as: what it divides by cannot be 0, and this favours what is there
already as much as a logit can."""

DEFAULTS: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""The page's, which a model's own defaults do not change."""

SAME_FIELDS = (
    "model", "frequency_penalty", "presence_penalty", "repetition_penalty", "ignore_eos", "mirostat_target",
    "mirostat_lr", "n", "stop", "stream", "temperature", "top_k", "top_p", "min_p", "typical_p", "logit_bias",
    "seed", "return_token_ids", "user", "metadata",
)  # fmt: skip
"""Fields that the superset calls so too."""


@dataclass(frozen=True, slots=True)
class FireworksCall(Call):
    """A call, and the shape of its log-probabilities."""

    entries: bool = False
    """Whether they are entries, one for each token, and not arrays."""


def decode_text(body: bytes, report: bool = False, strict: bool = False) -> Call:
    """A body of POST completions. Raises a RequestError; with `report` not for unknown fields, which are then
    ignored and named; with `strict` every keyword of a schema has to be kept."""
    found = FieldReport(report)
    given = filter_fields(read_object(body), FireworksScope.TEXT, report=found)
    wire = convert(given, FireworksCompletionRequest)
    require_images(wire)
    limit = _read_max_tokens(wire, wire.max_tokens)
    asked = superset.CompletionRequest(
        prompt=wire.prompt,
        max_tokens=limit,
        echo=wire.echo,
        logprobs=_read_alternatives(wire),
        **_read_same_fields(wire),
    )
    form = read_fireworks_format(wire.response_format, strict)
    return _complete_call(build_text_call(asked, found.names), wire, form, limit is None)


def decode_chat(body: bytes, report: bool = False, strict: bool = False) -> Call:
    """A body of POST chat/completions. Raises a RequestError; the others as in `decode_text`."""
    found = FieldReport(report)
    given = filter_fields(read_object(body), FireworksScope.CHAT, report=found)
    wire = convert(filter_tools(filter_messages(given, found), found), FireworksChatCompletionRequest)
    limit, alternatives = _read_max_tokens(wire, wire.max_tokens), _read_alternatives(wire)
    asked = superset.ChatCompletionRequest(
        messages=wire.messages,
        max_tokens=CHAT_MAX_TOKENS if limit is None else limit,
        tools=wire.tools,
        tool_choice=_read_tool_choice(wire),
        parallel_tool_calls=wire.parallel_tool_calls,
        logprobs=alternatives is not None,
        top_logprobs=alternatives,
        **_read_same_fields(wire),
    )
    call = build_chat_call(asked, found.names, strict)
    thought = read_reasoning(wire)
    prompts = tuple(
        replace(prompt, reasoning=thought) if isinstance(prompt, Conversation) else prompt
        for prompt in call.request.prompts
    )
    form = read_fireworks_format(wire.response_format, strict)
    return _complete_call(
        replace(call, request=changed(call.request, prompts=prompts)), wire, form, limit is None
    )


def _read_same_fields(wire: FireworksCommonRequest) -> dict[str, Any]:
    said = {name: value for name in SAME_FIELDS if (value := getattr(wire, name)) is not None}
    if said.get("repetition_penalty") == 0:
        said["repetition_penalty"] = LEAST_REPETITION
    return DEFAULTS | said | {"cache_salt": wire.prompt_cache_isolation_key}


def _read_max_tokens(wire: FireworksCommonRequest, max_tokens: int | None) -> int | None:
    """The page's max_tokens, by either name."""
    newer = wire.max_completion_tokens
    if None is not newer != max_tokens is not None:
        raise InvalidValue(
            "max_tokens and max_completion_tokens differ; send one of them", param="max_completion_tokens"
        )
    return newer if max_tokens is None else max_tokens


def _read_alternatives(wire: FireworksCommonRequest) -> int | None:
    """How many of the likeliest tokens are asked for; None where no log-probability is."""
    if wire.logprobs is None or wire.logprobs is False:
        if wire.top_logprobs:
            raise InvalidValue("top_logprobs is taken only together with logprobs", param="top_logprobs")
        return None
    if wire.top_logprobs is not None:
        return wire.top_logprobs
    return 0 if wire.logprobs is True else wire.logprobs


def _read_tool_choice(
    wire: FireworksChatCompletionRequest,
) -> Any:  # noqa: ANN401 - the words that the superset takes, or its shape
    asked = wire.tool_choice
    if not isinstance(asked, ChosenTool):
        return "required" if asked == "any" else asked
    if (asked.name is None) == (asked.function is None):
        if asked.name is None:
            raise MissingParameter("tool_choice.function is missing", param="tool_choice.function")
        raise InvalidValue(
            "send tool_choice.name or tool_choice.function, not both", param="tool_choice.name"
        )
    if asked.name is not None and wire.tools:
        require_known(asked.name, [tool.function.name for tool in wire.tools], "tool_choice.name")
    return superset.ToolChoiceShape(
        "function", asked.function if asked.name is None else superset.NamedFunction(asked.name)
    )


def _complete_call(
    call: Call, wire: FireworksCommonRequest, form: RelaxedConstraint, is_usual: bool
) -> FireworksCall:
    """The call with what the superset has otherwise: what is kept of a stop text, what becomes of too many
    tokens, and usage in every stream. `is_usual`: whether the caller says no max_tokens."""
    output = changed(
        call.request.output,
        constraint=form.constraint,
        is_usual=is_usual,
        include_stop=True,
        overflow=Overflow.ERROR if wire.context_length_exceeded_behavior == "error" else Overflow.SHORTEN,
    )
    return FireworksCall(
        changed(call.request, output=output),
        call.stream,
        include_usage=True,
        ignored=call.ignored
        + (list_unread_fields(wire.response_format.json_schema) if wire.response_format else ()),
        relaxed=shorten_names(form.relaxed + call.relaxed),
        attribution=call.attribution,
        entries=wire.logprobs is True,
    )
