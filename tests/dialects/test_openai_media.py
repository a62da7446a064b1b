"""Images and recordings in messages: what is read, and what is refused by name."""

import base64
import json

import pytest

from antiphon.dialects.empower.decode import decode_chat as empower_chat
from antiphon.dialects.fireworks.decode import decode_chat as fireworks_chat
from antiphon.dialects.openai.dialect import decode_chat
from antiphon.domain.messages import MediaContent, MediaKind, TextContent
from antiphon.errors import AntiphonError

DIALECTS = ["openai", "fireworks", "empower"]
BYTES = bytes(range(256)) * 3
DATA = base64.b64encode(BYTES).decode()
USER = {"role": "user", "content": "hi"}
CALLING = {
    "role": "assistant",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}


def image(url=f"data:image/png;base64,{DATA}", **more):
    return {"type": "image_url", "image_url": {"url": url} | more}


def audio(data=DATA, kind="wav", **more):
    return {"type": "input_audio", "input_audio": {"data": data, "format": kind} | more}


def decoded(*messages, decode=decode_chat):
    return decode(json.dumps({"model": "m", "messages": messages}).encode()).request.prompts[0].messages


def refusal(*messages):
    with pytest.raises(AntiphonError) as caught:
        decoded(*messages)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize("decode", [decode_chat, fireworks_chat, empower_chat], ids=DIALECTS)
def test_parts_keep_their_order(decode):
    parts = [
        {"type": "text", "text": "This: "},
        image(detail="low"),
        {"type": "text", "text": "or that?"},
        audio(),
    ]
    (message,) = decoded({"role": "user", "content": parts}, decode=decode)
    assert message.text == "This: or that?"
    place = "messages[0].content"
    assert message.content == (
        TextContent("This: "),
        MediaContent(MediaKind.IMAGE, "image/png", DATA, detail="low", field=f"{place}[1].image_url"),
        TextContent("or that?"),
        MediaContent(MediaKind.AUDIO, "audio/wav", DATA, field=f"{place}[3].input_audio"),
    )


def test_text_alone_is_no_list_of_parts():
    (message,) = decoded({"role": "user", "content": [{"type": "text", "text": "a"}]})
    assert (message.text, message.content) == ("a", ())


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        (f"data:image/png;base64,{DATA}", "image/png"),
        (f"DATA:image/JPEG;Base64,{DATA}", "image/jpeg"),
        (f"data:image/jpg;base64,{DATA}", "image/jpeg"),
        (f"data:image/gif;base64,{DATA}", "image/gif"),
        ("data:image/webp;base64,AA==", "image/webp"),
        ("data:image/webp;base64,AAA=", "image/webp"),
    ],
)
def test_images_of_the_known_types_are_read(url, kind):
    (message,) = decoded({"role": "user", "content": [image(url)]})
    (part,) = message.content
    assert isinstance(part, MediaContent) and message.text == ""
    assert (part.media_type, part.data, part.url) == (kind, url.partition(",")[2], "")


def test_an_address_stays_an_address():
    url = "https://example.org/a.png?b=c#d"
    (message,) = decoded({"role": "user", "content": [image(url, detail="original")]})
    (part,) = message.content
    assert isinstance(part, MediaContent)
    assert (part.url, part.data, part.media_type, part.detail) == (url, "", "", "original")


def test_a_recording_has_its_media_type():
    (message,) = decoded({"role": "user", "content": [audio(kind="mp3")]})
    (part,) = message.content
    assert isinstance(part, MediaContent) and part.media_type == "audio/mpeg"


def test_a_tool_can_answer_with_an_image():
    result = {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "Here"}, image()]}
    message = decoded(USER, CALLING, result)[2]
    assert message.text == "Here" and isinstance(message.content[1], MediaContent)
    assert message.content[1].field == "messages[2].content[1].image_url"


IMAGE, AUDIO = "messages[0].content[0].image_url", "messages[0].content[0].input_audio"


@pytest.mark.parametrize(
    ("part", "code", "param"),
    [
        (image("http://10.0.0.1/a.png"), "unsupported_parameter", IMAGE),
        (image("file:///etc/passwd"), "unsupported_parameter", IMAGE),
        (image("ftp://a/b"), "unsupported_parameter", IMAGE),
        (image(DATA), "invalid_value", f"{IMAGE}.url"),
        (image(""), "invalid_value", f"{IMAGE}.url"),
        (image("data:,a"), "invalid_value", f"{IMAGE}.url"),
        (image(f"data:image/png,{DATA}"), "invalid_value", f"{IMAGE}.url"),
        (image(f"data:image/svg+xml;base64,{DATA}"), "invalid_value", f"{IMAGE}.url"),
        (image(f"data:text/plain;base64,{DATA}"), "invalid_value", f"{IMAGE}.url"),
        (image(f"data:image/{'x' * 200};base64,{DATA}"), "invalid_value", f"{IMAGE}.url"),
        (image("https://"), "invalid_value", f"{IMAGE}.url"),
        (image("https:a"), "invalid_value", f"{IMAGE}.url"),
        (image("https://a b/"), "invalid_value", f"{IMAGE}.url"),
        (image("https://a/\n"), "invalid_value", f"{IMAGE}.url"),
        (image("https://[a/"), "invalid_value", f"{IMAGE}.url"),
        (image(f"https://a/{'b' * 8192}"), "invalid_value", f"{IMAGE}.url"),
        (image(detail="close"), "invalid_value", f"{IMAGE}.detail"),
        (image(colour="red"), "unknown_parameter", f"{IMAGE}.colour"),
        ({"type": "image_url"}, "missing_required_parameter", IMAGE),
        ({"type": "image_url", "image_url": DATA}, "invalid_value", IMAGE),
        (image() | {"text": "a"}, "unknown_parameter", "messages[0].content[0].text"),
        (audio(kind="ogg"), "invalid_value", f"{AUDIO}.format"),
        (audio(data=""), "invalid_value", f"{AUDIO}.data"),
        (audio(rate=8000), "unknown_parameter", f"{AUDIO}.rate"),
        ({"type": {}, "image_url": {}}, "unsupported_parameter", IMAGE),
    ],
)
def test_a_wrong_part_is_refused_with_its_place(part, code, param):
    error = refusal({"role": "user", "content": [part]})
    assert (error.code, error.param) == (code, param)
    assert DATA not in error.message and param in error.message


@pytest.mark.parametrize(
    "data",
    ["A", "AA", "AAA", "A===", "AA=A", "====", "AAA-", "AA_A", "AAA\n", " AAA", "AAAé", "AAA=AAAA", "AAAA="],
)
def test_what_is_no_base64_is_refused(data):
    for part, param in ((image(f"data:image/png;base64,{data}"), f"{IMAGE}.url"), (audio(data), AUDIO)):
        error = refusal({"role": "user", "content": [part]})
        assert error.code == "invalid_value" and (error.param or "").startswith(param)


@pytest.mark.parametrize("wrong_at", [0, 1 << 18, (1 << 20) - 5])
def test_every_piece_of_a_large_one_is_checked(wrong_at):
    data = "A" * (1 << 20)
    (message,) = decoded({"role": "user", "content": [audio(data)]})
    assert isinstance(message.content[0], MediaContent) and message.content[0].data == data
    bad = data[:wrong_at] + "*" + data[wrong_at + 1 :]
    assert refusal({"role": "user", "content": [audio(bad)]}).param == f"{AUDIO}.data"


@pytest.mark.parametrize(
    ("role", "part", "name"),
    [
        ("system", image(), "image_url"),
        ("developer", image(), "image_url"),
        ("assistant", image(), "image_url"),
        ("assistant", audio(), "input_audio"),
    ],
)
def test_only_users_and_tools_show_something(role, part, name):
    error = refusal({"role": role, "content": [part]}, USER)
    assert (error.code, error.param) == ("invalid_value", f"messages[0].content[0].{name}")


def test_a_tool_says_nothing_aloud():
    error = refusal(USER, CALLING, {"role": "tool", "tool_call_id": "c", "content": [audio()]})
    assert error.param == "messages[2].content[0].input_audio"
