"""What Scale's bodies mean, and what is refused."""

import json
import re
from typing import Any

import pytest

from antiphon.dialects.calls import GenerationCall
from antiphon.dialects.sgp.decode import decode_chat, decode_text
from antiphon.domain.memory import LastMessages
from antiphon.domain.messages import CacheControl, MediaContent, Message, Role
from antiphon.domain.request import ConstraintKind, Conversation, Prediction, SpeechOptions
from antiphon.errors import AntiphonError

HELLO = [{"content": "Hello!"}]
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
DEEP = json.loads('{"a":' * 300 + "1" + "}" * 300)
TOOL = {"type": "function", "function": {"name": "look"}}


def chat(**fields: Any) -> GenerationCall:
    return decode_chat(json.dumps({"model": "openai/gpt-4o", "messages": HELLO} | fields).encode())


def text(**fields: Any) -> GenerationCall:
    return decode_text(json.dumps({"model": "m", "prompt": "Once"} | fields).encode())


def messages(*given: Any) -> tuple[Message, ...]:
    (prompt,) = chat(messages=list(given)).request.prompts
    assert isinstance(prompt, Conversation)
    return prompt.messages


def image(url: str, **fields: Any) -> Any:
    (message,) = messages({"content": {"type": "image_url", "image_url": {"url": url} | fields}})
    (part,) = message.content
    assert isinstance(part, MediaContent)
    return part


def refusal(make: Any, **fields: Any) -> AntiphonError:
    with pytest.raises(AntiphonError) as caught:
        make(**fields)
    return caught.value


def test_what_is_left_out_is_the_models_own():
    output, sampling = chat().request.output, chat().request.sampling
    assert (output.max_tokens, output.choices, output.include_stop) == (None, 1, False)
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (None, None, None)
    assert text().request.output.max_tokens == 16
    assert chat().request.model == "openai/gpt-4o"


def test_the_newest_name_of_max_tokens_wins():
    call = text(max_tokens=7, max_completion_tokens=5, max_new_tokens=9)
    assert call.request.output.max_tokens == 5 and call.ignored == ("max_tokens", "max_new_tokens")
    call = text(max_tokens=7, max_new_tokens=9)
    assert call.request.output.max_tokens == 7 and call.ignored == ("max_new_tokens",)
    assert text(max_new_tokens=9).request.output.max_tokens == 9


def test_stop_texts_of_both_fields_count():
    assert text(stop="a", stop_sequences=["b", "a"]).request.output.stop == ("a", "b")
    assert refusal(text, stop=["a", "b", "c"], stop_sequences=["d", "e"]).param == "stop_sequences"


def test_log_probabilities_by_either_name():
    assert text(return_token_log_probs=True, top_logprobs=3).request.output.logprobs == 3
    assert text(logprobs=True).request.output.logprobs == 0
    assert text(logprobs=False).request.output.logprobs is None
    for make in (chat, text):
        assert refusal(make, top_logprobs=1).param == "top_logprobs"
        assert refusal(make, top_logprobs=21, logprobs=True).param == "top_logprobs"


def test_top_k_minus_one_is_all():
    assert chat(top_k=-1).request.sampling.top_k == 0


@pytest.mark.parametrize(
    ("given", "role"),
    [
        ({"content": "a"}, Role.USER),
        ({"role": None, "content": "a"}, Role.USER),
        ({"content": "a", "tool_calls": [CALL]}, Role.ASSISTANT),
        ({"content": None, "function_call": {"name": "look"}}, Role.ASSISTANT),
        ({"role": "system", "content": "a"}, Role.SYSTEM),
    ],
)
def test_a_role_that_is_left_out(given: Any, role: Role):
    assert messages(given)[0].role is role


def test_a_result_has_the_tools_role():
    asked = {"tool_calls": [CALL]}
    (_, result) = messages(asked, {"tool_call_id": "c1", "content": "rain"})
    assert (result.role, result.tool_call_id, result.text) == (Role.TOOL, "c1", "rain")


def test_calls_of_the_older_form_meet_their_results():
    calling = {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}}
    first, result, second, other = messages(
        calling,
        {"role": "function", "name": "look", "content": "rain"},
        calling,
        {"role": "function", "content": "sun"},
    )
    assert first.tool_calls[0].name == "look" and first.tool_calls[0].id == result.tool_call_id
    assert second.tool_calls[0].id == other.tool_call_id != result.tool_call_id
    assert (result.role, result.name, result.text, other.text) == (Role.TOOL, None, "rain", "sun")


def test_ids_of_older_calls_are_those_that_vendors_take():
    calling = {"function_call": {"name": "look"}}
    history = messages(*HELLO, calling, {"role": "function", "name": "look", "content": "rain"}, calling)
    ids = [call.id for message in history for call in message.tool_calls]
    assert len(set(ids)) == 2 and all(re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", each) for each in ids)


def test_an_unknown_role_is_told_every_role():
    error = refusal(chat, messages=[{"role": "critic", "content": "a"}])
    names = "assistant, developer, function, system, tool or user"
    assert error.message == f"messages[0].role must be {names}; got a string"


def test_a_response_message_is_taken_back_unchanged():
    answer = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "function_call": None,
        "audio": None,
        "tool_calls": [CALL],
    }
    assert messages(answer)[0].tool_calls[0].name == "look"
    plain = {"role": "assistant", "content": "Hi.", "refusal": None, "tool_calls": None, "audio": None}
    assert messages(*HELLO, plain)[1].text == "Hi."


def test_one_part_is_a_list_of_one():
    part = {"type": "text", "text": "Hi."}
    assert messages({"content": part}) == messages({"content": [part]})


def test_a_media_type_completes_and_agrees():
    assert image("AAAA", media_type="image/png").media_type == "image/png"
    assert image("data:;base64,AAAA", media_type="image/gif").media_type == "image/gif"
    assert image("data:image/jpg;base64,AAAA", media_type="image/jpeg").media_type == "image/jpeg"
    assert image("data:image/webp;base64,AAAA", media_type=None).media_type == "image/webp"
    part = {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "media_type": "image/png"}}
    assert chat(messages=[{"content": [part]}]).ignored == ("messages[].content[].image_url.media_type",)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({}, "messages[0].content"),
        ({"role": "critic", "content": "a"}, "messages[0].role"),
        ({"role": "function", "content": "a"}, "messages[0].role"),
        ({"function_call": "look"}, "messages[0].function_call"),
        ({"function_call": {"arguments": "{}"}}, "messages[0].function_call.name"),
        ({"function_call": {"name": "a b"}}, "messages[0].function_call.name"),
        ({"function_call": {"name": "a", "arguments": 7}}, "messages[0].function_call.arguments"),
        ({"function_call": {"name": "a"}, "tool_calls": [CALL]}, "messages[0].function_call"),
        ({"role": "user", "content": "a", "function_call": {"name": "a"}}, "messages[0].function_call"),
        ({"function_call": {"name": 7}}, "messages[0].function_call.name"),
        ({"function_call": {"name": "a", "id": "b"}}, "messages[0].function_call.id"),
        ({"role": "function", "name": {}, "content": "a"}, "messages[0].name"),
        ({"role": "function", "tool_call_id": "a", "content": "a"}, "messages[0].tool_call_id"),
        ({"function_call": {"name": "a", "arguments": DEEP}}, "messages[0].function_call.arguments"),
        ({"role": ["user"], "content": "a"}, "messages[0].role"),
        ({"content": {"type": "text"}}, "messages[0].content[0].text"),
        ({"tool_call_id": "c9", "content": "a"}, "messages[0].tool_call_id"),
        ({"content": "a", "mood": "glad"}, "messages[0].mood"),
    ],
)
def test_a_wrong_message_is_refused_by_name(given: Any, param: str):
    assert refusal(chat, messages=[given]).param == param


@pytest.mark.parametrize("url", ["data:image/gif;base64,AAAA", "AAAA"])
def test_a_wrong_media_type_is_refused(url: str):
    for media_type in ("image/jpg", "image/tiff", 7) if url == "AAAA" else ("image/png",):
        part = {"type": "image_url", "image_url": {"url": url, "media_type": media_type}}
        error = refusal(chat, messages=[{"content": part}])
        assert error.param == "messages[0].content[0].image_url.media_type"


SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, ConstraintKind.JSON_OBJECT),
        (
            {"type": "json_schema", "json_schema": {"name": "age", "schema": SCHEMA}},
            ConstraintKind.JSON_SCHEMA,
        ),
        (SCHEMA, ConstraintKind.JSON_SCHEMA),
        ({"$ref": "#/$defs/a", "$defs": {"a": SCHEMA}}, ConstraintKind.JSON_SCHEMA),
    ],
)
def test_every_response_format(given: Any, kind: ConstraintKind | None):
    for make in (chat, text):
        found = make(response_format=given).request.output.constraint
        assert (None if found is None else found.kind) == kind


def test_an_unknown_type_of_a_response_format_is_named():
    for make in (chat, text):
        error = refusal(make, response_format={"type": "zz"})
        assert error.param == "response_format.type" and "got zz" in error.message
        assert "text, json_object, json_schema" in error.message


def test_constraints_exclude_each_other():
    error = refusal(chat, guided_json={}, guided_regex="a")
    assert error.param == "guided_regex"
    assert error.message == (
        "Only one of guided_json, guided_choice, guided_regex, guided_grammar can be enabled."
    )
    assert (
        refusal(text, guided_choice=["a"], response_format={"type": "json_object"}).param == "guided_choice"
    )
    assert refusal(chat, guided_whitespace_pattern=" ", guided_regex="a").param == "guided_whitespace_pattern"
    assert refusal(chat, response_format={"type": "json_schema"}).param == "response_format.json_schema"
    bound = chat(guided_whitespace_pattern=" ", response_format=SCHEMA).request.output.constraint
    assert bound is not None and (bound.whitespace, bound.field) == (" ", "response_format")


def test_known_backends_are_named_and_others_refused():
    for backend in ("outlines", "lm-format-enforcer"):
        assert chat(guided_decoding_backend=backend).ignored == ("guided_decoding_backend",)
    assert refusal(chat, guided_decoding_backend="xgrammar").param == "guided_decoding_backend"


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [TOOL]},
        {"tool_choice": "required"},
        {"chat_template": "x"},
        {"memory_strategy": {}},
        {"guided_decoding_backend": "outlines"},
        {"guided_whitespace_pattern": " "},
    ],
)
def test_a_text_has_no_fields_of_chats(fields: Any):
    assert refusal(text, **fields).param == next(iter(fields))


def test_a_stream_cannot_give_the_best():
    for make in (chat, text):
        assert refusal(make, best_of=2, stream=True).param == "best_of"
        assert refusal(make, best_of=1, n=2).param == "best_of"
        assert refusal(make, stream_options={"include_usage": True}).param == "stream_options"
    assert chat(best_of=3, n=2).request.output.best_of == 3
    assert chat(stream=True, stream_options={"include_usage": True}).include_usage


def test_fields_about_the_vendors_call():
    request = chat(
        inference_timeout="2.5",
        inference_extra_params={"top_k": 3, "min_p": 0.5, "provider": "a"},
        inference_extra_headers={"X-Trace": "7"},
        memory_strategy={"name": "last_k", "k": 2},
        prediction={"type": "content", "content": "Once"},
    ).request
    assert request.timeout == 2.5 and request.memory == LastMessages(2)
    assert (request.sampling.top_k, request.sampling.min_p) == (3, 0.5)
    assert request.vendor_options.extra_params == {"provider": "a"}
    assert request.vendor_options.extra_headers == {
        "x-trace": "7"
    } and request.vendor_options.prediction == Prediction("Once")
    assert refusal(chat, inference_timeout=0).param == "inference_timeout"
    assert refusal(chat, memory_strategy={"name": "last_k", "k": 0}).param == "memory_strategy.k"
    assert refusal(chat, memory_strategy={"name": "first_k", "k": 1}).param == "memory_strategy.name"


def test_fields_of_v1_can_be_added_to_a_text():
    output = text(inference_extra_params={"return_token_ids": True, "echo": True}).request.output
    assert output.token_ids and output.echo
    both = {"guided_json": {}, "inference_extra_params": {"structured_outputs": {"regex": "a"}}}
    assert refusal(text, **both).param == "structured_outputs.regex"


def test_a_tool_has_a_mark_for_a_vendors_cache():
    (prompt,) = chat(tools=[TOOL | {"cache_control": {"type": "ephemeral"}}]).request.prompts
    assert isinstance(prompt, Conversation) and prompt.tools is not None
    assert prompt.tools.tools[0].cache_control == CacheControl()


def test_a_spoken_answer_comes_back():
    audio = {"id": "audio_1", "data": "AAAA", "expires_at": 7, "transcript": "Hi."}
    assert messages(*HELLO, {"content": None, "audio": audio, "role": "assistant"})[1].speech_id == "audio_1"
    speech = {"format": "wav", "voice": "alloy"}
    vendor_options = chat(modalities=["text", "audio"], audio=speech).request.vendor_options
    assert vendor_options.audio == SpeechOptions("wav", "alloy") and vendor_options.modalities == (
        "text",
        "audio",
    )
    assert refusal(text, modalities=["text", "audio"]).param == "modalities"
