"""Calls in the notations of families, over the wire: the same by both APIs, streamed and buffered."""

import json

from antiphon_testing import Script, scripted_info
from tests.support.calling_engine import CallingEngine
from tests.support.http_server import serving_tokens
from tests.support.tool_templates import GEMMA, GLM, KIMI, QWEN_CODER

ARGUMENTS = {"path": "a <b>.html", "line": 5, "text": '<p>\n"5"</p>'}
PARAMETERS = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "line": {"type": "integer"}, "text": {"type": "string"}},
    "required": ["path"],
}
WRITTEN = {
    "qwen": (
        QWEN_CODER,
        "<tool_call>\n<function=edit>\n<parameter=path>\na <b>.html\n</parameter>\n<parameter=line>\n5\n"
        "</parameter>\n"
        '<parameter=text>\n<p>\n"5"</p>\n</parameter>\n</function>\n</tool_call>',
    ),
    "glm": (
        GLM,
        "<tool_call>edit\n<arg_key>path</arg_key>\n<arg_value>a <b>.html</arg_value>\n<arg_key>line</arg_key>"
        "\n"
        '<arg_value>5</arg_value>\n<arg_key>text</arg_key>\n<arg_value><p>\n"5"</p></arg_value>\n</tool_call>',
    ),
    "kimi": (
        KIMI,
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.edit:0<|tool_call_argument_begin|>"
        f"{json.dumps(ARGUMENTS)}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "gemma": (
        GEMMA,
        '<|tool_call>call:edit{line:5,path:<|"|>a <b>.html<|"|>,text:<|"|><p>\n"5"</p><|"|>}<tool_call|>',
    ),
}


async def test_calls_of_every_notation_reach_the_client_as_json():
    engines = {
        name: CallingEngine(
            Script(f"I edit.\n{text}", burst=3), info=scripted_info(8192, chat_template=source)
        )
        for name, (source, text) in WRITTEN.items()
    }
    messages = [{"role": "user", "content": "Hi"}]
    tools = [{"type": "function", "function": {"name": "edit", "parameters": PARAMETERS}}]
    async with serving_tokens(**engines) as served:
        for name in WRITTEN:
            body = {"model": name, "messages": messages, "tools": tools, "max_tokens": 999}
            (choice,) = (await served.ask("/v1/chat/completions", body)).json()["choices"]
            (call,) = choice["message"]["tool_calls"]
            assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "I edit."), name
            assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (
                "edit",
                ARGUMENTS,
            )
            chunks = (await served.ask("/v1/chat/completions", body | {"stream": True})).events()
            deltas = [choice["delta"] for each in chunks[:-1] for choice in each["choices"]]
            parts = [part["function"] for delta in deltas for part in delta.get("tool_calls") or []]
            assert "".join(delta.get("content") or "" for delta in deltas) == "I edit."
            assert parts[0]["name"] == "edit"
            assert "".join(part.get("arguments") or "" for part in parts) == call["function"]["arguments"]
            claude = {"name": "edit", "input_schema": PARAMETERS}
            reply = await served.ask("/v1/messages", body | {"tools": [claude]})
            text, used = reply.json()["content"]
            assert (text["text"], used["name"], used["input"]) == ("I edit.", "edit", ARGUMENTS)
