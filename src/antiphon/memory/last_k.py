"""The strategy `last_k`: keeps the leading system messages and the last k others."""

from antiphon.domain.memory import MEMORY_FIELD
from antiphon.domain.messages import Message
from antiphon.errors import InvalidValue
from antiphon.memory.turns import count_leading, pair_results


def keep_last_messages(messages: tuple[Message, ...], k: int) -> tuple[Message, ...]:
    """Returns the leading messages and the last k others, without results whose call is cut. Raises
    InvalidValue if only such results would remain."""
    leading = count_leading(messages)
    cut = max(leading, len(messages) - k)
    callers = pair_results(messages)
    kept = tuple(messages[at] for at in range(cut, len(messages)) if callers.get(at, at) >= cut)
    if not kept and leading < len(messages):
        raise InvalidValue(
            f"{MEMORY_FIELD}.k: the last {k} messages are results of a tool whose call is cut, so none would "
            "remain; send a larger k",
            param=f"{MEMORY_FIELD}.k",
        )
    return messages[:leading] + kept
