"""A conversation with what is said of its rendering: the assistant's turn opened or the last message left
open, a template of the request's own, values and documents for it. What of them the model's template can take
is not known here."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from antiphon.dialects.common.strict_json import shown_key
from antiphon.dialects.common.tools import require_shallow
from antiphon.domain.messages import Message
from antiphon.domain.request import Conversation, Reasoning
from antiphon.domain.tools import Tools
from antiphon.errors import InvalidValue, UnsupportedParameter

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
"""A template's variable."""

LARGEST_VALUES = 100_000
"""Characters of JSON that `chat_template_kwargs` may take: some tools or a long text, and no second body."""

VALUES = "chat_template_kwargs"


AS_IT_DOES = Reasoning()
"""What a request that says nothing of reasoning asks for."""


class Rendered(Protocol):
    """What is said of a conversation beside its messages and tools."""

    @property
    def add_generation_prompt(self) -> bool | None: ...
    @property
    def continue_final_message(self) -> bool | None: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def chat_template_kwargs(self) -> dict[str, Any] | None: ...
    @property
    def documents(self) -> list[dict[str, Any]] | None: ...


def rendered(
    wire: Rendered,
    messages: Sequence[Message],
    tools: Tools | None,
    add_special: bool | None = None,
    reasoning: Reasoning = AS_IT_DOES,
) -> Conversation:
    """The conversation of these messages as the request wants it rendered. Raises a RequestError."""
    continues = wire.continue_final_message is True
    if continues:
        _require_open(wire, messages[-1])
    return Conversation(
        messages=tuple(messages),
        generation_prompt=not continues and wire.add_generation_prompt is not False,
        tools=tools,
        continues=continues,
        template=wire.chat_template,
        template_values=_values(wire.chat_template_kwargs),
        documents=_documents(wire.documents),
        reasoning=reasoning,
        add_special=add_special,
    )


def _require_open(wire: Rendered, last: Message) -> None:
    """Raises a RequestError where there is no message that could be continued."""
    field = "continue_final_message"
    if wire.add_generation_prompt:
        raise InvalidValue(
            f"{field} and add_generation_prompt cannot both be true: the first leaves the last message open, "
            "the second begins a new one",
            param=field,
        )
    if last.role != "assistant":
        raise InvalidValue(
            f"{field} is taken only where the last message is the assistant's; it is the {last.role}'s",
            param=field,
        )
    if last.tool_calls:
        raise UnsupportedParameter(
            f"{field} is not supported for a message with tool_calls: they stand after its text",
            param=field,
        )


def _values(given: Mapping[str, Any] | None) -> Mapping[str, object]:
    if not given:
        return {}
    for name in given:
        if not NAME.fullmatch(name):
            raise InvalidValue(
                f"{VALUES}.{shown_key(name)} is no name of a template's variable", param=VALUES
            )
    _require_small(given, VALUES)
    return given


def _documents(given: list[dict[str, Any]] | None) -> tuple[Mapping[str, object], ...] | None:
    if not given:
        return None
    require_shallow(given, "documents")
    _require_finite(given, "documents")
    return tuple(given)


def _require_small(value: Mapping[str, Any], field: str) -> None:
    require_shallow(value, field)
    size = len(_require_finite(value, field))
    if size > LARGEST_VALUES:
        raise InvalidValue(
            f"{field} has {size:,} characters as JSON, and {LARGEST_VALUES:,} are the most", param=field
        )


def _require_finite(value: object, field: str) -> str:
    """The value as JSON. Raises InvalidValue for a number with too large an exponent or too many digits."""
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    except ValueError:
        raise InvalidValue(f"{field} must hold finite numbers", param=field) from None
