"""Conversations that a chat template renders when it is loaded, to see what of them is in the prompt."""

from dataclasses import replace

from antiphon.domain.messages import Message, Role
from antiphon.domain.request import Conversation
from antiphon.domain.tools import Tool, ToolCall, Tools

PROBE = ToolCall("a0b1c2d3e", "probe_function", '{"probe_key": "probe_value"}')
RESULT = "probe_result"
_ASKED = Message(Role.USER, "probe")
PROBE_TOOLS = Conversation(
    (_ASKED,), tools=Tools((Tool(PROBE.name, "probe", {"type": "object", "properties": {}}),))
)
PROBE_CALL = Conversation(
    (
        _ASKED,
        Message(Role.ASSISTANT, "", tool_calls=(PROBE,)),
        Message(Role.TOOL, RESULT, PROBE.name, tool_call_id=PROBE.id),
    ),
    tools=PROBE_TOOLS.tools,
)
CUT = "probe_cut"
PROBE_CUT_CALL = Conversation(
    (_ASKED, Message(Role.ASSISTANT, "", tool_calls=(replace(PROBE, arguments=f'{{"probe_key": "{CUT}'),))),
    tools=PROBE_TOOLS.tools,
)
PROBE_REASONING = Conversation((_ASKED, Message(Role.ASSISTANT, "probe", reasoning=RESULT), _ASKED))
PROBE_TEXT = Conversation((Message(Role.USER, RESULT),))
PROBE_SYSTEM = Conversation((Message(Role.SYSTEM, RESULT), _ASKED))
