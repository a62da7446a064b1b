"""Scale's older API: bodies become generation requests, and events its answers."""

import json
from typing import Any

import pytest

from antiphon.dialects.calls import GenerationCall
from antiphon.dialects.sgp.legacy import (
    LegacyStreamEncoder,
    build_chat_answer,
    build_text_answer,
    decode_legacy_chat,
    decode_legacy_text,
    encode_answer,
)
from antiphon.domain.collect import CollectedChoice, CollectedGeneration
from antiphon.domain.events import (
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    Usage,
    UsageSource,
)
from antiphon.domain.memory import LastMessages
from antiphon.domain.messages import MediaContent, Message, Role, TextContent
from antiphon.domain.request import Conversation, RawPrompt, Reasoning
from antiphon.errors import EngineDied, RequestError

HELLO = {"content": "Hello!"}
GIF = "data:image/gif;base64,AAAA"


def chat(report: bool = False, **fields: Any) -> GenerationCall:
    body = {"model": "m", "messages": [HELLO]} | fields
    return decode_legacy_chat(json.dumps(body).encode(), report)


def tell(report: bool = False, **fields: Any) -> GenerationCall:
    return decode_legacy_text(json.dumps({"model": "m", "prompt": "Once"} | fields).encode(), report)


def messages(**fields: Any) -> tuple[Message, ...]:
    (prompt,) = chat(**fields).request.prompts
    assert isinstance(prompt, Conversation)
    return prompt.messages


def refusal(**fields: Any) -> tuple[str, str | None]:
    decode = tell if "prompt" in fields or "images" in fields else chat
    with pytest.raises(RequestError) as refused:
        decode(**fields)
    return refused.value.code, refused.value.param


def test_defaults_are_a_fifth_and_the_rest_of_the_context() -> None:
    for call in (chat(), tell(), chat(model_parameters={}), tell(model_parameters=None)):
        assert call.request.sampling.temperature == 0.2
        assert call.request.sampling.top_p is call.request.sampling.top_k is None
        assert call.request.output.max_tokens is None and call.request.output.stop == ()
        assert call.include_usage and not call.stream and call.ignored == ()


def test_a_raw_prompt_is_continued_and_reasoning_is_hidden() -> None:
    assert tell().request.prompts == (RawPrompt("Once"),)
    (prompt,) = chat().request.prompts
    assert isinstance(prompt, Conversation) and prompt.reasoning == Reasoning(shown=False)


def test_a_zero_is_kept() -> None:
    parameters = {"temperature": 0, "topP": 0, "frequency_penalty": 0}
    sampling = chat(model_parameters=parameters).request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.frequency_penalty) == (0, 0, 0)


def test_roles_are_three_and_the_users_by_default() -> None:
    roles = ("user", "assistant", "system")
    given = [HELLO, *({"role": role, "content": role} for role in roles)]
    assert [message.role.value for message in messages(messages=given)] == ["user", *roles]
    assert refusal(messages=[{"role": "tool", "content": "x"}]) == ("invalid_value", "messages[0].role")


def test_instructions_come_before_the_messages() -> None:
    system = {"role": "system", "content": "B."}
    assert [(each.role, each.text) for each in messages(messages=[system, HELLO], instructions="A.")] == [
        (Role.SYSTEM, "A."),
        (Role.SYSTEM, "B."),
        (Role.USER, "Hello!"),
    ]
    assert messages(instructions="") == messages(instructions=None) == messages()


def test_a_memory_strategy_has_its_parameters_in_an_object() -> None:
    strategy = {"name": "last_k", "params": {"k": 2}}
    assert chat(memory_strategy=strategy).request.memory == LastMessages(2, "memory_strategy.params")
    assert chat().request.memory is None
    wrong = {"name": "last_k", "params": {"k": 0}}
    assert refusal(memory_strategy=wrong) == ("invalid_value", "memory_strategy.params.k")


def test_parts_of_text_are_one_text() -> None:
    parts = [{"type": "text", "text": "Hello"}, {"text": "!"}]
    assert messages(messages=[{"content": parts}]) == messages()


def test_images_are_parts_with_the_callers_names() -> None:
    image = {"type": "image_url", "image_url": {"url": GIF, "detail": "low"}}
    data = {"image_data": {"data": "AAAA", "media_type": "image/GIF", "type": "base64"}}
    (message,) = messages(messages=[{"content": [{"text": "See: "}, image, data]}])
    assert message.text == "See: "
    text, first, second = message.content
    assert isinstance(first, MediaContent) and isinstance(second, MediaContent)
    assert text == TextContent("See: ")
    assert (first.media_type, first.data, first.detail) == ("image/gif", "AAAA", "low")
    assert (second.media_type, second.data, second.detail) == ("image/gif", "AAAA", None)
    assert [first.field, second.field] == [
        "messages[0].content[1].image_url", "messages[0].content[2].image_data",
    ]  # fmt: skip


def test_images_of_a_prompt_make_it_a_message() -> None:
    (prompt,) = tell(images=[{"image_url": GIF, "detail": "high"}]).request.prompts
    assert isinstance(prompt, Conversation)
    (message,) = prompt.messages
    image, text = message.content
    assert isinstance(image, MediaContent) and (image.field, image.detail) == ("images[0]", "high")
    assert text == TextContent("Once") and message.text == "Once"
    assert tell(images=[]).request.prompts == (RawPrompt("Once"),)


REFUSED: Any = [
    ({"model_parameters": {"temperature": 1.1}}, "invalid_value", "model_parameters.temperature"),
    ({"model_parameters": {"topK": 0}}, "invalid_value", "model_parameters.topK"),
    ({"model_parameters": {"topP": 2}}, "invalid_value", "model_parameters.topP"),
    ({"model_parameters": {"top_k": 2}}, "unknown_parameter", "model_parameters.top_k"),
    ({"model_parameters": {"max_tokens": 0}}, "invalid_value", "model_parameters.max_tokens"),
    ({"model_parameters": []}, "invalid_value", "model_parameters"),
    ({"temperature": 0}, "unknown_parameter", "temperature"),
    ({"images": [{"image_url": GIF, "detail": "most"}]}, "invalid_value", "images[0].detail"),
    ({"images": [{"image_url": "ftp://a"}]}, "unsupported_parameter", "images[0]"),
    ({"images": [{"image_url": "a"}]}, "invalid_value", "images[0].image_url"),
    ({"images": [{"image_url": "data:image/gif;base64,A"}]}, "invalid_value", "images[0].image_url"),
    ({"images": ["a"]}, "invalid_value", "images[0]"),
    ({"prompt": ["a"]}, "invalid_value", "prompt"),
    ({"prompt": None}, "missing_required_parameter", "prompt"),
    ({"messages": []}, "invalid_value", "messages"),
    ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
    ({"messages": [{"content": []}]}, "invalid_value", "messages[0].content"),
    ({"messages": [{"content": [{}]}]}, "invalid_value", "messages[0].content[0]"),
    ({"messages": [HELLO | {"name": "a"}]}, "unknown_parameter", "messages[0].name"),
    (
        {"messages": [{"role": "system", "content": [{"text": "a"}]}]},
        "invalid_value",
        "messages[0].content",
    ),
    (
        {"messages": [{"content": [{"image_data": {"data": "AAA", "media_type": "image/png"}}]}]},
        "invalid_value",
        "messages[0].content[0].image_data.data",
    ),
    (
        {"messages": [{"content": [{"image_data": {"data": "AAAA", "media_type": "text/html"}}]}]},
        "invalid_value",
        "messages[0].content[0].image_data.media_type",
    ),
    ({"account_id": ""}, "invalid_value", "account_id"),
    ({"account_id": "a\0"}, "invalid_value", "account_id"),
]


@pytest.mark.parametrize(("fields", "code", "param"), REFUSED)
def test_what_is_wrong_is_refused_by_its_name(fields: Any, code: str, param: str) -> None:
    assert refusal(**fields) == (code, param)


def test_unknown_fields_are_named_where_the_operator_says_so() -> None:
    call = chat(
        True,
        colour="red",
        model_parameters={"shade": 1},
        messages=[HELLO | {"name": "a"}, {"content": [{"text": "b", "mood": 1}]}],
    )
    assert call.ignored == (
        "colour", "model_parameters.shade", "messages[].name", "messages[].content[].mood",
    )  # fmt: skip


def test_the_account_is_a_tag() -> None:
    for call in (chat(account_id="acme"), tell(account_id="acme")):
        assert call.attribution.tags == {"account_id": "acme"}
        assert (call.attribution.fields, call.attribution.end_user) == (("account_id",), None)


# --- answers ---

USAGE = Usage(3, 2)
BUILDERS = (build_chat_answer, build_text_answer)


def unwrap(body: bytes) -> tuple[str, str | None, Any]:
    """The text, the finish reason and the usage of an answer or an event."""
    told = json.loads(body)
    choice = told.get("completion") or told["chat_completion"]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    return text, choice["finish_reason"], told["token_usage"]


@pytest.mark.parametrize("build", BUILDERS)
def test_an_answer_has_one_choice_and_three_counts(build: Any) -> None:
    choice = CollectedChoice(0, "Hi", FinishReason.LENGTH)
    counted = {"prompt": 3, "completion": 2, "total": 5}
    assert unwrap(encode_answer(build, CollectedGeneration((choice,), USAGE))) == ("Hi", "length", counted)
    estimate = Usage(3, 2, source=UsageSource.ESTIMATED)
    assert unwrap(encode_answer(build, CollectedGeneration((choice,), estimate)))[2] is None


def test_a_chats_message_is_the_assistants() -> None:
    choice = CollectedChoice(0, "Hi", FinishReason.STOP)
    told = json.loads(encode_answer(build_chat_answer, CollectedGeneration((choice,), USAGE)))
    assert told["chat_completion"]["message"] == {"role": "assistant", "content": "Hi"}


@pytest.mark.parametrize("build", BUILDERS)
def test_a_streams_last_event_has_reason_and_usage(build: Any) -> None:
    encoder = LegacyStreamEncoder(build)
    events = (
        Started(3), ReasoningDelta(0, "Hm."), TextDelta(0, "H"), TextDelta(0, "i"),
        Finished(0, FinishReason.CONTENT_FILTER), USAGE,
    )  # fmt: skip
    written = b"".join([encoder.encode(event) for event in events]) + encoder.end()
    told = [unwrap(each.removeprefix(b"data: ")) for each in written.split(b"\n\n") if each]
    counted = {"prompt": 3, "completion": 2, "total": 5}
    assert told == [("H", None, None), ("i", None, None), ("", "content_filter", counted)]


def test_a_broken_stream_ends_with_an_event_of_its_own() -> None:
    error = LegacyStreamEncoder(build_text_answer).encode_error(EngineDied("the engine's process ended"))
    head, data = error.removesuffix(b"\n\n").split(b"\n")
    assert head == b"event: error"
    assert json.loads(data.removeprefix(b"data: ")) == {
        "detail": "the engine's process ended", "status_code": 503,
    }  # fmt: skip
