"""The structure of a conversation: leading system messages, turns, and tool results with their calls."""

from collections.abc import Mapping, Sequence

from antiphon.domain.messages import Message, Role
from antiphon.domain.token_estimate import measure_text

LEADING_ROLES = (Role.SYSTEM, Role.DEVELOPER)
"""The roles of leading messages, which every strategy keeps."""

FRAME_BYTES = 16
"""Bytes that a template writes around each message, approximately."""


def count_leading(messages: Sequence[Message]) -> int:
    """Returns the number of system and developer messages before the first other message."""
    other_indexes = (index for index, message in enumerate(messages) if message.role not in LEADING_ROLES)
    return next(other_indexes, len(messages))


def pair_results(messages: Sequence[Message]) -> Mapping[int, int]:
    """Returns a mapping from the index of each tool result to the index of the message with its call. If
    calls have the same id, a result belongs to the nearest call before it."""
    call_messages: dict[str, int] = {}
    pairs: dict[int, int] = {}
    for index, message in enumerate(messages):
        for call in message.tool_calls:
            call_messages[call.id] = index
        if message.role is Role.TOOL and message.tool_call_id in call_messages:
            pairs[index] = call_messages[message.tool_call_id]
    return pairs


def find_turns(messages: Sequence[Message]) -> tuple[int, ...]:
    """Returns the index of each turn's first message, without the leading messages. A turn begins with a
    message of the user. Messages before the first such message are a turn too. A turn never begins between
    a call and its result. Returns an empty tuple if there are only leading messages."""
    leading_count = count_leading(messages)
    if leading_count == len(messages):
        return ()
    inside_calls: set[int] = set()
    for result, call in pair_results(messages).items():
        inside_calls.update(range(call + 1, result + 1))
    user_messages = (at for at in range(leading_count + 1, len(messages)) if messages[at].role is Role.USER)
    return (leading_count, *(at for at in user_messages if at not in inside_calls))


def measure_message(message: Message) -> int:
    """Estimates how many bytes a message adds to the prompt, without images and recordings."""
    calls = sum(measure_text(call.name) + measure_text(call.arguments) for call in message.tool_calls)
    return FRAME_BYTES + measure_text(message.text) + measure_text(message.reasoning or "") + calls
