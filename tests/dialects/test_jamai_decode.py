"""Bodies of JamAI Base's endpoints: its defaults, its messages, and what its client sends by itself."""

import json
from typing import Any

import pytest

from antiphon.dialects.calls import GenerationCall
from antiphon.dialects.jamai.decode import decode_chat, decode_embeddings, decode_rerank
from antiphon.domain.messages import Role
from antiphon.domain.request import Conversation, Overflow
from antiphon.errors import InvalidValue, MissingParameter, UnknownParameter

HELLO: Any = [{"role": "user", "content": "Hi"}]
SYSTEM, USER, ASSISTANT = (
    {"role": role, "content": text} for role, text in (("system", "Be"), ("user", "Hi"), ("assistant", "Yes"))
)
CLIENT: Any = {
    "model": "",
    "rag_params": None,
    "tools": None,
    "tool_choice": None,
    "temperature": 0.2,
    "top_p": 0.6,
    "stream": False,
    "max_tokens": 2048,
    "stop": None,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": {},
    "reasoning_effort": None,
    "thinking_budget": None,
    "reasoning_summary": "auto",
    "id": "",
    "messages": [{"role": "user", "content": "Hi", "name": None}],
    "max_completion_tokens": None,
    "n": 1,
    "user": "",
}
"""What jamaibase 1.0.5 sends for a chat with one message."""


def decode(messages: Any = HELLO, **fields: Any) -> GenerationCall:
    return decode_chat(json.dumps({"messages": messages} | fields).encode())


def talk(call: GenerationCall) -> Conversation:
    (prompt,) = call.request.prompts
    assert isinstance(prompt, Conversation)
    return prompt


def turns(*messages: Any) -> list[tuple[str, str]]:
    return [(str(each.role), each.text) for each in talk(decode(list(messages))).messages]


def test_a_bare_chat_has_the_pages_defaults():
    call = decode()
    sampling, output = call.request.sampling, call.request.output
    assert (sampling.temperature, sampling.top_p, output.max_tokens) == (0.2, 0.6, 2048)
    assert (output.choices, output.overflow, output.is_default_max_tokens) == (1, Overflow.SHORTEN, True)
    assert call.request.model == "" and call.include_usage and not call.stream
    optional = "temperature top_p stop presence_penalty frequency_penalty logit_bias reasoning_effort"
    assert call.request.optional == {*optional.split(), "thinking_budget"} and call.ignored == ()


def test_what_the_client_sends_by_itself_asks_for_nothing_more():
    call, bare = decode_chat(json.dumps(CLIENT).encode()), decode()
    assert call.ignored == () and call.attribution.fields == ()
    assert talk(call) == talk(bare) and not call.request.output.is_default_max_tokens


@pytest.mark.parametrize(
    ("given", "completed"),
    [
        ([USER], [("user", "Hi")]),
        ([SYSTEM], [("system", "Be"), ("user", ".")]),
        ([ASSISTANT], [("system", "."), ("user", "."), ("assistant", "Yes")]),
        ([ASSISTANT, USER], [("system", "."), ("user", "."), ("assistant", "Yes"), ("user", "Hi")]),
        ([SYSTEM, ASSISTANT], [("system", "Be"), ("user", "."), ("assistant", "Yes")]),
        ([SYSTEM, USER], [("system", "Be"), ("user", "Hi")]),
        ([SYSTEM | {"content": ""}, USER], [("system", "."), ("user", "Hi")]),
        ([SYSTEM | {"content": None}], [("system", "."), ("user", ".")]),
        ([USER | {"content": None}], [("user", "")]),
        ([USER | {"content": []}], [("user", "")]),
        ([USER | {"content": [{"type": "text", "text": None}]}], [("user", "")]),
    ],
)
def test_turns_are_completed_as_jamai_does(given: Any, completed: Any):
    assert turns(*given) == completed


def test_an_error_names_the_place_that_the_caller_sent():
    with pytest.raises(MissingParameter) as problem:
        decode([ASSISTANT, {"role": "user"}])
    assert problem.value.param == "messages[1].content"


@pytest.mark.parametrize(("name", "kept"), [("Ada Lovelace!", "Ada_Lovelace_"), ("é", "_"), ("", None)])
def test_names_keep_letters_digits_and_lines(name: str, kept: str | None):
    (message,) = talk(decode([USER | {"name": name}])).messages
    assert message.role is Role.USER and message.name == kept


def test_empty_keywords_of_a_tool_are_absent():
    empty = {"type": "", "description": "", "enum": []}
    filled = {"type": "string", "description": "Where", "enum": ["Rome"]}
    parameters = {"type": "object", "properties": {"a": empty, "b": filled}, "required": ["b"]}
    tools = [{"function": {"name": "f", "parameters": parameters, "description": None, "strict": False}}]
    found = talk(decode(tools=tools)).tools
    assert found is not None
    assert found.tools[0].parameters == parameters | {"properties": {"a": {}, "b": filled}}


@pytest.mark.parametrize(
    ("fields", "limit", "ignored"),
    [
        ({"max_tokens": 9}, 9, ()),
        ({"max_completion_tokens": 7}, 7, ()),
        ({"max_tokens": 9, "max_completion_tokens": 7}, 7, ("max_tokens",)),
        ({"max_tokens": 7, "max_completion_tokens": 7}, 7, ()),
    ],
)
def test_the_newer_limit_wins(fields: Any, limit: int, ignored: Any):
    call = decode(**fields)
    assert (call.request.output.max_tokens, call.ignored) == (limit, ignored)


def test_reasoning_has_jamais_words():
    reasoning = talk(decode(reasoning_effort="disable", thinking_budget=7)).reasoning
    assert (reasoning.effort, reasoning.budget) == ("none", 7)
    assert (reasoning.field_names.effort, reasoning.field_names.budget) == (
        "reasoning_effort",
        "thinking_budget",
    )


def test_the_chats_id_is_a_tag():
    attribution = decode(id="chat-7", user="ada").attribution
    assert (attribution.end_user, attribution.tags) == ("ada", {"id": "chat-7"})
    assert attribution.fields == ("user", "id")


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"rag_params": {}}, MissingParameter, "rag_params.table_id"),
        ({"rag_params": {"k": 0}}, InvalidValue, "rag_params.k"),
        ({"rag_params": {"colour": 1}}, UnknownParameter, "rag_params.colour"),
        ({"rag_params": "t"}, InvalidValue, "rag_params"),
        ({"stop": "a"}, InvalidValue, "stop"),
        ({"stop": []}, InvalidValue, "stop"),
        ({"stop": list("abcde")}, InvalidValue, "stop"),
        ({"tools": []}, InvalidValue, "tools"),
        ({"top_p": 0}, InvalidValue, "top_p"),
        ({"max_tokens": 0}, InvalidValue, "max_tokens"),
        ({"messages": []}, InvalidValue, "messages"),
        ({"thinking_budget": 2049}, InvalidValue, "thinking_budget"),
        ({"reasoning_effort": "none"}, InvalidValue, "reasoning_effort"),
        ({"reasoning_summary": "long"}, InvalidValue, "reasoning_summary"),
        ({"id": "a\0"}, InvalidValue, "id"),
        ({"seed": 1}, UnknownParameter, "seed"),
    ],
)
def test_bad_values_are_refused_by_name(fields: Any, error: Any, param: str):
    with pytest.raises(error) as problem:
        decode(**fields)
    assert problem.value.param == param and param.rpartition(".")[2] in problem.value.message


def test_a_summary_of_another_kind_is_named():
    assert decode(reasoning_summary="concise").ignored == ("reasoning_summary",)


def test_embeddings_and_rankings_are_decoded():
    vectors = decode_embeddings(b'{"input": ["a", "b"], "type": "query", "dimensions": null, "model": ""}')
    assert len(vectors.request.inputs) == 2 and vectors.ignored == ("type",) and not vectors.as_base64
    ranking = decode_rerank(b'{"model": "r", "query": "q", "documents": ["a"]}').request
    assert (ranking.model, ranking.query, ranking.documents) == ("r", "q", ("a",))
    with pytest.raises(InvalidValue, match=r"documents\[0\]"):
        decode_rerank(b'{"query": "q", "documents": [""]}')
