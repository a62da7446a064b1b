"""What only vendors' models use."""

import json
from typing import Any

from antiphon.engines.base import TextPiece
from antiphon_testing import ScriptedTokenEngine
from tests.parameters.registry import OUT, Answer, case
from tests.parameters.spots import (
    AUDIO,
    CALL,
    CALL_TALK,
    CHAT,
    CHATS,
    FIREWORKS_CHAT,
    FIREWORKS_TEXT,
    GENERATING,
    IMAGE,
    IMAGE_URL,
    INPUT_AUDIO,
    MESSAGES,
    PART,
    SPEECH_REFERENCE,
    TOOL,
    USER,
)

FIREWORKS = (*FIREWORKS_CHAT, *FIREWORKS_TEXT)
ONCE = ScriptedTokenEngine().tokenizer.encode([TextPiece("Once")], False)


def told(answer: Answer) -> Any:
    """What reached the vendor."""
    return json.loads(answer.text)


@case(CHAT, "verbosity", {}, OUT, "low", hosted=True)
@case(GENERATING, "service_tier", {}, OUT, "flex", hosted=True)
@case(GENERATING, "prompt_cache_key", {}, OUT, "k", hosted=True)
def the_vendor_is_told(without: Answer, sent: Answer) -> None:
    assert told(without)["hosted"] == [None, None, None]
    assert [each for each in told(sent)["hosted"] if each is not None] in (["low"], ["flex"], ["k"])


@case(CHATS, "service_tier", {}, "auto", "flex")
@case(CHAT, "verbosity", {}, "medium", "low")
def a_model_of_this_server_refuses_it(usual: Answer, other: Answer) -> None:
    assert usual.status == 200 and other.status == 400 and "is not supported" in other.refusal


@case(GENERATING, "prompt_cache_key", {}, OUT, "k", recorded=True)
def a_model_of_this_server_names_it(without: Answer, named: Answer) -> None:
    assert named.headers.get("x-antiphon-ignored") == "prompt_cache_key"
    assert "x-antiphon-ignored" not in without.headers


@case(CHATS, "prediction", {}, OUT, {"type": "content", "content": "Once"}, hosted=True)
def the_vendor_gets_the_prediction(without: Answer, sent: Answer) -> None:
    assert [told(each)["prediction"] for each in (without, sent)] == [None, "Once"]


MARK = {"type": "ephemeral"}


@case(TOOL, "cache_control", {}, MARK, MARK | {"ttl": "1h"}, hosted=True)
@case(PART, "cache_control", {}, MARK, MARK | {"ttl": "1h"}, hosted=True)
def the_vendor_gets_the_mark(usual: Answer, long: Answer) -> None:
    assert [told(each)["marks"] for each in (usual, long)] == [[[None]], [["1h"]]]


@case(TOOL, "cache_control", {}, OUT, MARK, recorded=True)
@case(PART, "cache_control", {}, OUT, MARK, recorded=True)
def a_model_of_this_server_names_the_mark(without: Answer, marked: Answer) -> None:
    assert without.asked[0].prompt == marked.asked[0].prompt
    assert "x-antiphon-ignored" not in without.headers
    named = marked.headers["x-antiphon-ignored"]
    assert named in ("tools[].cache_control", "messages[].content[].cache_control")


SPEECH = {"format": "wav", "voice": "alloy"}


@case(CHATS, "modalities", {"audio": SPEECH}, ["audio"], ["text", "audio"], hosted=True)
def the_vendor_is_told_what_to_give(alone: Answer, both: Answer) -> None:
    assert [told(each)["modalities"] for each in (alone, both)] == [["audio"], ["text", "audio"]]


@case(CHATS, "audio", {"modalities": ["text", "audio"]}, SPEECH,
      {"format": "mp3", "voice": {"id": "mine"}}, hosted=True)  # fmt: skip
def the_vendor_is_told_how_to_speak(usual: Answer, other: Answer) -> None:
    assert told(usual)["audio"] == ["wav", "alloy", False]
    assert told(other)["audio"] == ["mp3", "mine", True]


@case(CHAT, "modalities", {}, ["text"], ["text", "audio"])
@case(CHAT, "modalities", {"audio": SPEECH}, ["text", "audio"], ["text"])
def modalities_and_audio_belong_together(right: Answer, wrong: Answer) -> None:
    assert right.status in (200, 400) and wrong.status == 400 and wrong.json["error"]["param"] == "audio"
    assert right.status == 200 or right.json["error"]["param"] == "modalities"


@case(CHATS, "prediction", {}, OUT, {"type": "content", "content": "Once"}, recorded=True)
@case(FIREWORKS, "prediction", {}, OUT, "Once", recorded=True)
@case(FIREWORKS, "speculation", {}, OUT, "Once", recorded=True)
def the_engine_gets_the_prediction(without: Answer, sent: Answer) -> None:
    assert [each.asked[0].prediction for each in (without, sent)] == [(), ONCE]


@case(FIREWORKS, "speculation", {}, OUT, [5, 9], recorded=True)
def the_engine_gets_the_token_ids(without: Answer, sent: Answer) -> None:
    assert [each.asked[0].prediction for each in (without, sent)] == [(), (5, 9)]


# --- images and recordings ---

OTHER = {"url": "https://example.org/a.png"}


@case(IMAGE_URL, "url", {}, "data:image/gif;base64,AAAA", OTHER["url"], hosted=True)
@case(IMAGE, "image_url", {}, {"url": "data:image/gif;base64,AAAA"}, OTHER, hosted=True)
def the_image_reaches_the_vendor(whole: Answer, address: Answer) -> None:
    assert told(whole)["parts"] == [["image/gif", "AAAA", "", None]]
    assert told(address)["parts"] == [["", "", OTHER["url"], None]]


@case(IMAGE_URL, "detail", {}, OUT, "low", hosted=True)
def the_vendor_looks_less_closely(without: Answer, low: Answer) -> None:
    assert [each[3] for answer in (without, low) for each in told(answer)["parts"]] == [None, "low"]


@case(INPUT_AUDIO, "data", {}, "AAAA", "AAAABBBB", hosted=True)
@case(AUDIO, "input_audio", {}, {"data": "AAAA", "format": "wav"}, {"data": "AAAABBBB", "format": "wav"},
      hosted=True)  # fmt: skip
def the_recording_reaches_the_vendor(short: Answer, long: Answer) -> None:
    assert [told(each)["parts"][0][1] for each in (short, long)] == ["AAAA", "AAAABBBB"]


@case(INPUT_AUDIO, "format", {}, "wav", "mp3", hosted=True)
def a_recording_has_its_media_type(wave: Answer, layer: Answer) -> None:
    assert [told(each)["parts"][0][0] for each in (wave, layer)] == ["audio/wav", "audio/mpeg"]


@case(IMAGE, "type", {}, "image_url", "text", hosted=True)
@case(AUDIO, "type", {}, "input_audio", "text", hosted=True)
def a_part_has_the_fields_of_its_type(right: Answer, wrong: Answer) -> None:
    assert right.status == 200 and wrong.status == 400 and "content[0]" in wrong.refusal


# --- what a vendor needs back ---

BLOCK = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
SIGNED = {"google": {"thought_signature": "c2ln"}}
ANSWERED = {"messages": [USER, {"role": "assistant", "content": "Hm."}]}


@case(MESSAGES, "thinking_blocks", ANSWERED, OUT, [BLOCK], hosted=True)
def the_blocks_return_unchanged(without: Answer, sent: Answer) -> None:
    assert (told(without)["blocks"], told(sent)["blocks"]) == ([], [BLOCK])


@case(CALL, "extra_content", {"messages": CALL_TALK}, OUT, SIGNED, hosted=True)
def the_signature_returns(without: Answer, sent: Answer) -> None:
    assert (told(without)["signatures"], told(sent)["signatures"]) == ([None], ["c2ln"])


@case(MESSAGES, "audio", ANSWERED, OUT, {"id": "audio_1"}, hosted=True)
def the_speech_returns_by_its_id(without: Answer, sent: Answer) -> None:
    assert [told(each)["speech"] for each in (without, sent)] == [[None, None], [None, "audio_1"]]


@case(SPEECH_REFERENCE, "id", {}, "audio_1", "audio_2", hosted=True)
def each_speech_has_its_id(first: Answer, second: Answer) -> None:
    assert [told(each)["speech"][1] for each in (first, second)] == ["audio_1", "audio_2"]


@case(MESSAGES, "thinking_blocks", ANSWERED, OUT, [BLOCK], recorded=True)
@case(MESSAGES, "audio", ANSWERED, OUT, {"id": "audio_1"}, recorded=True)
@case(CALL, "extra_content", {"messages": CALL_TALK, "tools": []}, OUT, SIGNED)
def a_model_of_this_server_names_what_it_has_no_use_for(without: Answer, sent: Answer) -> None:
    assert "x-antiphon-ignored" not in without.headers
    named = sent.headers["x-antiphon-ignored"]
    assert named in (
        "messages[].thinking_blocks",
        "messages[].audio",
        "messages[].tool_calls[].extra_content",
    )
