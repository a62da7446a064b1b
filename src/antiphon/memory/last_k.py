"""The strategy `last_k`: keeps the leading system messages and the last k others."""

from antiphon.domain.memory import MEMORY_FIELD
from antiphon.domain.messages import Message
from antiphon.errors import InvalidValue
from antiphon.memory.turns import count_leading, pair_results


def keep_last_messages(
    messages: tuple[Message, ...], k: int, place: str = MEMORY_FIELD
) -> tuple[Message, ...]:
    """Returns the leading messages and the last k others, without results whose call is cut. `place`:
    the caller's name of the strategy. Raises InvalidValue if only such results would remain."""
    leading = count_leading(messages)
    cut = max(leading, len(messages) - k)
    callers = pair_results(messages)
    kept = tuple(messages[at] for at in range(cut, len(messages)) if callers.get(at, at) >= cut)
    if not kept and leading < len(messages):
        raise InvalidValue(
            f"{place}.k: the last {k} messages are results of a tool whose call is cut, so none would "
            "remain; send a larger k",
            param=f"{place}.k",
        )
    return messages[:leading] + kept
