"""Requests of the Responses API: items, turns, tools, reasoning, and what is ignored or refused."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.dialects.common.endpoints import LARGE_BODY
from antiphon.dialects.responses.decode import OPTIONAL, BodyDecoders, build_conversation
from antiphon.dialects.responses.dialect import declare_input_tokens
from antiphon.dialects.responses.items import LoadedInput
from antiphon.dialects.responses.tools import MOST_DEFINITIONS, CalledTool, CallForm, join_name
from antiphon.dialects.responses.wire_types import (
    FunctionCallItem,
    InputText,
    MessageItem,
    OutputText,
    ReasoningItem,
)
from antiphon.domain.memory import FittingTurns
from antiphon.domain.messages import CacheControl, MediaContent, Role, TextContent, ToolChoice
from antiphon.domain.request import ConstraintKind, Overflow
from antiphon.domain.stored_responses import SealedReasoning
from antiphon.errors import InvalidValue, MissingParameter, RequestError, UnsupportedParameter
from tests.support.responses_call import call, open_seal

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: dict[str, Any] = {"type": "function", "name": "get_weather", "description": "w", "parameters": CITY}
PATCH: dict[str, Any] = {"type": "custom", "name": "apply_patch", "description": "Edits files."}
SPACE: dict[str, Any] = {
    "type": "namespace",
    "name": "mcp__docs",
    "description": "Docs.",
    "tools": [TOOL | {"name": "search"}, PATCH | {"name": "note"}],
}
SEARCH: dict[str, Any] = {"type": "tool_search", "execution": "client", "parameters": CITY}
CALL = {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city": "Köln"}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "rain"}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}


def conversation(**fields: Any):
    return call(**fields).request.prompts[0]


def messages(*items: Any, **fields: Any):
    return conversation(input=list(items), **fields).messages


def said(role: str, content: Any, **fields: Any):
    return {"type": "message", "role": role, "content": content} | fields


def refused(**fields: Any):
    with pytest.raises(RequestError) as refusal:
        call(**fields)
    return refusal.value


def test_the_options_are_those_of_the_caller():
    decoded = call(
        temperature=0.5,
        top_p=0.9,
        presence_penalty=1,
        frequency_penalty=-1,
        max_output_tokens=9,
        stream=True,
        prompt_cache_key="k",
        service_tier="auto",
        text={"verbosity": "low"},
    )
    request = decoded.request
    sampling, output, vendor = request.sampling, request.output, request.vendor_options
    assert (sampling.temperature, sampling.top_p) == (0.5, 0.9)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1, -1)
    assert (output.max_tokens, output.overflow, output.logprobs) == (9, Overflow.SHORTEN, None)
    assert (vendor.verbosity, vendor.service_tier, vendor.prompt_cache_key) == ("low", "auto", "k")
    assert decoded.stream and not request.is_buffered and request.optional == OPTIONAL


def test_a_text_a_bare_message_and_an_item_are_the_same_prompt():
    bare = {"role": "user", "content": "Hi"}
    parts = said("user", [{"type": "input_text", "text": "Hi"}], id="msg_1", status="completed")
    assert conversation() == conversation(input=[bare]) == conversation(input=[parts])
    assert conversation(input=[{"role": "user", "content": ""}]).messages[0].text == ""


def test_instructions_are_the_first_message_and_late_ones_stay_in_their_place():
    """vllm-project/vllm#42407: a developer's message after the user's made a template fail."""
    found = messages(
        said("developer", "First."),
        said("user", "Q"),
        said("developer", "Second."),
        instructions="Be kind.",
    )
    assert [(message.role, message.text) for message in found] == [
        (Role.SYSTEM, "Be kind."),
        (Role.DEVELOPER, "First."),
        (Role.USER, "Q"),
        (Role.DEVELOPER, "Second."),
    ]


def test_input_is_required():
    for fields, kind in (({"input": None}, MissingParameter), ({"input": []}, InvalidValue)):
        error = refused(**fields)
        assert isinstance(error, kind) and error.param == "input"
    assert refused(model=None).param == "model"


def test_an_answer_of_several_items_is_one_message():
    answer = said("assistant", [{"type": "output_text", "text": "A", "annotations": [], "logprobs": []}])
    other = CALL | {"call_id": "c2", "name": "f", "arguments": "{}"}
    found = messages(
        said("user", "Q"), THOUGHT, answer, CALL, other, OUTPUT | {"call_id": "c2", "output": "2"}, OUTPUT
    )
    assert [message.role for message in found] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.TOOL]
    assistant, second, first = found[1:]
    assert (assistant.text, assistant.reasoning) == ("A", "hm")
    assert [(each.id, each.name, each.arguments) for each in assistant.tool_calls] == [
        ("c1", "get_weather", '{"city": "Köln"}'),
        ("c2", "f", "{}"),
    ]
    assert [(result.tool_call_id, result.text) for result in (second, first)] == [("c2", "2"), ("c1", "rain")]


def test_results_follow_their_calls_wherever_they_are():
    """Cursor-byok#307: a call, then text in one turn; the call was dropped and its output an orphan."""
    text = said("assistant", "Looking.")
    found = messages(said("user", "Q"), CALL, text, said("user", "And?"), OUTPUT)
    assert [message.role for message in found] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.USER]
    assert (found[1].text, found[1].tool_calls[0].id, found[2].text) == ("Looking.", "c1", "rain")


def test_a_result_without_its_call_is_refused_in_the_words_that_clients_know():
    error = refused(input=[said("user", "Q"), OUTPUT, CALL])
    assert error.param == "input[1].call_id"
    assert error.message == "No tool call found for function call output with call_id c1."


def test_results_can_be_parts_of_either_kind():
    """ggml-org/llama.cpp#23553 and #23465: a result of output_text was refused."""
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}
    parts = [{"type": "output_text", "text": "a"}, {"type": "input_text", "text": "b"}, image]
    result = messages(said("user", "Q"), CALL, OUTPUT | {"output": parts})[2]
    assert result.text == "ab" and isinstance(result.content[2], MediaContent)


def test_what_servers_assign_may_be_missing_or_null_and_arguments_an_object():
    """BerriAI/litellm#13420, openai/codex#12230, vllm-project/vllm#41355."""
    blank: dict[str, Any] = {
        "type": "reasoning",
        "summary": [],
        "content": None,
        "encrypted_content": None,
        "status": None,
    }
    sent = CALL | {"id": None, "status": None, "arguments": {"city": "Köln"}}
    decoded = call(input=[said("user", "Q", id=None), blank, sent, OUTPUT | {"id": None}])
    assert not decoded.ignored
    assistant = decoded.request.prompts[0].messages[1]
    assert json.loads(assistant.tool_calls[0].arguments) == {"city": "Köln"} and assistant.reasoning is None
    assert messages(said("user", "Q"), CALL | {"arguments": ""})[1].tool_calls[0].arguments == ""


def test_reasoning_is_its_content_or_its_summary():
    summary = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "so"}]}
    answer = said("assistant", "A")
    assert messages(said("user", "Q"), summary, answer)[1].reasoning == "so"
    assert messages(said("user", "Q"), summary | THOUGHT, answer)[1].reasoning == "hm"
    alone = call(input=[THOUGHT, said("user", "Q")])
    assert alone.ignored == ("input[].reasoning",) and len(alone.request.prompts[0].messages) == 1
    sealed = call(input=[said("user", "Q"), THOUGHT | {"content": None, "encrypted_content": "x"}, answer])
    assert sealed.ignored == ("input[].encrypted_content",)


def test_sealed_reasoning_comes_back_if_this_server_sealed_it():
    blank = {"type": "reasoning", "summary": []}
    answer = said("assistant", "A")
    own = call(input=[said("user", "Q"), blank | {"encrypted_content": "sealed hm"}, answer])
    assert own.request.prompts[0].messages[1].reasoning == "hm" and not own.ignored
    foreign = call(input=[said("user", "Q"), blank | {"encrypted_content": "gAAA"}, answer])
    assert foreign.request.prompts[0].messages[1].reasoning is None
    assert foreign.ignored == ("input[].encrypted_content",)
    summary = blank | {"summary": [{"type": "summary_text", "text": "so"}], "encrypted_content": "sealed hm"}
    assert messages(said("user", "Q"), summary, answer)[1].reasoning == "hm"


def test_blocks_of_a_vendor_go_back_to_it():
    block = {"type": "redacted_thinking", "data": "x", "after": {"text": 1, "calls": 0}}
    sealed = SealedReasoning("hm", vendor="anthropic", blocks=(block,))
    item = {"type": "reasoning", "summary": [], "encrypted_content": "x"}
    found = call(unseal=lambda text: sealed, input=[said("user", "Q"), item, said("assistant", "A")])
    message = found.request.prompts[0].messages[1]
    assert (message.reasoning, message.thinking_blocks) == ("hm", (block,))


def test_blocks_between_texts_keep_their_places():
    """Each text is a message of its own here. The vendor counts the characters without what joins them."""
    blocks = {
        str(place): {"type": "redacted_thinking", "data": "x", "after": {"text": place, "calls": 0}}
        for place in (1, 3)
    }
    items: list[Any] = []
    for place, text in (("1", "A"), ("3", "BC")):
        items += [said("assistant", text), {"type": "reasoning", "summary": [], "encrypted_content": place}]
    found = call(
        unseal=lambda place: SealedReasoning(blocks=(blocks[place],)),
        input=[said("user", "Q"), *items, said("assistant", "D")],
    )
    message = found.request.prompts[0].messages[1]
    places = [block["after"]["text"] for block in message.thinking_blocks]
    assert [message.text[:place] for place in places] == ["A", "A\n\nBC"]


def test_a_chain_is_before_the_requests_own_items():
    """vllm-project/vllm#43244: the call of the earlier turn was lost."""
    earlier = (
        MessageItem(role="user", content=[InputText(text="Q")], id="msg_1"),
        ReasoningItem(content=[], id="rs_1"),
        FunctionCallItem(call_id="c1", name="get_weather", arguments="{}", id="fc_1"),
    )
    found = call(earlier, input=[OUTPUT], instructions="Be kind.").request.prompts[0].messages
    assert [message.role for message in found] == [Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL]
    assert (found[2].tool_calls[0].id, found[3].text) == ("c1", "rain")
    talk = (*earlier[:1], MessageItem(role="assistant", content=[OutputText(text="A")]))
    assert len(call(talk, input=[]).request.prompts[0].messages) == 2
    with pytest.raises(InvalidValue) as refusal:
        call(earlier, input=[OUTPUT | {"call_id": "c2"}])
    assert refusal.value.param == "input[0].call_id"


def test_a_call_that_was_cut_and_has_no_result_is_left_out():
    """It would be without a result in each later turn."""
    cut = CALL | {"status": "incomplete", "arguments": '{"ci'}
    decoded = call(input=[said("user", "Q"), cut, said("user", "Again.")])
    assert [message.role for message in decoded.request.prompts[0].messages] == [Role.USER, Role.USER]
    assert decoded.ignored == ("input[].function_call",)
    assert len(messages(said("user", "Q"), cut, OUTPUT)) == 3


def test_a_refusal_and_a_phase_are_taken():
    answer = said("assistant", [{"type": "refusal", "refusal": "No."}], phase="final_answer")
    assert messages(said("user", "Q"), answer, said("user", "R"))[1].text == "No."


def test_a_function_is_a_tool():
    decoded = call(tools=[TOOL, TOOL | {"name": "now", "parameters": None, "strict": True}])
    tools = decoded.request.prompts[0].tools
    first, second = tools.tools
    assert (first.name, first.description, first.parameters) == ("get_weather", "w", CITY)
    assert (second.parameters, second.strict) == (None, True)
    assert (tools.choice, tools.parallel, tools.allowed) == (ToolChoice.AUTO, True, None)
    assert not decoded.called
    assert refused(tools=[TOOL, TOOL]).param == "tools[1].name"
    assert refused(tools=[TOOL | {"name": "no space"}]).param == "tools[0].name"
    assert refused(tools=[TOOL | {"name": "line_end\n"}]).param == "tools[0].name"
    assert refused(tools=[TOOL | {"parameters": {"type": "array"}}]).param == "tools[0].parameters.type"


def test_no_tools_go_with_a_choice_and_with_parallel_calls():
    """gLLM#267: tools [] with auto was refused."""
    assert conversation(tool_choice="auto", parallel_tool_calls=True, tools=[]).tools is None
    assert conversation(tool_choice="auto", parallel_tool_calls=True).tools is None
    assert conversation(tool_choice="none", parallel_tool_calls=False).tools is None
    assert refused(tool_choice="required", tools=[]).param == "tool_choice"


@pytest.mark.parametrize(
    ("choice", "kind", "parallel", "allowed"),
    [
        ("none", ToolChoice.NONE, True, None),
        ("required", ToolChoice.REQUIRED, True, None),
        ({"type": "function", "name": "get_weather"}, ToolChoice.REQUIRED, False, {"get_weather"}),
        ({"type": "custom", "name": "apply_patch"}, ToolChoice.REQUIRED, False, {"apply_patch"}),
        (
            {"type": "function", "name": "search", "namespace": "mcp__docs"},
            ToolChoice.REQUIRED,
            False,
            {"mcp__docs__search"},
        ),
        (
            {"type": "allowed_tools", "tools": [{"type": "function", "name": "get_weather"}]},
            ToolChoice.AUTO,
            True,
            {"get_weather"},
        ),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "custom", "name": "apply_patch"}, {"type": "web_search"}],
            },
            ToolChoice.REQUIRED,
            True,
            {"apply_patch"},
        ),
    ],
)
def test_the_choice_among_tools(choice, kind, parallel, allowed):
    tools = conversation(tools=[TOOL, PATCH, SPACE], tool_choice=choice).tools
    assert (tools.choice, tools.parallel, tools.allowed) == (kind, parallel, allowed)
    assert len(tools.tools) == 4


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"type": "function", "name": "other"}, "tool_choice.name"),
        ({"type": "function"}, "tool_choice.name"),
        ({"type": "web_search_preview"}, "tool_choice.type"),
        ({"type": "mcp", "server_label": "x"}, "tool_choice.type"),
        ({"type": "allowed_tools"}, "tool_choice.tools"),
        (
            {"type": "allowed_tools", "tools": [{"type": "function", "name": "other"}]},
            "tool_choice.tools[0].name",
        ),
    ],
)
def test_a_choice_of_a_tool_that_is_not_there_is_refused(choice, param):
    assert refused(tools=[TOOL], tool_choice=choice).param == param


def test_a_custom_tool_is_a_function_with_one_text():
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: PATCH"}
    number = {"type": "grammar", "syntax": "regex", "definition": "[0-9]+"}
    decoded = call(
        tools=[PATCH, PATCH | {"name": "g", "format": grammar}, PATCH | {"name": "n", "format": number}]
    )
    plain, described, matched = decoded.request.prompts[0].tools.tools
    assert plain.schema == {
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "required": ["input"],
        "additionalProperties": False,
    }
    assert described.description.endswith("Lark's notation:\nstart: PATCH")
    assert decoded.relaxed == ("tools[1].format: lark",)
    assert matched.schema["properties"]["input"]["pattern"] == "^(?:[0-9]+)$"
    assert decoded.called["apply_patch"] == CalledTool(CallForm.CUSTOM, "apply_patch")


def test_a_namespace_is_the_beginning_of_its_tools_names():
    """vllm-project/vllm#46737: the flat name came back, which Codex does not know."""
    decoded = call(tools=[SPACE])
    search, note = decoded.request.prompts[0].tools.tools
    assert (search.name, search.description) == ("mcp__docs__search", "Docs.\n\nw")
    assert decoded.called == {
        "mcp__docs__search": CalledTool(CallForm.FUNCTION, "search", "mcp__docs"),
        "mcp__docs__note": CalledTool(CallForm.CUSTOM, "note", "mcp__docs"),
    }
    assert note.schema["required"] == ["input"]
    used = messages(said("user", "Q"), CALL | {"name": "search", "namespace": "mcp__docs"}, tools=[SPACE])
    assert used[1].tool_calls[0].name == "mcp__docs__search"


def test_a_long_name_ends_with_a_hash():
    name = join_name("a" * 40, "b" * 40)
    assert len(name) == 64 and name.startswith("a" * 40 + "__b")
    assert name != join_name("a" * 40, "b" * 39 + "c")
    assert len(join_name("a" * 31, "b" * 31)) == 64


def test_custom_calls_and_their_results_are_those_of_the_function():
    custom = {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": 'a "b"\n'}
    output = {
        "type": "custom_tool_call_output",
        "call_id": "c1",
        "output": [{"type": "input_text", "text": "ok"}],
    }
    found = messages(said("user", "Q"), custom, output, tools=[PATCH])
    assert json.loads(found[1].tool_calls[0].arguments) == {"input": 'a "b"\n'}
    assert (found[2].tool_call_id, found[2].text) == ("c1", "ok")


def test_a_search_finds_tools_that_can_be_called_then():
    searched = {
        "type": "tool_search_call",
        "call_id": "c1",
        "execution": "client",
        "arguments": {"query": "weather"},
    }
    output = {"type": "tool_search_output", "call_id": "c1", "execution": "client", "tools": [TOOL, SPACE]}
    decoded = call(tools=[SEARCH], input=[said("user", "Q"), searched, output])
    prompt = decoded.request.prompts[0]
    assert [tool.name for tool in prompt.tools.tools] == [
        "tool_search",
        "get_weather",
        "mcp__docs__search",
        "mcp__docs__note",
    ]
    assert decoded.called["tool_search"].form is CallForm.SEARCH
    assistant, result = prompt.messages[1:]
    assert (assistant.tool_calls[0].name, assistant.tool_calls[0].arguments) == (
        "tool_search",
        '{"query": "weather"}',
    )
    assert json.loads(result.text.splitlines()[0]) == {
        "name": "get_weather",
        "description": "w",
        "parameters": CITY | {"additionalProperties": False},
    }
    again = [searched | {"call_id": "c2"}, output | {"call_id": "c2"}]
    assert (
        len(conversation(tools=[SEARCH], input=[said("user", "Q"), searched, output, *again]).tools.tools)
        == 4
    )


def test_tools_of_an_item_are_tools():
    """The newest models of Codex send all tools so."""
    item = {"type": "additional_tools", "role": "developer", "tools": [TOOL, SPACE]}
    decoded = call(
        input=[item, said("developer", "D"), said("user", "Q")], reasoning={"context": "all_turns"}
    )
    prompt = decoded.request.prompts[0]
    assert prompt == conversation(input=[said("developer", "D"), said("user", "Q")], tools=[TOOL, SPACE])
    assert not decoded.ignored
    late = conversation(input=[said("user", "Q"), item], tools=[PATCH])
    assert late.messages[1].role is Role.DEVELOPER and '"name": "get_weather"' in late.messages[1].text
    assert len(late.tools.tools) == 4


def test_definitions_in_items_have_a_bound_even_of_one_tool():
    item = {"type": "additional_tools", "tools": [{"type": "function", "name": "f"}] * (MOST_DEFINITIONS - 1)}
    assert len(conversation(input=[said("user", "Q"), item], tools=[TOOL]).tools.tools) == 2
    error = refused(input=[said("user", "Q"), item], tools=[TOOL, PATCH])
    assert error.param == "input" and "more than 16,384 tools" in error.message


def test_a_long_description_of_many_tools_fills_no_memory():
    space = SPACE | {"description": "x" * 200_000}
    members = [{"type": "function", "name": f"f{number}"} for number in range(100)]
    assert len(conversation(tools=[space]).tools.tools) == 2
    assert "more than 16,777,216 characters" in refused(tools=[space | {"tools": members}]).message


async def test_a_thread_reads_a_long_chain_of_a_small_request():
    """The event loop would serve nobody else meanwhile."""

    class Store:
        async def load_chain(self, id_: str, actor: Any) -> tuple[bytes, ...]:
            return (json.dumps([said("user", "x" * int(id_)) | {"type": "message", "id": "msg_a"}]).encode(),)

    works: list[bool] = []

    async def offload(work: Any) -> Any:
        works.append(True)
        return work()

    async def tokenize(call: Any, request: Any) -> Any:
        assert call.prompt.messages[0].text.strip("x") == ""
        return SimpleNamespace(ids=(1,))

    services: Any = SimpleNamespace(responses=Store(), offload=offload, tokenize=tokenize)
    handler: Any = declare_input_tokens(BodyDecoders()).handler
    for size, is_large in ((10, False), (LARGE_BODY, True)):
        body = json.dumps({"model": "m", "previous_response_id": str(size)}).encode()
        await handler(SimpleNamespace(actor=None, body=body), services)
        assert bool(works) == is_large


def test_tools_that_openai_runs_are_named_and_left_out():
    """ggml-org/llama.cpp#20156 and #22389: Codex' tools were refused."""
    hosted = [{"type": "web_search", "external_web_access": False}, {"type": "tool_search"}]
    decoded = call(tools=[TOOL, *hosted])
    assert [tool.name for tool in decoded.request.prompts[0].tools.tools] == ["get_weather"]
    assert decoded.ignored == ("tools[].web_search", "tools[].tool_search")
    error = refused(tools=hosted)
    assert isinstance(error, UnsupportedParameter) and error.param == "tools"


def test_history_of_tools_that_openai_ran_is_named_and_left_out():
    items = [
        said("user", "Q"),
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}},
        {"type": "mcp_list_tools", "id": "m", "server_label": "x", "tools": []},
        {"type": "item_of_tomorrow"},
    ]
    decoded = call(input=items)
    assert len(decoded.request.prompts[0].messages) == 1
    assert decoded.ignored == (
        "input[].web_search_call",
        "input[].mcp_list_tools",
        "input[].item_of_tomorrow",
    )


def test_options_of_tools_without_effect_are_named():
    decoded = call(
        tools=[TOOL | {"defer_loading": True, "async": True, "output_schema": {}, "allowed_callers": ["x"]}]
    )
    assert decoded.ignored == (
        "tools[].defer_loading",
        "tools[].allowed_callers",
        "tools[].async",
        "tools[].output_schema",
    )


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "compaction", "encrypted_content": "x"}, "input[0].type"),
        ({"role": "tool", "content": "x"}, "input[0].role"),
        ({"role": "user", "content": [{"type": "text", "text": "x"}]}, "input[0].content[0].type"),
        (
            {"role": "user", "content": [{"type": "input_image", "file_id": "f"}]},
            "input[0].content[0].file_id",
        ),
        ({"role": "user", "content": [{"type": "input_image"}]}, "input[0].content[0].image_url"),
        (
            {"role": "user", "content": [{"type": "input_file", "file_id": "f"}]},
            "input[0].content[0].file_id",
        ),
        (
            {"role": "system", "content": [{"type": "input_image", "image_url": "https://a.example/b.png"}]},
            "input[0].content",
        ),
        ({"type": "function_call", "name": "f"}, "input[0].call_id"),
        ("text", "input[0]"),
        (None, "input[0]"),
    ],
)
def test_an_item_that_would_be_lost_is_refused_by_its_place(item, param):
    assert refused(input=[item]).param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"prompt_cache_options": {"prewarm": True}}, "prompt_cache_options.prewarm"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"truncation": "sometimes"}, "truncation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ],
)
def test_a_field_that_would_change_the_answer_is_refused_by_name(fields, param):
    assert refused(**fields).param == param


def test_what_changes_nothing_is_taken():
    decoded = call(
        background=False,
        conversation=None,
        store=True,
        include=["reasoning.encrypted_content", "web_search_call.action.sources"],
        stream_options={"include_obfuscation": True},
        truncation="disabled",
        max_tool_calls=3,
        client_metadata={"session_id": "s"},
        reasoning={"mode": "standard", "context": "auto"},
        prompt_cache_retention="24h",
    )
    assert not decoded.ignored


def test_unknown_fields_are_named_and_not_refused():
    decoded = call(
        field_of_tomorrow=1,
        include=["thing.of_tomorrow"],
        input=[said("user", [{"type": "input_text", "text": "Hi", "color": 1}], mood="x")],
        text={"x": 1},
        reasoning={"summary": "concise"},
    )
    assert decoded.ignored == (
        "field_of_tomorrow",
        "input[].mood",
        "input[].content[].color",
        "text.x",
        "include[].thing.of_tomorrow",
        "reasoning.summary concise",
    )


def test_the_form_of_the_text():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    held = call(text={"format": {"type": "json_schema", "name": "n", "strict": True, "schema": schema}})
    constraint = held.request.output.constraint
    assert (constraint.kind, constraint.field) == (ConstraintKind.JSON_SCHEMA, "text.format.schema")
    assert json.loads(constraint.declared.source) == schema and constraint.declared.strict
    free = call(text={"format": {"type": "json_object"}}).request.output.constraint
    assert (free.kind, free.field) == (ConstraintKind.JSON_OBJECT, "text.format")
    assert call(text={"format": {"type": "text"}}).request.output.constraint is None


def test_the_last_update_of_options_holds():
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "integer"}}
    updates = [
        {"type": "configuration_update", "id": "cu_1", "reasoning": {"effort": "low"}},
        {"type": "configuration_update", "id": "cu_2", "text": {"format": schema}, "reasoning": None},
        {"type": "configuration_update", "id": "cu_3", "reasoning": {"effort": "high"}},
    ]
    decoded = call(input=[said("user", "Q"), *updates], reasoning={"effort": "medium", "summary": "auto"})
    assert decoded.request.prompts[0].reasoning.effort == "high" and decoded.has_summary
    assert decoded.request.output.constraint.kind is ConstraintKind.JSON_SCHEMA
    assert len(decoded.request.prompts[0].messages) == 1
    assert decoded.template.reasoning.effort == "high"


def test_marks_of_a_cached_prompt_go_to_the_vendor():
    parts = [
        {"type": "input_text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}},
        {"type": "input_text", "text": "b"},
    ]
    for role in ("user", "developer"):
        message = messages(said(role, parts), said("user", "Q"))[0]
        assert message.text == "ab"
        assert message.content == (TextContent("a", CacheControl("1h")), TextContent("b"))


def test_an_automatic_truncation_keeps_the_turns_that_fit():
    cut = call(truncation="auto")
    assert (cut.ignored, cut.request.memory) == ((), FittingTurns())
    assert call(truncation="disabled").request.memory is None


def test_log_probabilities_are_asked_for_in_either_way():
    included = ["message.output_text.logprobs"]
    assert call(include=included).request.output.logprobs == 0
    assert call(top_logprobs=3).request.output.logprobs == 3
    assert call(top_logprobs=0, include=[]).request.output.logprobs is None


def test_the_end_user_has_either_name():
    assert call(user="ada", metadata={"a": "b"}).attribution.end_user == "ada"
    assert call(safety_identifier="ada").attribution.end_user == "ada"


def test_reasoning_has_the_effort_and_perhaps_a_summary():
    decoded = call(reasoning={"effort": "high", "summary": "auto"})
    assert decoded.request.prompts[0].reasoning.effort == "high" and decoded.has_summary
    assert call(reasoning={"generate_summary": "auto"}).has_summary
    assert not call(reasoning={"effort": "low"}).has_summary


def test_a_count_takes_the_fields_of_the_prompt():
    body = {"model": "m", "input": "Hi", "instructions": "Be kind.", "tools": [TOOL], "x": 1}
    wire, report = BodyDecoders().decode_input_tokens(json.dumps(body).encode())
    own = (MessageItem(role="user", content="Hi"),)
    prompt, _ = build_conversation(wire, report, LoadedInput((), own), open_seal)
    assert (wire.model, report.names) == ("m", ("x",))
    assert prompt == conversation(instructions="Be kind.", tools=[TOOL])
