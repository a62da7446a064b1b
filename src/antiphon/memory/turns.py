"""The structure of a conversation: leading system messages, turns, and tool results with their calls."""

from collections.abc import Mapping, Sequence

from antiphon.domain.messages import Message, Role
from antiphon.domain.token_estimate import measure_text

INSTRUCTING = (Role.SYSTEM, Role.DEVELOPER)
"""The roles of leading messages, which every strategy keeps."""

FRAME = 16
"""Bytes that a template writes around a message, for estimates of its size."""


def count_leading(messages: Sequence[Message]) -> int:
    """Returns the number of system and developer messages before the first other message."""
    return next((at for at, each in enumerate(messages) if each.role not in INSTRUCTING), len(messages))


def pair_results(messages: Sequence[Message]) -> Mapping[int, int]:
    """Returns for each tool result the message with its call, both by index. Ids may be used again: a result
    belongs to the nearest call before it."""
    callers: dict[str, int] = {}
    pairs: dict[int, int] = {}
    for at, message in enumerate(messages):
        for call in message.tool_calls:
            callers[call.id] = at
        if message.role is Role.TOOL and message.tool_call_id in callers:
            pairs[at] = callers[message.tool_call_id]
    return pairs


def find_turns(messages: Sequence[Message]) -> tuple[int, ...]:
    """Returns the index of each turn's first message, without the leading messages. A turn begins with a
    message of the user; what precedes the first of them is a turn too. A turn never begins between a call
    and its result. The result is empty if there are only leading messages."""
    leading = count_leading(messages)
    if leading == len(messages):
        return ()
    inside = {at for result, call in pair_results(messages).items() for at in range(call + 1, result + 1)}
    users = (at for at in range(leading + 1, len(messages)) if messages[at].role is Role.USER)
    return (leading, *(at for at in users if at not in inside))


def measure_message(message: Message) -> int:
    """Estimates the bytes that a message adds to the prompt, without images and recordings."""
    calls = sum(measure_text(call.name) + measure_text(call.arguments) for call in message.tool_calls)
    return FRAME + measure_text(message.text) + measure_text(message.reasoning or "") + calls
