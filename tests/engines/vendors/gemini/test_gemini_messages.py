"""Messages become Gemini's contents, and what has no place there is refused by name."""

import json
from typing import Any

import pytest

from antiphon.domain.messages import Content, MediaContent, MediaKind, Message, Role, TextContent, ToolCall
from antiphon.domain.request import Conversation, GenerationRequest
from antiphon.domain.values import replace
from antiphon.engines.vendors.base import NO_ATTRIBUTES, UpstreamCall, VendorModel
from antiphon.engines.vendors.gemini.dialect import GeminiUpstream
from antiphon.engines.vendors.profiles import VendorProfile
from antiphon.errors import RequestError

MODEL = VendorModel(
    "m", "google", VendorProfile(modalities=("text", "image", "audio")), passes_addresses=True
)
IMAGE = MediaContent(MediaKind.IMAGE, "image/png", "aWJt", field="messages[0].content[0].image_url")
SOUND = MediaContent(MediaKind.AUDIO, "audio/wav", "d2F2", field="messages[0].content[0].input_audio")
SENT_IMAGE = {"inlineData": {"mimeType": "image/png", "data": "aWJt"}}
SENT_SOUND = {"inlineData": {"mimeType": "audio/wav", "data": "d2F2"}}
USER = Message(Role.USER, "hi")
CALLS = (ToolCall("c1", "look", '{"at": "sea"}', "c2ln"), ToolCall("c2", "wait", ""))
ASKED = Message(Role.ASSISTANT, "", tool_calls=CALLS)


def send(*messages: Message, model: VendorModel = MODEL) -> UpstreamCall:
    return GeminiUpstream().encode(GenerationRequest("m", (Conversation(messages),)), model, NO_ATTRIBUTES)


def read(*messages: Message) -> Any:
    return json.loads(send(*messages).body)


def refuse(*messages: Message, model: VendorModel = MODEL) -> str | None:
    with pytest.raises(RequestError) as caught:
        send(*messages, model=model)
    return caught.value.param


def show(*parts: Content, role: Role = Role.USER, **changes: Any) -> Message:
    text = "".join(part.text for part in parts if isinstance(part, TextContent))
    return Message(role, text, content=parts, **changes)


def answer(result: Message) -> Any:
    """The functionResponse of the result of the first call."""
    contents = read(USER, ASKED, replace(result, tool_call_id="c1"))["contents"]
    return contents[-1]["parts"][0]["functionResponse"]


# --- roles --------------------------------------------------------------------------------------------------


def test_leading_instructions_are_the_systems():
    body = read(Message(Role.SYSTEM, "Be kind."), Message(Role.DEVELOPER, "Be brief."), USER)
    assert body == {
        "systemInstruction": {"parts": [{"text": "Be kind."}, {"text": "Be brief."}]},
        "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
    }


def test_later_instructions_are_the_users():
    """Agents send some in the middle of a conversation, and Gemini takes none there."""
    body = read(USER, Message(Role.SYSTEM, "Be brief."), Message(Role.ASSISTANT, "a"), USER)
    assert [content["role"] for content in body["contents"]] == ["user", "model", "user"]
    assert body["contents"][0]["parts"] == [{"text": "hi"}, {"text": "Be brief."}]


def test_instructions_need_a_message_and_have_only_text():
    assert refuse(Message(Role.SYSTEM, "Be brief.")) == "messages"
    assert refuse(show(IMAGE, role=Role.SYSTEM), USER) == IMAGE.field


def test_neighbours_of_one_role_are_one_content():
    body = read(USER, Message(Role.USER, "there"), Message(Role.ASSISTANT, "a"), Message(Role.ASSISTANT, "b"))
    assert body["contents"] == [
        {"role": "user", "parts": [{"text": "hi"}, {"text": "there"}]},
        {"role": "model", "parts": [{"text": "a"}, {"text": "b"}]},
    ]


@pytest.mark.parametrize("role", [Role.SYSTEM, Role.USER, Role.ASSISTANT])
def test_names_of_authors_are_refused(role: Role):
    assert refuse(Message(role, "hi", name="ada"), USER) == "messages[0].name"


# --- media --------------------------------------------------------------------------------------------------


def test_images_and_recordings_keep_their_places():
    parts = read(show(TextContent("See"), IMAGE, TextContent("hear"), SOUND))["contents"][0]["parts"]
    assert parts == [{"text": "See"}, SENT_IMAGE, {"text": "hear"}, SENT_SOUND]


@pytest.mark.parametrize(
    ("url", "media_type"),
    [
        ("https://a.example/b.JPG?c=d.png", {"mimeType": "image/jpeg"}),
        ("https://a.example/b", {}),
    ],
)
def test_addresses_are_passed_on_where_allowed(url: str, media_type: dict[str, str]):
    part = MediaContent(MediaKind.IMAGE, url=url, field="messages[0].content[0].image_url")
    assert read(show(part))["contents"][0]["parts"] == [{"fileData": {"fileUri": url} | media_type}]
    assert refuse(show(part), model=replace(MODEL, passes_addresses=False)) == part.field


@pytest.mark.parametrize("detail", ["low", "high"])
def test_the_detail_of_an_image_is_its_resolution(detail: str):
    part = MediaContent(MediaKind.IMAGE, "image/png", "aWJt", detail=detail)
    level = {"level": f"MEDIA_RESOLUTION_{detail.upper()}"}
    assert read(show(part))["contents"][0]["parts"] == [SENT_IMAGE | {"mediaResolution": level}]


def test_other_details_are_refused_unless_they_ask_for_nothing():
    part = MediaContent(MediaKind.IMAGE, "image/png", "aWJt", detail="original", field="f.image_url")
    assert refuse(show(part)) == "f.image_url.detail"
    usual = MediaContent(MediaKind.IMAGE, "image/png", "aWJt", detail="auto")
    assert read(show(usual))["contents"][0]["parts"] == [SENT_IMAGE]


# --- calls and results --------------------------------------------------------------------------------------


def test_calls_have_their_signatures():
    assert read(USER, ASKED)["contents"][1] == {
        "role": "model",
        "parts": [
            {
                "functionCall": {"id": "c1", "name": "look", "args": {"at": "sea"}},
                "thoughtSignature": "c2ln",
            },
            {"functionCall": {"id": "c2", "name": "wait", "args": {}}},
        ],
    }


def test_arguments_keep_their_numbers():
    call = ToolCall("c", "look", '{"a": 1.0, "b": 12345678901234567890123}')
    assert (
        b'{"a": 1.0, "b": 12345678901234567890123}'
        in send(USER, Message(Role.ASSISTANT, "", tool_calls=(call,))).body
    )


@pytest.mark.parametrize("arguments", ['{"a": ', "[1]", "null", '{"a": 1} {}', '{"a": nan}', "words"])
def test_arguments_that_are_no_object_are_refused(arguments: str):
    wrong = Message(Role.ASSISTANT, "", tool_calls=(CALLS[0], ToolCall("c2", "wait", arguments)))
    assert refuse(USER, wrong) == "messages[1].tool_calls[1].function.arguments"


def test_parallel_results_are_one_content():
    results = (
        Message(Role.TOOL, "done", tool_call_id="c2"),
        Message(Role.TOOL, '{"a": 1}', tool_call_id="c1"),
    )
    assert read(USER, ASKED, *results, USER)["contents"][2:] == [
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "c2", "name": "wait", "response": {"output": "done"}}},
                {"functionResponse": {"id": "c1", "name": "look", "response": {"a": 1}}},
            ],
        },
        {"role": "user", "parts": [{"text": "hi"}]},
    ]


def test_results_that_are_no_object_are_outputs():
    for text in ("[1]", "", '{"cut": ', '"words"'):
        assert answer(Message(Role.TOOL, text))["response"] == {"output": text}


def test_results_can_have_images():
    part = {"id": "c1", "name": "look", "parts": [SENT_IMAGE]}
    assert answer(show(IMAGE, role=Role.TOOL)) == part | {"response": {}}
    both = show(TextContent("taken"), IMAGE, role=Role.TOOL)
    assert answer(both) == part | {"response": {"output": "taken"}}


def test_the_detail_of_an_image_in_a_result_is_refused():
    part = MediaContent(MediaKind.IMAGE, "image/png", "aWJt", detail="high", field="f.image_url")
    result = show(part, role=Role.TOOL, tool_call_id="c1")
    assert refuse(USER, ASKED, result) == "f.image_url.detail"


def test_a_result_of_no_call_is_refused():
    for call in ("c3", None):
        result = Message(Role.TOOL, "done", tool_call_id=call)
        assert refuse(USER, ASKED, result) == "messages[2].tool_call_id"
    assert refuse(USER, Message(Role.TOOL, "done", tool_call_id="c1"), ASKED) == "messages[1].tool_call_id"


def test_the_name_of_a_result_must_be_its_functions():
    assert answer(Message(Role.TOOL, "done", name="look"))["name"] == "look"
    result = Message(Role.TOOL, "done", name="wait", tool_call_id="c1")
    assert refuse(USER, ASKED, result) == "messages[2].name"


# --- what Gemini signed -------------------------------------------------------------------------------------


def sign(at: int, text: str, **changes: object) -> dict[str, object]:
    return {"type": "gemini_part", "at": at, "part": {"thoughtSignature": "c2ln", "text": text, **changes}}


def parts_of(text: str, *blocks: dict[str, object], **changes: Any) -> Any:
    call = send(USER, Message(Role.ASSISTANT, text, thinking_blocks=blocks, **changes))
    return json.loads(call.body)["contents"][1]["parts"], call.ignored


SIGNED = {"thoughtSignature": "c2ln"}


def test_signed_texts_return_to_their_places():
    parts, ignored = parts_of("banana", sign(1, "a"), sign(5, "a"), sign(6, ""))
    assert parts == [
        {"text": "b"},
        {"text": "a"} | SIGNED,
        {"text": "nan"},
        {"text": "a"} | SIGNED,
        {"text": ""} | SIGNED,
    ]
    assert ignored == ()


def test_signed_thoughts_come_before_the_text():
    parts, ignored = parts_of("So.", sign(0, "Hm.", thought=True), tool_calls=CALLS, reasoning="Hm.")
    assert parts[:2] == [{"text": "Hm.", "thought": True} | SIGNED, {"text": "So."}]
    assert [*parts[2]] == ["functionCall", "thoughtSignature"]
    assert ignored == ()


@pytest.mark.parametrize(
    "block",
    [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        sign(0, "another text"),
        sign(8, ""),
        sign(-1, "."),
        {"type": "gemini_part", "at": 0, "part": {"thoughtSignature": "a", "fileData": {"fileUri": "b"}}},
    ],
)
def test_blocks_that_do_not_fit_are_ignored_by_name(block: dict[str, object]):
    parts, ignored = parts_of("Indeed.", block)
    assert parts == [{"text": "Indeed."}]
    assert ignored == ("messages[].thinking_blocks",)


def test_reasoning_without_signature_is_ignored_by_name():
    parts, ignored = parts_of("So.", reasoning="Hm.")
    assert parts == [{"text": "So."}]
    assert ignored == ("messages[].reasoning_content",)


def test_an_empty_answer_has_a_part():
    assert parts_of("")[0] == [{"text": ""}]
