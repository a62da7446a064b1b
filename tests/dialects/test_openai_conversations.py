"""How a conversation shall be rendered: what a body says of it, and what is refused by its place."""

import json

import pytest

from antiphon.dialects.empower.decode import decode_chat as empower_chat
from antiphon.dialects.fireworks.decode import decode_chat as fireworks_chat
from antiphon.dialects.openai.dialect import decode_chat, decode_text
from antiphon.domain.messages import Role
from antiphon.errors import AntiphonError

USER = {"role": "user", "content": "hi"}
OPEN = {"role": "assistant", "content": "Well"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLING = {"role": "assistant", "content": "Let me", "tool_calls": [CALL]}


def chat(*messages, **fields):
    body = {"model": "m", "messages": list(messages) or [USER]} | fields
    (prompt,) = decode_chat(json.dumps(body).encode()).request.prompts
    return prompt


def refusal(*messages, **fields):
    with pytest.raises(AntiphonError) as caught:
        chat(*messages, **fields)
    return caught.value


def test_the_assistants_turn_is_opened_unless_disabled():
    assert chat().generation_prompt and not chat().continues
    assert chat(add_generation_prompt=True, continue_final_message=False) == chat()
    assert not chat(add_generation_prompt=False).generation_prompt


def test_a_last_message_of_the_assistants_may_be_left_open():
    for said in ({}, {"add_generation_prompt": False}):
        prompt = chat(USER, OPEN, continue_final_message=True, **said)
        assert (prompt.continues, prompt.generation_prompt) == (True, False)


@pytest.mark.parametrize(
    ("messages", "fields", "code"),
    [
        ((USER, OPEN), {"add_generation_prompt": True}, "invalid_value"),
        ((USER,), {}, "invalid_value"),
        ((OPEN, {"role": "system", "content": "x"}), {}, "invalid_value"),
        ((USER, CALLING), {}, "unsupported_parameter"),
    ],
)
def test_where_nothing_can_be_continued_the_field_is_refused(messages, fields, code):
    error = refusal(*messages, continue_final_message=True, **fields)
    assert (error.status, error.code, error.param) == (400, code, "continue_final_message")


def test_the_request_sets_the_template_its_values_and_documents():
    documents = [{"title": "a", "text": "b"}]
    prompt = chat(chat_template="{{ x }}", chat_template_kwargs={"x": [1, {"y": None}]}, documents=documents)
    assert prompt.template == "{{ x }}" and prompt.template_values == {"x": [1, {"y": None}]}
    assert prompt.documents == tuple(documents)
    assert chat(chat_template_kwargs={}, documents=[]) == chat()


def deep(levels):
    value: list[object] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"chat_template": ""}, "chat_template"),
        ({"chat_template": "x" * 100_001}, "chat_template"),
        ({"chat_template": 5}, "chat_template"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {f"x{at}": 1 for at in range(65)}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"x": "x" * 100_000}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"x": deep(60)}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"x-y": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"x\n": 1}}, "chat_template_kwargs"),
        ({"documents": "a text"}, "documents"),
        ({"documents": [deep(1)]}, "documents[0]"),
        ({"documents": [{"x": deep(60)}]}, "documents"),
        ({"documents": [{}] * 1025}, "documents"),
        ({"add_special_tokens": 1}, "add_special_tokens"),
        ({"continue_final_message": "yes"}, "continue_final_message"),
    ],
)
def test_what_is_too_large_or_no_value_is_refused_by_name(fields, param):
    error = refusal(**fields)
    assert (error.status, error.code, error.param) == (400, "invalid_value", param)


def test_numbers_that_json_cannot_say_are_no_values():
    body = b'{"model": "m", "messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": '
    body += b'{"x": 1e999}}'
    with pytest.raises(AntiphonError) as caught:
        decode_chat(body)
    assert (caught.value.status, caught.value.param) == (400, "chat_template_kwargs")


def test_the_begin_token_is_the_requests_to_say():
    assert [chat(**said).add_special for said in ({}, {"add_special_tokens": False})] == [None, False]

    def text(prompt, **fields):
        body = json.dumps({"model": "m", "prompt": prompt} | fields).encode()
        return [each.add_special for each in decode_text(body).request.prompts]

    assert text("a") == text([1]) == text("a", add_special_tokens=True) == [True]
    assert text(["a", "b"], add_special_tokens=False) == [False, False]


# --- roles and parts ---


@pytest.mark.parametrize("kind", ["file", "video_url"])
def test_parts_of_other_kinds_are_refused_at_their_place(kind):
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": kind, kind: {"url": "data:,"}},
    ]
    error = refusal(USER, {"role": "user", "content": parts})
    assert (error.status, error.code) == (400, "unsupported_parameter")
    assert error.param == f"messages[1].content[1].{kind}"
    assert "text, images" in error.message and "modalities" in error.message
    bare = refusal({"role": "user", "content": [{"type": kind}]})
    assert (bare.code, bare.param) == ("unsupported_parameter", "messages[0].content[0].type")


def test_what_the_client_dumps_of_an_answer_is_a_message_again():
    from openai.types.chat import ChatCompletionMessage

    said = ChatCompletionMessage(role="assistant", content="Hello", annotations=[])
    dumped = said.model_dump()
    assert {"refusal", "audio", "function_call", "tool_calls"} <= dumped.keys()
    assert chat(USER, dumped, USER).messages[1].text == "Hello"
    called = ChatCompletionMessage.model_validate(
        {"role": "assistant", "content": None, "tool_calls": [CALL]}
    )
    results = {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "4"}]}
    spoken = chat(USER, called.model_dump(), results | {"content": "3"}, results).messages
    assert spoken[1].tool_calls[0].name == "f" and spoken[1].text == ""
    assert [(message.role, message.text) for message in spoken[2:]] == [(Role.TOOL, "3"), (Role.TOOL, "4")]


@pytest.mark.parametrize("content", ["", None])
def test_text_may_be_empty_beside_calls(content):
    assert chat(USER, CALLING | {"content": content}).messages[1].text == ""


def test_what_a_message_cannot_hold_here_is_refused_by_name():
    error = refusal(USER, OPEN | {"function_call": {"name": "f", "arguments": "{}"}})
    assert (error.code, error.param) == ("unsupported_parameter", "messages[1].function_call")


def test_parts_of_every_role_are_joined():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    for role in ("system", "developer", "user", "assistant"):
        (message,) = chat({"role": role, "content": parts}).messages
        assert (message.role, message.text) == (Role(role), "ab")


# --- what clients send back of answers ---

REFUSING = {"role": "assistant", "refusal": "I will not."}


def decoded(*messages):
    """A chat that begins with these messages, by every dialect that takes some."""
    body = json.dumps({"model": "m", "messages": [*messages, USER]}).encode()
    return decode_chat(body), fireworks_chat(body), empower_chat(body)


@pytest.mark.parametrize(
    "message", [REFUSING, REFUSING | {"content": None}, REFUSING | {"content": ""},
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not."}]}]
)  # fmt: skip
def test_a_refusal_is_the_text_where_there_is_no_other(message):
    for call in decoded(USER, message):
        assert call.request.prompts[0].messages[1].text == "I will not."
        assert call.ignored == ()


def test_a_refusal_beside_content_is_named():
    for call in decoded(USER, REFUSING | {"content": "Yes."}):
        assert call.request.prompts[0].messages[1].text == "Yes."
        assert call.ignored == ("messages[].refusal",)


def test_only_an_assistant_refuses():
    for message, field in (
        (USER | {"refusal": "No."}, "refusal"),
        ({"role": "user", "content": [{"type": "refusal", "refusal": "No."}]}, "content[0].refusal"),
    ):
        error = refusal(USER, message)
        assert (error.code, error.param) == ("invalid_value", f"messages[1].{field}")


ECHOING = OPEN | {
    "provider_specific_fields": {"refusal": None},
    "annotations": [{"type": "url_citation"}],
    "reasoning_details": [{"type": "thinking", "thinking": "Hm."}],
    "images": [{"type": "image_url"}],
    "parsed": {"a": [1]},
    "id": "m-1",
    "created_at": 1.5,
    "function_call": None,
    "audio": None,
    "name": None,
    "tool_calls": [CALL | {"provider_specific_fields": {"x": 1}, "function": {
        "name": "f", "arguments": "{}", "provider_specific_fields": [], "parsed_arguments": {}}}],
}  # fmt: skip


def test_what_only_repeats_an_answer_is_taken_and_named():
    for call in decoded(USER, ECHOING, ECHOING):
        first, second = call.request.prompts[0].messages[1:3]
        assert first == second and (first.text, first.tool_calls[0].name) == ("Well", "f")
        assert call.ignored == (
            *(f"messages[].{name}" for name in ECHOING if ECHOING[name] is not None and name not in OPEN
              and name != "tool_calls"),
            "messages[].tool_calls[].provider_specific_fields",
            "messages[].tool_calls[].function.provider_specific_fields",
            "messages[].tool_calls[].function.parsed_arguments",
        )  # fmt: skip


def test_images_are_taken_only_where_a_server_made_them():
    error = refusal(USER | {"images": ["data:,"]})
    assert (error.code, error.param) == ("unsupported_parameter", "messages[0].images")


def test_an_assistants_turn_may_be_empty():
    for message in ({}, {"content": None}, {"content": "", "tool_calls": []}, {"tool_calls": None}):
        assert chat(USER, {"role": "assistant"} | message, USER).messages[1].text == ""
    assert chat(USER | {"tool_calls": []}).messages[0].tool_calls == ()
