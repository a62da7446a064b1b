"""vLLM's two endpoints for token ids, and the list of models: bodies in, bodies out."""

import json

import pytest

from antiphon.dialects.calls import ApplyCall, DetokenizeCall, TokenizeCall
from antiphon.dialects.openai import tokens
from antiphon.dialects.openai.dialect import OpenAIModels, decode_text
from antiphon.dialects.services import ModelEntry, PromptTokens
from antiphon.domain.fields import MAX_IDS
from antiphon.domain.messages import Message, Role
from antiphon.domain.request import Conversation, RawPrompt
from antiphon.errors import AntiphonError, InvalidValue
from antiphon_testing.scripted_engine import SCRIPTED_PROFILE

MESSAGES = [{"role": "user", "content": "hi"}]
TURNS = (Message(Role.USER, "hi"),)
TOOL = {"type": "function", "function": {"name": "f"}}
OPEN = [*MESSAGES, {"role": "assistant", "content": "Well"}]
LEFT_OPEN = (*TURNS, Message(Role.ASSISTANT, "Well"))


def tokenize(**body):
    return tokens.decode_tokenize(json.dumps(body).encode())


def detokenize(**body):
    return tokens.decode_detokenize(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("body", "call"),
    [
        ({"prompt": "a"}, TokenizeCall(None, RawPrompt("a"))),
        ({"prompt": ""}, TokenizeCall(None, RawPrompt(""))),
        (
            {"model": "m", "prompt": "a", "add_special_tokens": False},
            TokenizeCall("m", RawPrompt("a", add_special=False)),
        ),
        ({"messages": MESSAGES}, TokenizeCall(None, Conversation(TURNS))),
        (
            {"messages": MESSAGES, "add_generation_prompt": False, "add_special_tokens": False},
            TokenizeCall(None, Conversation(TURNS, generation_prompt=False, add_special=False)),
        ),
        (
            {"messages": MESSAGES, "add_special_tokens": True},
            TokenizeCall(None, Conversation(TURNS, add_special=True)),
        ),
        ({"prompt": "a", "return_token_strs": False, "tools": None}, TokenizeCall(None, RawPrompt("a"))),
        ({"prompt": "a", "return_token_strs": True}, TokenizeCall(None, RawPrompt("a"), with_texts=True)),
        (
            {"messages": MESSAGES, "return_token_strs": True},
            TokenizeCall(None, Conversation(TURNS), with_texts=True),
        ),
        (
            {"messages": MESSAGES, "chat_template": "{{ x }}", "chat_template_kwargs": {"x": 1}},
            TokenizeCall(None, Conversation(TURNS, template="{{ x }}", template_values={"x": 1})),
        ),
        (
            {"messages": OPEN, "continue_final_message": True},
            TokenizeCall(None, Conversation(LEFT_OPEN, generation_prompt=False, continues=True)),
        ),
    ],
)
def test_what_shall_be_tokenized(body, call):
    assert tokenize(**body) == call


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({}, "missing_required_parameter", "prompt"),
        ({"prompt": "a", "messages": MESSAGES}, "invalid_value", "messages"),
        ({"prompt": ["a"]}, "invalid_value", "prompt"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
        ({"prompt": "a", "return_token_strs": 1}, "invalid_value", "return_token_strs"),
        ({"messages": MESSAGES, "chat_template": ""}, "invalid_value", "chat_template"),
        ({"messages": MESSAGES, "continue_final_message": True}, "invalid_value", "continue_final_message"),
        ({"prompt": "a", "add_generation_prompt": True}, "invalid_value", "add_generation_prompt"),
        ({"prompt": "a", "continue_final_message": True}, "invalid_value", "continue_final_message"),
        ({"prompt": "a", "chat_template": "{{x}}"}, "invalid_value", "chat_template"),
        ({"prompt": "a", "chat_template_kwargs": {}}, "invalid_value", "chat_template_kwargs"),
        ({"prompt": "a", "documents": []}, "invalid_value", "documents"),
        ({"prompt": "a", "temperature": 1}, "unknown_parameter", "temperature"),
    ],
)
def test_what_cannot_be_tokenized_is_refused_by_name(body, code, param):
    with pytest.raises(AntiphonError) as caught:
        tokenize(**body)
    assert (caught.value.code, caught.value.param) == (code, param)


def test_a_template_is_applied_as_for_generation():
    def apply(**body):
        return tokens.decode_apply(json.dumps(body).encode())

    assert apply(messages=MESSAGES) == ApplyCall(None, Conversation(TURNS))
    assert apply(model="m", messages=OPEN, continue_final_message=True) == ApplyCall(
        "m", Conversation(LEFT_OPEN, generation_prompt=False, continues=True)
    )
    assert apply(messages=MESSAGES, tools=[TOOL]).conversation.tools.tools[0].name == "f"
    for body, code, param in (
        ({}, "missing_required_parameter", "messages"),
        ({"messages": MESSAGES, "prompt": "a"}, "unknown_parameter", "prompt"),
        ({"messages": MESSAGES, "temperature": 1}, "unknown_parameter", "temperature"),
    ):
        with pytest.raises(AntiphonError) as caught:
            apply(**body)
        assert (caught.value.code, caught.value.param) == (code, param)


def test_token_ids_are_whole_and_not_negative():
    assert detokenize(tokens=[1, 2]) == DetokenizeCall(None, (1, 2))
    assert detokenize(model="m", tokens=[]) == DetokenizeCall("m", ())
    for ids, param in (([-1], "tokens[0]"), ([1.5], "tokens[0]"), ("a", "tokens"), ([True], "tokens[0]")):
        with pytest.raises(AntiphonError) as caught:
            detokenize(tokens=ids)
        assert (caught.value.code, caught.value.param) == ("invalid_value", param)


def test_answers_have_vllms_shape():
    assert json.loads(tokens.encode_tokens(PromptTokens((5, 6), 2048))) == {
        "count": 2,
        "max_model_len": 2048,
        "tokens": [5, 6],
    }
    assert json.loads(tokens.encode_tokens(PromptTokens((5, 6), 8, (b" a", b"\xe2\x98"))))["token_strs"] == [
        " a",
        "bytes:\\xe2\\x98",
    ]


def test_models_are_listed_in_order_and_shown_with_their_profile():
    entries = [ModelEntry("b", 5, "ready"), ModelEntry("a", 6, "starting")]
    listed = json.loads(OpenAIModels().encode_list(entries))
    assert listed["object"] == "list" and [model["id"] for model in listed["data"]] == ["b", "a"]
    assert listed["data"][1] == {
        "id": "a",
        "object": "model",
        "created": 6,
        "owned_by": "antiphon",
        "root": "a",
        "parent": None,
        "state": "starting",
    }
    shown = json.loads(OpenAIModels().encode_model(ModelEntry("b", 5, "ready", SCRIPTED_PROFILE)))
    assert shown["profile"]["context_length"] == 2048 and shown["profile"]["sampling"]["temperature"] is None
    assert json.loads(OpenAIModels().encode_model(entries[1]))["profile"] is None


@pytest.mark.parametrize(("field", "decode"), [("tokens", tokens.decode_detokenize), ("prompt", decode_text)])
def test_lists_of_more_ids_than_any_context_holds_are_refused(field, decode):
    """Reading them would keep other callers waiting."""
    ids = b",".join([b"5"] * (MAX_IDS + 1))
    body = b'{"model": "m", "%b": [%b]}' % (field.encode(), ids)
    with pytest.raises(InvalidValue, match="at most 1048576 items") as refused:
        decode(body)
    assert refused.value.param == field
