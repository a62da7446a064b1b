"""Conversations for tests, written by hand or drawn by hypothesis."""

from hypothesis import strategies as st

from antiphon.domain.messages import Message, Role, ToolCall
from antiphon.domain.values import replace

ROLES = {"s": Role.SYSTEM, "d": Role.DEVELOPER, "u": Role.USER, "a": Role.ASSISTANT, "c": Role.ASSISTANT,
         "t": Role.TOOL}  # fmt: skip


def talk(letters: str) -> tuple[Message, ...]:
    """One message for each letter, whose text is its place: system, developer, user, assistant, a call, and
    a tool's result of the latest call."""
    messages = []
    latest = ""
    for at, letter in enumerate(letters):
        message = Message(ROLES[letter], str(at))
        if letter == "c":
            latest = f"call-{at}"
            message = replace(message, tool_calls=(ToolCall(latest, "f", "{}"),))
        if letter == "t":
            message = replace(message, tool_call_id=latest)
        messages.append(message)
    return tuple(messages)


def places(messages) -> list[int]:
    """Where the messages stood."""
    return [int(message.text) for message in messages]


IDS = st.sampled_from(("a", "b", "c"))


@st.composite
def conversations(draw) -> tuple[Message, ...]:
    """Conversations whose results follow a call with their id at any distance; ids are used again."""
    messages = [Message(Role.SYSTEM, f"lead {at}") for at in range(draw(st.integers(0, 3)))]
    if messages and draw(st.booleans()):
        messages[-1] = replace(messages[-1], role=Role.DEVELOPER)
    known = []
    for at in range(draw(st.integers(0, 24))):
        kind = draw(st.sampled_from("uuaacctts"))
        text = f"{at} " + "word " * draw(st.integers(0, 12))
        if kind == "c":
            ids = draw(st.lists(IDS, min_size=1, max_size=3, unique=True))
            known += ids
            calls = tuple(ToolCall(each, "f", "{}") for each in ids)
            messages.append(Message(Role.ASSISTANT, text, tool_calls=calls))
        elif kind == "t" and known:
            messages.append(Message(Role.TOOL, text, tool_call_id=draw(st.sampled_from(known))))
        elif kind != "t":
            messages.append(Message(ROLES[kind], text))
    return tuple(messages)
